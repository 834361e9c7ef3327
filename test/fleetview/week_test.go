// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
)

const week = 7 * 24 * time.Hour

// TestAWeekInVictoriaMetrics pages through a week of drawn samples, some hundred thousand,
// by the default limits. Each answer has to be what was written, wherever the page
// lies and whoever it is about.
func TestAWeekInVictoriaMetrics(t *testing.T) {
	t.Parallel()
	server := metricstore.VictoriaMetrics(t)
	g := startGateway(t, map[string]any{"storage": "prometheus", "prometheus": map[string]any{"http": map[string]any{"endpoint": server.URL("")}}}, server.URL(write))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWeek(rand.New(rand.NewPCG(seed, 1)), time.Now().UTC().Truncate(time.Second).Add(-week-time.Hour))
	for node := range w.series {
		g.push(w.report(node))
	}
	total := w.nodes() * w.gpus() * w.steps
	span := []string{"metric", gpusemconv.MetricTemperature, "since", stamp(w.start), "until", stamp(w.start.Add(week))}
	// The server lets see what was pushed some time later.
	resp, err := http.Get(server.URL("/internal/force_flush"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Eventually(t, func() bool {
		return get[fleetapi.SamplePage](g, "/telemetry", append(span, "limit", "1")...).Total == total
	}, deadline, 200*time.Millisecond, "%d samples can be asked for", total)

	t.Run("a node's week, page by page", func(t *testing.T) {
		node := w.rng.IntN(w.nodes())
		want := w.newest(node)
		for page, at := 1, 0; at < len(want); page++ {
			p := get[fleetapi.SamplePage](g, "/telemetry", append(span, "host", name(node), "limit", "1000", "page", strconv.Itoa(page))...)
			require.Equal(t, len(want), p.Total, "page %d", page)
			require.Equal(t, want[at:min(at+1000, len(want))], p.Samples, "page %d", page)
			at += len(p.Samples)
			require.Equal(t, at < len(want), p.More, "page %d", page)
		}
	})
	t.Run("drawn pages of the fleet", func(t *testing.T) {
		want := w.newest(-1)
		for range 8 {
			limit := 1 + w.rng.IntN(1000)
			page := 1 + w.rng.IntN((total+limit-1)/limit)
			p := get[fleetapi.SamplePage](g, "/telemetry", append(span, "limit", strconv.Itoa(limit), "page", strconv.Itoa(page))...)
			from := (page - 1) * limit
			require.Equal(t, total, p.Total)
			require.Equal(t, want[from:min(from+limit, total)], p.Samples, "page %d of %d each", page, limit)
		}
	})
	t.Run("figures of the week", func(t *testing.T) {
		list := get[fleetapi.AggregationList](g, "/telemetry/aggregations", append(span, "group_by", "host")...).Aggregations
		require.Len(t, list, w.nodes())
		for node := range w.nodes() {
			sum, n := 0.0, 0
			for _, values := range w.series[node] {
				n += len(values)
				for _, v := range values {
					sum += v
				}
			}
			i := slices.IndexFunc(list, func(a fleetapi.Aggregation) bool { return a.Host == name(node) })
			require.GreaterOrEqual(t, i, 0, name(node))
			assert.EqualValues(t, n, list[i].Count)
			assert.InEpsilon(t, sum/float64(n), list[i].Mean, 1e-9)
		}
	})
}

// weekData is what was written: by node, GPU and step, whole degrees.
type weekData struct {
	rng    *rand.Rand
	start  time.Time
	step   time.Duration
	steps  int
	series [][][]float64
}

func newWeek(rng *rand.Rand, start time.Time) *weekData {
	w := &weekData{rng: rng, start: start, step: time.Duration(120+rng.IntN(180)) * time.Second}
	w.steps = int(week / w.step)
	w.series = make([][][]float64, 8+rng.IntN(8))
	for node := range w.series {
		w.series[node] = make([][]float64, 8)
		for gpu := range w.series[node] {
			level := 40 + 30*rng.Float64()
			for range w.steps {
				w.series[node][gpu] = append(w.series[node][gpu], float64(int(level+5*rng.NormFloat64())))
			}
		}
	}
	return w
}

func (w *weekData) nodes() int { return len(w.series) }
func (w *weekData) gpus() int  { return len(w.series[0]) }

func name(node int) string { return fmt.Sprintf("node-%02d", node) }

// at is the time of a sample. No two have the same one, so that the order is one.
func (w *weekData) at(node, gpu, step int) time.Time {
	return w.start.Add(time.Duration(step)*w.step + time.Duration(node*w.gpus()+gpu+1)*time.Millisecond)
}

func (w *weekData) report(node int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, name(node))
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, "east")
	points := newMetric(rm.ScopeMetrics().AppendEmpty(), gpusemconv.MetricTemperature, "Cel", false)
	for gpu, values := range w.series[node] {
		for step, v := range values {
			dp := points.AppendEmpty()
			dp.SetTimestamp(pcommon.NewTimestampFromTime(w.at(node, gpu, step)))
			dp.SetDoubleValue(v)
			dp.Attributes().PutStr(gpusemconv.AttrHWID, uuid(node, gpu))
			dp.Attributes().PutStr(gpusemconv.AttrSensorLocation, "gpu")
		}
	}
	return md
}

func uuid(node, gpu int) string { return fmt.Sprintf("GPU-%02d-%d", node, gpu) }

// newest are the samples of a node, or with -1 of all, the newest first.
func (w *weekData) newest(node int) []fleetapi.Sample {
	var list []fleetapi.Sample
	for step := w.steps - 1; step >= 0; step-- {
		for n := w.nodes() - 1; n >= 0; n-- {
			if node >= 0 && n != node {
				continue
			}
			for gpu := w.gpus() - 1; gpu >= 0; gpu-- {
				list = append(list, fleetapi.Sample{
					At: w.at(n, gpu, step), Cluster: "east", Host: name(n), GPU: uuid(n, gpu), Metric: gpusemconv.MetricTemperature,
					Value: w.series[n][gpu][step], Attributes: map[string]string{gpusemconv.AttrSensorLocation: "gpu"},
				})
			}
		}
	}
	return list
}
