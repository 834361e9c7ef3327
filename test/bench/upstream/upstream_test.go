// SPDX-License-Identifier: Apache-2.0

// Package upstream measures how much of a fleet's telemetry a shard passes on, with
// the deadbands of the shipped configuration, and how far the next hop is from the
// truth. Time is simulated, the processor is real. `make bench-upstream` runs it for
// longer and prints one figure to a line.
package upstream // import "github.com/gpu-collector/gpu-collector/test/bench/upstream"

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

var (
	span    = flag.Duration("span", 20*time.Second, "simulated time of each case")
	figures = flag.Bool("figures", false, "print the figures")
)

const (
	nodes = 16
	// The promise for a fleet under load.
	minPointsRatio, minBytesRatio = 20, 10
)

// testCase is a fleet with one kind of load.
type testCase struct {
	name   string
	load   fleetsim.Load
	poll   time.Duration
	resync bool // whether full state is sent again now and then, as is shipped
	exact  bool // without the deadbands
}

func TestUpstream(t *testing.T) {
	for _, c := range []testCase{
		{"training_10s", fleetsim.Training, 10 * time.Second, true, false},
		{"training_10s_changes", fleetsim.Training, 10 * time.Second, false, false},
		{"training_10s_exact", fleetsim.Training, 10 * time.Second, true, true},
		{"training_1s", fleetsim.Training, time.Second, true, false},
		{"inference_10s", fleetsim.Inference, 10 * time.Second, true, false},
		{"inference_10s_changes", fleetsim.Inference, 10 * time.Second, false, false},
		{"idle_10s", fleetsim.Idle, 10 * time.Second, true, false},
		{"idle_10s_changes", fleetsim.Idle, 10 * time.Second, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := measure(t, c)
				m.print(c)
				least := 2.0
				if c.exact { // sensors are never still
					least = 1
				}
				assert.Greater(t, m.ratio(m.full.points, m.sent.points), least)
				assert.Greater(t, m.ratio(m.full.zstd, m.sent.zstd), least)
				for _, v := range []volume{m.full, m.sent} {
					assert.Less(t, v.gzip, v.snappy) // snappy has no entropy coder
					assert.Less(t, v.snappy, v.plain)
				}
			})
		})
	}
}

// volume is what goes over a wire; sizes in bytes.
type volume struct{ points, plain, gzip, snappy, zstd int }

func (v *volume) add(t *testing.T, enc *compressors, md pmetric.Metrics) {
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	v.points += md.DataPointCount()
	v.plain += len(body)
	v.zstd += len(enc.zstd.EncodeAll(body, nil))
	enc.out.Reset()
	enc.gzip.Reset(&enc.out)
	_, err = enc.gzip.Write(body)
	require.NoError(t, errors.Join(err, enc.gzip.Close()))
	v.gzip += enc.out.Len()
	enc.out.Reset()
	enc.snappy.Reset(&enc.out)
	_, err = enc.snappy.Write(body)
	require.NoError(t, errors.Join(err, enc.snappy.Close()))
	v.snappy += enc.out.Len()
}

// compressors are at the levels that gRPC's have by default; snappy is framed, as
// the Collector sends it.
type compressors struct {
	zstd   *zstd.Encoder
	gzip   *gzip.Writer
	snappy *snappy.Writer
	out    bytes.Buffer
}

func newCompressors(t *testing.T) *compressors {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, enc.Close()) })
	return &compressors{zstd: enc, gzip: gzip.NewWriter(nil), snappy: snappy.NewBufferedWriter(nil)}
}

// measurement of one case.
type measurement struct {
	full, sent volume
	errors     map[string]*deviation
}

func (m *measurement) ratio(a, b int) float64 { return float64(a) / float64(b) }

// deviation of what the next hop knows of a metric from the truth, in the
// metric's unit.
type deviation struct {
	unit     string
	max, sum float64
	count    int
}

// measure runs the fleet through the diff processor of the shipped shard. The
// first full report of each node is not counted: it happens once.
func measure(t *testing.T, c testCase) *measurement {
	m := &measurement{errors: map[string]*deviation{}}
	before, behind := newCompressors(t), newCompressors(t) // the shard sends when it likes

	known, counting := map[string]float64{}, false
	next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		if counting {
			m.sent.add(t, behind, md)
		}
		eachPoint(md, func(series string, _ pmetric.Metric, value float64) { known[series] = value })
		return nil
	})
	require.NoError(t, err)

	shard, bands := newDiff(t, c, next)
	truth := map[string]pmetric.Metrics{}
	agents := newScorer(t, c.poll, func(ctx context.Context, md pmetric.Metrics) error {
		if counting {
			m.full.add(t, before, md)
		}
		host, _ := md.ResourceMetrics().At(0).Resource().Attributes().Get("host.name")
		full := pmetric.NewMetrics()
		md.CopyTo(full)
		truth[host.Str()] = full
		return shard.ConsumeMetrics(ctx, md)
	})

	fleet := newFleet(t, nodes, c.load, time.Now())
	for _, n := range fleet.nodes {
		n.Advance(10 * time.Minute) // to a working temperature
	}
	for start := time.Now(); time.Since(start) <= *span; counting = true {
		for i, n := range fleet.nodes {
			// Nodes do not poll all at once; the second half of the interval is
			// for what the processor holds back for its next flush.
			time.Sleep(c.poll / nodes / 2)
			n.Advance(c.poll)
			push := pmetric.NewMetrics()
			fleet.poll(i, time.Now()).CopyTo(push)
			require.NoError(t, agents.ConsumeMetrics(t.Context(), push))
		}
		time.Sleep(c.poll / 2)
		synctest.Wait()
		for _, full := range truth {
			// A poll each second leaves no time for a flush between.
			if counting && c.poll >= 10*time.Second {
				m.compare(t, bands, full, known)
			}
		}
	}
	require.NoError(t, agents.Shutdown(t.Context()))
	require.NoError(t, shard.Shutdown(t.Context()))
	return m
}

func (m *measurement) compare(t *testing.T, bands rules, truth pmetric.Metrics, known map[string]float64) {
	eachPoint(truth, func(series string, metric pmetric.Metric, value float64) {
		d := m.errors[metric.Name()]
		if d == nil {
			d = &deviation{unit: metric.Unit()}
			m.errors[metric.Name()] = d
		}
		off := math.Inf(1) // the next hop does not know the series at all
		if k, ok := known[series]; ok {
			off = math.Abs(k - value)
		}
		// The promise of the processor.
		band := bands.of(metric.Name())
		assert.LessOrEqual(t, off, max(band.Absolute, band.Relative*math.Abs(value))*(1+1e-9), series)
		d.max, d.sum, d.count = max(d.max, off), d.sum+off, d.count+1
	})
}

// eachPoint calls fn for every point with what names its series.
func eachPoint(md pmetric.Metrics, fn func(series string, metric pmetric.Metric, value float64)) {
	for _, rm := range md.ResourceMetrics().All() {
		host, _ := rm.Resource().Attributes().Get("host.name")
		for _, sm := range rm.ScopeMetrics().All() {
			for _, metric := range sm.Metrics().All() {
				for _, p := range points(metric).All() {
					parts := make([]string, 0, p.Attributes().Len())
					for name, v := range p.Attributes().All() {
						parts = append(parts, name+"="+v.AsString())
					}
					slices.Sort(parts)
					series := host.Str() + "|" + metric.Name() + "|" + strings.Join(parts, ",")
					value := p.DoubleValue()
					if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
						value = float64(p.IntValue())
					}
					fn(series, metric, value)
				}
			}
		}
	}
}

func (m *measurement) print(c testCase) {
	name := c.name
	if !*figures {
		return
	}
	points, size := m.ratio(m.full.points, m.sent.points), m.ratio(m.full.zstd, m.sent.zstd)
	if c.exact { // the promise is of what is shipped
		figure.FprintOnly(os.Stdout, "upstream_"+name+"_points_ratio", points, "x")
		figure.FprintOnly(os.Stdout, "upstream_"+name+"_bytes_ratio", size, "x")
	} else {
		figure.Print("upstream_"+name+"_points_ratio", points, "x", minPointsRatio, false)
		figure.Print("upstream_"+name+"_bytes_ratio", size, "x", minBytesRatio, false)
	}
	hours := nodes * span.Hours()
	for _, side := range []struct {
		name string
		of   volume
	}{{"full", m.full}, {"sent", m.sent}} {
		for _, encoding := range []struct {
			name  string
			bytes int
		}{{"plain", side.of.plain}, {"gzip", side.of.gzip}, {"snappy", side.of.snappy}, {"zstd", side.of.zstd}} {
			figure.FprintOnly(os.Stdout, "upstream_"+name+"_"+side.name+"_"+encoding.name, float64(encoding.bytes)/1e3/hours, "kB/node-hour")
		}
	}
	for _, metric := range slices.Sorted(maps.Keys(m.errors)) {
		if d := m.errors[metric]; d.max > 0 {
			figure.FprintOnly(os.Stdout, "upstream_"+name+"_"+metric+"_max_error", d.max, d.unit)
			figure.FprintOnly(os.Stdout, "upstream_"+name+"_"+metric+"_mean_error", d.sum/float64(d.count), d.unit)
		}
	}
}

// newDiff is the diff processor of the shipped shard.
func newDiff(t *testing.T, c testCase, next consumer.Metrics) (processor.Metrics, rules) {
	factory := diffprocessor.NewFactory()
	cfg := factory.CreateDefaultConfig().(*diffprocessor.Config)
	require.NoError(t, shipped(t, "shard.yaml", "processors::diff").Unmarshal(cfg))
	cfg.ThresholdExtension, cfg.FrontDoor = nil, nil // no gateway that could ask, no bytes
	if !c.resync {
		cfg.ResyncInterval = 0
	}
	if c.exact {
		cfg.Deadbands = nil
	}
	p, err := factory.CreateMetrics(t.Context(), processortest.NewNopSettings(factory.Type()), cfg, next)
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
	return p, cfg.Deadbands
}

// rules are the deadbands, whose patterns are names here.
type rules []deadband.Rule

func (r rules) of(metric string) deadband.Rule {
	for _, rule := range r {
		if rule.Metric == metric {
			return rule
		}
	}
	return deadband.Rule{}
}

// newScorer is the straggler processor of the shipped agents, which adds a
// node's score and signals to its report.
func newScorer(t *testing.T, poll time.Duration, next consumer.ConsumeMetricsFunc) processor.Metrics {
	factory := stragglerprocessor.NewFactory()
	cfg := factory.CreateDefaultConfig().(*stragglerprocessor.Config)
	require.NoError(t, shipped(t, "agent.yaml", "processors::straggler").Unmarshal(cfg))
	cfg.ThresholdExtension = nil
	cfg.PushInterval = poll
	to, err := consumer.NewMetrics(next)
	require.NoError(t, err)
	p, err := factory.CreateMetrics(t.Context(), processortest.NewNopSettings(factory.Type()), cfg, to)
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
	return p
}

// shipped is a part of a shipped configuration.
func shipped(t *testing.T, file, part string) *confmap.Conf {
	conf, err := confmaptest.LoadConf("../../../configs/" + file)
	require.NoError(t, err)
	sub, err := conf.Sub(part)
	require.NoError(t, err)
	return sub
}
