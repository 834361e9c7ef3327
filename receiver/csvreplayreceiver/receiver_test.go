// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadatatest"
)

// sample is one call of the consumer.
type sample struct {
	after time.Duration // since the replay began
	md    pmetric.Metrics
}

// run replays for the given time within a synctest bubble and returns what the consumer got.
type run struct {
	cfg     *Config
	lasts   time.Duration
	consume func(context.Context, pmetric.Metrics) error

	samples []sample
	logs    *observer.ObservedLogs
	metrics *componenttest.Telemetry
}

func (r *run) do(t *testing.T) {
	t.Helper()
	r.metrics = componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, r.metrics.Shutdown(context.Background())) })
	core, logs := observer.New(zapcore.InfoLevel)
	r.logs = logs
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		next, err := consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) error {
			own := pmetric.NewMetrics()
			md.CopyTo(own)
			r.samples = append(r.samples, sample{time.Since(begin), own})
			if r.consume != nil {
				return r.consume(ctx, md)
			}
			return nil
		})
		require.NoError(t, err)
		set := receivertest.NewNopSettings(metadata.Type)
		set.TelemetrySettings = r.metrics.NewTelemetrySettings()
		set.Logger = zap.New(core)
		recv, err := NewFactory().CreateMetrics(t.Context(), set, r.cfg, next)
		require.NoError(t, err)
		require.NoError(t, recv.Start(t.Context(), componenttest.NewNopHost()))
		time.Sleep(r.lasts)
		synctest.Wait()
		require.NoError(t, recv.Shutdown(t.Context()))
	})
}

func (r *run) times() []string {
	var times []string
	for _, s := range r.samples {
		times = append(times, s.after.String())
	}
	return times
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "recording.csv")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// tableConfig replays host,t,v with t in seconds; v is a gauge "v" and n, if named, a sum "n".
func tableConfig(t *testing.T, text string) *Config {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Path = writeFile(t, text)
	cfg.Table = TableConfig{
		Time:     TimeConfig{Column: "t", Unit: "s"},
		Resource: map[string]string{"host.name": "{host}"},
		Metrics:  []MetricConfig{{Column: "v", Name: "v"}},
	}
	if strings.Contains(text[:strings.IndexByte(text, '\n')], ",n") {
		cfg.Table.Metrics = append(cfg.Table.Metrics, MetricConfig{Column: "n", Name: "n", Type: "sum"})
	}
	require.NoError(t, cfg.Validate())
	return cfg
}

func TestPaceAndOneTimestampPerReport(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v\n100,a,1\n100,b,2\n104,a,3\n104,b,4\n105,a,5\n"), lasts: time.Hour}
	r.cfg.Speed = 2
	r.do(t)
	assert.Equal(t, []string{"0s", "2s", "2.5s"}, r.times())
	assert.Equal(t, []string{"a vmap[]=1", "b vmap[]=2"}, pointsOf(r.samples[0].md), "a step leaves in one call")
	for _, s := range r.samples {
		for _, rm := range s.md.ResourceMetrics().All() {
			at := metricreading.Points(rm.ScopeMetrics().At(0).Metrics().At(0)).At(0).Timestamp().AsTime()
			assert.Equal(t, s.after, at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), "the time of the replay, which synctest begins in 2000")
		}
	}
}

func TestLoopStartsSumsAnew(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v,n\n0,a,1,10\n2,a,1,12\n3,a,1,11\n"), lasts: 5500 * time.Millisecond}
	r.cfg.Loop = true
	r.do(t)
	require.Equal(t, []string{"0s", "2s", "3s", "4s"}, r.times(), "the loop follows at the last gap")
	var starts []time.Duration
	for _, s := range r.samples {
		dp := metricreading.Points(s.md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(1)).At(0)
		starts = append(starts, s.after-dp.Timestamp().AsTime().Sub(dp.StartTimestamp().AsTime()))
	}
	assert.Equal(t, []time.Duration{0, 0, 0, 3 * time.Second}, starts, "a sum starts with the pass over the recording")
	assert.Equal(t, 1, r.logs.FilterMessage("replay begins anew").Len())
}

func TestLoopOverNothingEnds(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v\n0,a,x\n"), lasts: time.Hour}
	r.cfg.Loop = true
	r.do(t)
	assert.Empty(t, r.samples)
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("replay finished without a step").Len())
}

func TestRefusedAndStuckStepsDoNotStopTheReplay(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v\n0,a,1\n1,a,2\n30,a,3\n31,a,4\n"), lasts: time.Minute}
	calls := 0
	r.consume = func(ctx context.Context, _ pmetric.Metrics) error {
		switch calls++; calls {
		case 1:
			return errors.New("no")
		case 2:
			<-ctx.Done() // for the whole timeout
			return ctx.Err()
		}
		return nil
	}
	r.do(t)
	assert.Equal(t, []string{"0s", "1s", "30s", "31s"}, r.times())
	assert.Equal(t, 2, r.logs.FilterMessageSnippet("refused a step").Len())
	end := r.logs.FilterMessage("replay finished").All()
	require.Len(t, end, 1)
	assert.EqualValues(t, 4, end[0].ContextMap()["steps"])
	assert.EqualValues(t, 2, end[0].ContextMap()["refused"])
}

func TestShutdownCutsACall(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v\n0,a,1\n"), lasts: time.Second}
	r.consume = func(ctx context.Context, _ pmetric.Metrics) error {
		<-ctx.Done()
		return ctx.Err()
	}
	r.do(t)
	assert.Zero(t, r.logs.FilterMessageSnippet("refused a step").Len(), "a shutdown is no refusal to report")
}

func TestWhatIsLeftOutIsCountedAndNamedUpToACap(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v,n\n0,a,1,x\n0,b\n"+strings.Repeat("0,b,,\n", 50)), lasts: time.Minute}
	r.do(t)
	assert.Len(t, r.samples, 1)
	named := r.logs.FilterMessage("row or cell skipped").All()
	require.Len(t, named, logLines)
	assert.Equal(t, map[string]any{"path": r.cfg.Path, "line": int64(2), "reason": "bad_value", "error": `column "n" is "x": strconv.ParseFloat: parsing "x": invalid syntax`}, named[0].ContextMap())
	skipped := func(name string, n int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Value: n, Attributes: attribute.NewSet(attribute.String("reason", name))}
	}
	metadatatest.AssertEqualReceiverCsvReplaySkipped(t, r.metrics,
		[]metricdata.DataPoint[int64]{skipped("bad_value", 1), skipped("bad_row", 1), skipped("no_value", 50)}, metricdatatest.IgnoreTimestamp())
	end := r.logs.FilterMessage("replay finished").All()
	require.Len(t, end, 1)
	assert.EqualValues(t, 52, end[0].ContextMap()["skipped"])
}

// TestNoRecording: `validate` and `reload` report it, before a collector that runs is ended.
func TestNoRecording(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "gone.csv"): "no such file", t.TempDir(): "it is no regular file", fifo: "it is no regular file",
	} {
		cfg := tableConfig(t, "t,host,v\n")
		require.NoError(t, cfg.Validate())
		cfg.Path = path
		require.ErrorContains(t, cfg.Validate(), fmt.Sprintf("`path` is %q: it must name a CSV file: ", path))
		require.ErrorContains(t, cfg.Validate(), want)
	}
	cfg := tableConfig(t, "t,host,v\n")
	require.NoError(t, os.Remove(cfg.Path))
	recv, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, consumertest.NewNop())
	require.NoError(t, err)
	require.ErrorContains(t, recv.Start(t.Context(), componenttest.NewNopHost()), cfg.Path)
	assert.NoError(t, recv.Shutdown(t.Context()))
}

func TestPacer(t *testing.T) {
	zero := time.Unix(1000, 0)
	const s = time.Second
	type step struct{ at, now, due time.Duration } // recording, wall since zero, and when it is due
	for _, tt := range []struct {
		name  string
		pacer pacer
		steps []step
	}{
		{"real time", pacer{speed: 1}, []step{{5 * s, 0, 0}, {7 * s, 0, 2 * s}, {8 * s, 2 * s, 3 * s}}},
		{"four times as fast", pacer{speed: 4}, []step{{0, 0, 0}, {2 * s, 0, s / 2}}},
		{"a small delay does not add up", pacer{speed: 1}, []step{{0, 0, 0}, {s, 0, s}, {2 * s, 5 * s / 2, 2 * s}, {3 * s, 13 * s / 5, 3 * s}}},
		{"a long delay moves the schedule", pacer{speed: 1}, []step{{0, 0, 0}, {s, 60 * s, 60 * s}, {2 * s, 60 * s, 61 * s}}},
		{"a loop keeps the pace", pacer{speed: 1}, []step{{0, 0, 0}, {3 * s, 0, 3 * s}, {0, 3 * s, 6 * s}, {3 * s, 6 * s, 9 * s}}},
		{"a loop over one step does not spin", pacer{speed: 2}, []step{{9 * s, 0, 0}, {9 * s, 0, s / 2}}},
		{"very slow does not overflow", pacer{speed: 1e-300}, []step{{0, 0, 0}, {s, 0, 1 << 62}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pacer
			for i, s := range tt.steps {
				assert.Equal(t, s.due, p.next(zero.Add(s.at), zero.Add(s.now)).Sub(zero), "step %d", i)
			}
		})
	}
}
