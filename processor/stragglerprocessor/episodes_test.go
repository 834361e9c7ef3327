// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// hotFleet are eight nodes of eight GPUs each, and a report of them. Heat slows
// the first GPU of n2.
func hotFleet(t *testing.T) (*observer, *straggler.Report) {
	cfg := createDefaultConfig().(*Config)
	tb, err := metadata.NewTelemetryBuilder(componenttest.NewNopTelemetrySettings())
	require.NoError(t, err)
	o := newObserver(cfg, newRejects(tb), zap.NewNop())
	e := straggler.New(cfg.engine())
	view, exporter := newFleetView(t)
	o.views.store = view.state
	require.NoError(t, exporter.ConsumeMetrics(t.Context(), hardware(8, "n2")))
	o.observe(t.Context(), e, fleet(1, 1, 1, 1, 1, 1, 1, 1), noon)
	return o, e.Tick(noon)
}

// hardware is a push of the nvml receivers of n nodes.
func hardware(n int, hot string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i := range n {
		name := fmt.Sprintf("n%d", i)
		rm := resource(md, map[string]any{"host.name": name, "k8s.cluster.name": "prod"})
		gauge(rm, gpusemconv.MetricGPUDevices, 8, "state", "expected")
		for j := range 8 {
			id := fmt.Sprintf("GPU-%d-%d", i, j)
			temperature, throttled := 60.0, 0.0
			if name == hot && j == 0 {
				temperature, throttled = 91, 1
				gauge(rm, gpusemconv.MetricGPUAllocation, 1, "hw.id", id, gpusemconv.AttrJobID, "12", gpusemconv.AttrShared, "true")
			}
			gauge(rm, gpusemconv.MetricGPUUp, 1, "hw.id", id, "reason", "ok")
			gauge(rm, gpusemconv.MetricTemperature, temperature, "hw.id", id, "hw.sensor_location", "gpu")
			gauge(rm, gpusemconv.MetricGPUThrottleActive, throttled, "hw.id", id, "reason", "hw_thermal")
		}
	}
	return md
}

// onset is a slow node of a job, which a test changes.
func onset(f func(*episode.Episode)) *episode.Episode {
	e := &episode.Episode{
		ID: "e1", Phase: episode.PhaseOnset, Subject: episode.SubjectNode, Cluster: "prod", Group: "J/stage-0", Node: "n2", GroupLabels: []string{"J", "stage-0"},
		Signal: "throughput", Severity: episode.SeverityMajor, Since: noon, Updated: noon.Add(time.Minute), Gap: new(0.125), Active: new(int64(8)),
	}
	f(e)
	return e
}

// TestExplain: an episode that begins gets a reason, its GPU, the holders, and the cost for
// the job. What is not known is left out.
func TestExplain(t *testing.T) {
	for name, tt := range map[string]struct {
		of                  func(*episode.Episode)
		reason, action, gpu string
		cost                *float64
		holders             []reading.Holder
	}{
		"a hot GPU":       {func(*episode.Episode) {}, "hw_thermal", "check_cooling", "GPU-2-0", new(8.0), []reading.Holder{{Job: "12", Shared: true}}},
		"nothing is seen": {func(e *episode.Episode) { e.Node = "n3" }, "unexplained", "burn_in", "", new(8.0), nil},
		"the own time of a rank": {func(e *episode.Episode) {
			e.Node, e.Ranks, e.Culprit = "n3", 4, nodesignal.Subject{GPU: "GPU-3-1"}
		}, "unexplained", "inspect_job", "GPU-3-1", new(0.375), nil},
		"no job":         {func(e *episode.Episode) { e.GroupLabels = []string{"", "stage-0"} }, "hw_thermal", "check_cooling", "GPU-2-0", nil, []reading.Holder{{Job: "12", Shared: true}}},
		"no loss":        {func(e *episode.Episode) { e.Gap = new(-0.01) }, "hw_thermal", "check_cooling", "GPU-2-0", nil, []reading.Holder{{Job: "12", Shared: true}}},
		"no record":      {func(e *episode.Episode) { e.Phase = episode.PhaseEnd; e.Reason = "hw_thermal" }, "hw_thermal", "", "", nil, nil},
		"a missing node": {func(e *episode.Episode) { e.Subject = episode.SubjectMissing }, "", "", "", nil, []reading.Holder{{Job: "12", Shared: true}}},
		"many": {func(e *episode.Episode) {
			e.Subject, e.Node, e.Nodes = episode.SubjectGroup, "", []string{"n2", "n1"}
		}, "hw_thermal", "check_cooling", "", new(8.0), nil},
	} {
		t.Run(name, func(t *testing.T) {
			o, report := hotFleet(t)
			e := onset(tt.of)
			if report.Events = []*episode.Episode{e}; e.Phase != episode.PhaseEnd {
				report.Open = report.Events
			}
			newExplainer(createDefaultConfig().(*Config), &o.views).explain(report)
			assert.Equal(t, []string{tt.reason, tt.action, tt.gpu}, []string{e.Reason, e.Action, e.GPU})
			assert.Equal(t, tt.cost, e.Cost)
			assert.Equal(t, tt.holders, e.Holders)
			assert.NotEmpty(t, e.Text)
		})
	}
}

// TestExplainAgain: the cost of an open episode follows its loss, and a reason that was not
// known is looked for again.
func TestExplainAgain(t *testing.T) {
	o, report := hotFleet(t)
	e := onset(func(e *episode.Episode) { e.Reason, e.Gap = "unexplained", new(0.25) })
	known := onset(func(e *episode.Episode) { e.Reason = "memory_pressure" })
	report.Open = []*episode.Episode{e, known}
	newExplainer(createDefaultConfig().(*Config), &o.views).explain(report)
	assert.Equal(t, []any{"hw_thermal", new(16.0)}, []any{e.Reason, e.Cost})
	assert.Equal(t, []any{"memory_pressure", new(8.0)}, []any{known.Reason, known.Cost})
}

// TestWorkers: a node is compared with the active ones, and a group with those that are well.
func TestWorkers(t *testing.T) {
	o, report := hotFleet(t)
	report.Nodes[3].Straggler = true
	report.Nodes[4].State = nodesignal.StateIdle
	x := newExplainer(createDefaultConfig().(*Config), &o.views)
	assert.Len(t, slices.Collect(x.workers(report.Nodes, false, "n2")), 6)
	assert.Len(t, slices.Collect(x.workers(report.Nodes, true, "n2")), 5)
}
