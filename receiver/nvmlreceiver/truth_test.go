// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// teller records verdicts on one GPU as the scraper does.
func teller(t *testing.T) func(gpuhealth.Sample, gpuhealth.Verdict) pmetric.Metrics {
	t.Helper()
	r := recorder{mb: metadata.NewMetricsBuilder(metadata.NewDefaultMetricsBuilderConfig(), settings(t).Settings)}
	return func(s gpuhealth.Sample, v gpuhealth.Verdict) pmetric.Metrics {
		r.begin(1)
		r.sample(&s)
		r.verdict(&v)
		md := r.mb.Emit()
		end(md)
		for _, m := range all(md) {
			points := pointsOf(m)
			if len(points) == 1 && points[0].Flags().NoRecordedValue() {
				continue
			}
			assert.NotEmpty(t, points, m.Name())
			for _, p := range points {
				assert.False(t, p.Flags().NoRecordedValue(), "%s: an end is a metric of its own", m.Name())
			}
		}
		return md
	}
}

// TestNoTwoTruths plays an exporter that keeps each series until it is told
// that it has ended: after each report it has one hw.gpu.up per GPU, no score
// of a GPU that is unknown, and no reason that does not hold.
func TestNoTwoTruths(t *testing.T) {
	served := map[string]float64{}
	serve := func(md pmetric.Metrics) map[string]float64 {
		for metric, key := range map[string]string{"hw.gpu.up": "reason", "hw.gpu.health.reason": "reason", "hw.gpu.health.score": "hw.id"} {
			for _, p := range findAll(md, metric, nil) {
				attribute, _ := p.Attributes().Get(key)
				series := metric + "/" + attribute.Str()
				if p.Flags().NoRecordedValue() {
					delete(served, series)
				} else {
					served[series] = float64(p.IntValue())
				}
			}
		}
		return served
	}
	tell := teller(t)
	poll := func(up gpuhealth.Reason, v gpuhealth.Verdict) map[string]float64 {
		s := hopper()
		s.Reason = up
		return serve(tell(s, v))
	}
	score := "hw.gpu.health.score/" + gpuA
	well := gpuhealth.Verdict{State: gpuhealth.StateHealthy, Score: some(100)}
	why := func(state gpuhealth.State, score gpuhealth.Opt[int], reason string) gpuhealth.Verdict {
		return gpuhealth.Verdict{State: state, Score: score, Reasons: []gpuhealth.ActiveReason{{Reason: reason, Action: gpuhealth.ActionReboot}}}
	}
	assert.Equal(t, map[string]float64{"hw.gpu.up/ok": 1, score: 100}, poll(gpuhealth.ReasonOK, well))
	for range 2 {
		assert.Equal(t, map[string]float64{"hw.gpu.up/lost": 0, score: 0, "hw.gpu.health.reason/gpu_lost": 1},
			poll(gpuhealth.ReasonLost, why(gpuhealth.StateUnhealthy, some(0), "gpu_lost")))
	}
	for range 2 {
		assert.Equal(t, map[string]float64{"hw.gpu.up/hang": 0, "hw.gpu.health.reason/gpu_lost": 0, "hw.gpu.health.reason/nvml_hang": 1},
			poll(gpuhealth.ReasonHang, why(gpuhealth.StateUnknown, gpuhealth.Opt[int]{}, "nvml_hang")))
	}
	for range 2 {
		assert.Equal(t, map[string]float64{"hw.gpu.up/ok": 1, score: 100, "hw.gpu.health.reason/gpu_lost": 0, "hw.gpu.health.reason/nvml_hang": 0},
			poll(gpuhealth.ReasonOK, well))
	}
}

func TestReasonsThatAreOverAreBounded(t *testing.T) {
	var st states
	for i := range 10 * maxReasons {
		st.tell([]gpuhealth.ActiveReason{{Reason: "gpu_lost"}, {Reason: fmt.Sprint("xid_", 1000+i)}})
	}
	require.Len(t, st.reasons, maxReasons)
	assert.Equal(t, toldReason{"gpu_lost", "", true}, st.reasons[0])
	assert.Equal(t, toldReason{fmt.Sprint("xid_", 1000+10*maxReasons-1), "", true}, st.reasons[maxReasons-1])
	assert.False(t, st.reasons[maxReasons-2].holds)
}

// TestARestartEndsWhatIsOver: with a storage the receiver knows what the last
// points of the process before claimed.
func TestARestartEndsWhatIsOver(t *testing.T) {
	id := component.MustNewID("file_storage")
	m := &memory{}
	host := hostWith{id: m}
	life := func(do func(*gpuScraper)) {
		cfg := createDefaultConfig().(*Config)
		cfg.StorageID = &id
		set := settings(t)
		telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
		require.NoError(t, err)
		s, err := newScraper(cfg, set.Settings, telemetry, nil)
		require.NoError(t, err)
		require.NoError(t, s.start(t.Context(), host))
		do(s)
		require.NoError(t, s.keeper.shutdown(t.Context()))
	}
	record := func(s *gpuScraper, sample gpuhealth.Sample) pmetric.Metrics {
		s.recorder.begin(1)
		verdict := s.monitor.Observe(&sample, testTime)
		s.recorder.sample(&sample)
		s.recorder.verdict(&verdict)
		md := s.builder.Emit()
		end(md)
		return md
	}
	ill := hopper()
	ill.RemappedRows.Pending = some(true)
	slice := gpuhealth.Sample{Identity: gpuhealth.Identity{UUID: sliceA, MIG: gpuhealth.MIG{Parent: gpuA}}, Reason: gpuhealth.ReasonOK}
	life(func(s *gpuScraper) {
		s.monitor.Opened(gpuhealth.DriverLoad{BootID: "a"}, false, testTime)
		record(s, ill)
		s.monitor.ObserveXid(gpuhealth.XidEvent{UUID: gpuA, Code: 48, Time: testTime})
		s.monitor.ObserveXid(gpuhealth.XidEvent{UUID: sliceA, Parent: gpuA, Code: 62, Time: testTime})
		s.monitor.Observe(&slice, testTime)
		s.keeper.changed()
	})
	life(func(s *gpuScraper) {
		s.recorder.begin(1) // the driver comes late
		s.recorder.begin(1)
		s.monitor.Opened(gpuhealth.DriverLoad{BootID: "b"}, false, testTime.Add(time.Second))
		down := hopper()
		down.Reason = gpuhealth.ReasonHang
		md := record(s, down)
		assert.Equal(t, map[string]int64{"xid_48": 0, "ecc_uncorrected": 0, "remap_pending": 0, "nvml_hang": 1}, valuesBy(md, "hw.gpu.health.reason", "reason"))
		assert.Equal(t, []string{gpuA}, ended(md, "hw.gpu.health.score", nil), "it had one")
		assert.Equal(t, map[string]int64{"xid_62": 0, "nvml_hang": 1}, valuesBy(record(s, slice), "hw.gpu.health.reason", "reason"))
		assert.Empty(t, s.recorder.said.before)
	})
}
