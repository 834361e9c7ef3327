// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/plog"
	otelattribute "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/otlp"
)

// sink stands in for the extension.
type sink struct {
	component.StartFunc
	component.ShutdownFunc
	state *fleetstate.Store
}

func (s *sink) State() *fleetstate.Store { return s.state }

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

func newTestExporter(tb testing.TB) *fleetExporter {
	tb.Helper()
	e, err := newExporter(createDefaultConfig().(*Config), componenttest.NewNopTelemetrySettings())
	require.NoError(tb, err)
	e.now = func() time.Time { return start }
	s := &sink{state: fleetstate.New(fleetstate.DefaultConfig())}
	require.NoError(tb, e.start(tb.Context(), host{e.cfg.Extension: s}))
	tb.Cleanup(func() { require.NoError(tb, e.shutdown(context.WithoutCancel(tb.Context()))) })
	return e
}

func (e *fleetExporter) push(t *testing.T, b *reportBuilder) {
	t.Helper()
	require.NoError(t, e.pushMetrics(t.Context(), b.md))
}

func (e *fleetExporter) view(t *testing.T, cluster, node string) fleetstate.View {
	t.Helper()
	v, ok := e.state.Node(fleetstate.Key{Cluster: cluster, Node: node}, e.now())
	require.True(t, ok)
	return v
}

func TestStart(t *testing.T) {
	set, f := exportertest.NewNopSettings(metadata.Type), NewFactory()
	m, err := f.CreateMetrics(t.Context(), set, f.CreateDefaultConfig())
	require.NoError(t, err)
	l, err := f.CreateLogs(t.Context(), set, f.CreateDefaultConfig())
	require.NoError(t, err)
	for _, c := range []component.Component{m, l} {
		require.ErrorContains(t, c.Start(t.Context(), host{}), "`extension` is \"fleet_view\", which `service::extensions` does not list")
		require.NoError(t, c.Shutdown(context.WithoutCancel(t.Context())))
	}
}

// TestFullReport takes a report of a node as the nvml receiver sends it.
func TestFullReport(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, &reportBuilder{md: report("n1", 3)})
	v := e.view(t, "bench", "n1")
	assert.Equal(t, start.UnixMilli(), v.Seen.UnixMilli())
	assert.Equal(t, "id-of-n1", v.HostID)
	assert.Equal(t, fleetstate.Healthy, v.Health)
	require.Len(t, v.GPUs, 8)
	g := &v.GPUs[2]
	assert.Equal(t, uuid(2), g.UUID)
	assert.Equal(t, "NVIDIA H100 80GB HBM3", g.Model)
	assert.Equal(t, []any{2, "16500000", "570.1", "0000:18:00.0", "ok", "none"}, []any{g.Index, g.Serial, g.Driver, g.BusID, g.UpReason, g.Action})
	for f, want := range map[reading.Field]float64{
		reading.Up: 1, reading.Health: 100, reading.Temperature: 55, reading.MemoryTemperature: 65,
		reading.Power: 605, reading.PowerLimit: 700, reading.Utilization: 0.9,
		reading.SMClock: 1.895e9, reading.SMClockLimit: 1.98e9, reading.MemoryUsed: 70e9 + 5, reading.MemoryLimit: 80e9,
		reading.ECCCorrected: 0, reading.ECCUncorrected: 0, reading.ECCCorrectedTotal: 0, reading.ECCUncorrectedTotal: 0,
		reading.PCIeWidth: 16, reading.PCIeWidthLimit: 16, reading.PCIeReplays: 0,
		reading.RemappedCorrected: 0, reading.RemappedUncorrected: 0,
	} {
		require.NotNil(t, g.Get(f), f)
		assert.InDelta(t, want, *g.Get(f), 0, f)
	}
	assert.Nil(t, g.Get(reading.TensorActivity))
	assert.InDelta(t, 60, v.MaxCelsius, 0)
	assert.InDelta(t, 0.9, v.Utilization, 1e-12)
	assert.InDelta(t, 8*603+28, v.Watts, 1e-9)
}

// TestDifferences takes what a diff processor lets through.
func TestDifferences(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, &reportBuilder{md: report("n1", 0)})
	id := []any{gpusemconv.AttrHWID, uuid(1)}
	state := func(s string) []any { return append([]any{gpusemconv.AttrState, s}, id...) }
	reason := append([]any{gpusemconv.AttrReason, "ecc", gpusemconv.AttrAction, "reset_gpu"}, id...)
	up := func(s string) []any { return append([]any{gpusemconv.AttrReason, s}, id...) }

	e.push(t, newReport("bench", "n1").
		point(gpusemconv.MetricGPUHealthState, 1, state("degraded")...).
		point(gpusemconv.MetricGPUHealthState, 0, state("healthy")...).
		point(gpusemconv.MetricGPUHealthReason, 1, reason...).
		point(gpusemconv.MetricGPUThrottleActive, 1, append([]any{gpusemconv.AttrReason, "hw_thermal"}, id...)...).
		point(gpusemconv.MetricGPUXIDEvents, 2, append([]any{gpusemconv.AttrXIDCode, 63, gpusemconv.AttrXIDClass, "memory"}, id...)...).
		point(gpusemconv.MetricGPUUp, 0, up("lost")...).
		point(gpusemconv.MetricGPUUp, nil, up("ok")...).
		point(gpusemconv.MetricGPUHealthScore, nil, id...))
	v := e.view(t, "bench", "n1")
	require.Len(t, v.GPUs, 8)
	g := &v.GPUs[1]
	assert.Equal(t, fleetstate.Degraded, g.Health)
	assert.Equal(t, fleetstate.Degraded, v.Health)
	assert.Equal(t, []fleetstate.HealthReason{{Reason: "ecc", Action: "reset_gpu"}}, g.Reasons())
	assert.Equal(t, []string{"hw_thermal"}, g.Throttles())
	assert.Equal(t, []fleetstate.Xid{{Code: 63, Class: "memory", Count: 2}}, g.Xids)
	assert.Equal(t, "lost", g.UpReason)
	assert.InDelta(t, 0, *g.Get(reading.Up), 0)
	assert.Nil(t, g.Get(reading.Health))
	assert.InDelta(t, 51, *g.Get(reading.Temperature), 0, "what did not change is still there")

	e.push(t, newReport("bench", "n1").
		point(gpusemconv.MetricGPUHealthState, 0, state("degraded")...).
		point(gpusemconv.MetricGPUHealthState, 1, state("healthy")...).
		point(gpusemconv.MetricGPUHealthReason, 0, reason...).
		point(gpusemconv.MetricGPUXIDEvents, nil, append([]any{gpusemconv.AttrXIDCode, 63}, id...)...).
		point(gpusemconv.MetricGPUThrottleActive, nil, append([]any{gpusemconv.AttrReason, "hw_thermal"}, id...)...).
		point(gpusemconv.MetricTemperature, nil, gpusemconv.AttrHWID, "GPU-unknown", gpusemconv.AttrSensorLocation, "gpu"))
	v = e.view(t, "bench", "n1")
	require.Len(t, v.GPUs, 8, "an end makes no GPU")
	assert.Equal(t, []bool{false, false, false}, []bool{v.GPUs[1].Spells[0].Holds(), v.GPUs[1].Spells[1].Holds(), !v.GPUs[1].Spells[2].Holds()}, "what held, and that it is lost")
	g = &v.GPUs[1]
	assert.Equal(t, fleetstate.Healthy, g.Health)
	assert.Empty(t, g.Reasons())
	assert.Empty(t, g.Throttles())
	assert.Empty(t, g.Xids)
}

func TestNodeAndGroup(t *testing.T) {
	e := newTestExporter(t)
	group := []any{gpusemconv.AttrPeerGroup, "job/stage-0"}
	e.push(t, newReport("c", "n1").attr(gpusemconv.AttrJobID, "1234+1").attr(gpusemconv.AttrJobRole, "stage-0").
		point(gpusemconv.MetricNodeHealthScore, 0.7).
		point(gpusemconv.MetricNodeState, 1, gpusemconv.AttrNodeState, "active").
		point(gpusemconv.MetricNodeState, 0, gpusemconv.AttrNodeState, "idle").
		point(gpusemconv.MetricNodeSignal, 0.05, gpusemconv.AttrSignal, "throughput").
		point(gpusemconv.MetricNodeSignal, 1.0, gpusemconv.AttrSignal, "what is not known").
		point(gpusemconv.MetricAgentDetectionMode, 1, gpusemconv.AttrDetectionMode, "fleet").
		point(gpusemconv.MetricAgentThreshold, 0.9).
		point(gpusemconv.MetricAgentStraggler, 1).
		point(gpusemconv.MetricGPUDevices, 8, gpusemconv.AttrState, "expected").
		point(gpusemconv.MetricGPUDevices, 1, gpusemconv.AttrState, "lost").
		point(gpusemconv.MetricGPUDevices, 2, gpusemconv.AttrState, "pending"))
	e.push(t, newReport("c", "n1").point(gpusemconv.MetricNodeStraggler, 1, group...).point(gpusemconv.MetricNodeSuspicion, 1.4, group...))
	e.push(t, newReport("c", "").
		point(gpusemconv.MetricStragglerMedian, 0.99, group...).
		point(gpusemconv.MetricStragglerNodes, 4, append([]any{gpusemconv.AttrNodeState, "active"}, group...)...).
		point(gpusemconv.MetricStragglerQuorumMet, 1, group...).
		point(gpusemconv.MetricStragglers, 1).
		point(gpusemconv.MetricStragglerSignalMedian, 0.06, append([]any{gpusemconv.AttrSignal, "throughput"}, group...)...).
		point(gpusemconv.MetricStragglerSignalScale, 0.02, append([]any{gpusemconv.AttrSignal, "throughput"}, group...)...).
		point(gpusemconv.MetricStragglerSignalThreshold, 0.05, append([]any{gpusemconv.AttrSignal, "throughput"}, group...)...).
		point(gpusemconv.MetricStragglerSignalScale, 0.03, append([]any{gpusemconv.AttrSignal, "of a newer gateway"}, group...)...).
		point(gpusemconv.MetricStragglerRank, 1, append([]any{gpusemconv.AttrHostName, "n1"}, group...)...).
		point(gpusemconv.MetricStragglerRank, 2, append([]any{gpusemconv.AttrHostName, "never seen"}, group...)...))

	v := e.view(t, "c", "n1")
	assert.Equal(t, []string{"job/stage-0", "1234", "stage-0", "active", "fleet"}, []string{v.Group, v.JobID, v.JobRole, v.State, v.Mode})
	for f, want := range map[reading.Field]float64{
		reading.NodeHealthScore: 0.7, reading.AgentThreshold: 0.9, reading.AgentStraggler: 1, reading.NodeStraggler: 1,
		reading.NodeSuspicion: 1.4, reading.NodeRank: 1, reading.GPUsExpected: 8, reading.GPUsLost: 1, reading.GPUsPending: 2,
	} {
		require.NotNil(t, v.Values.Get(f), f)
		assert.InDelta(t, want, *v.Values.Get(f), 0, f)
	}
	want := nodesignal.Values{}
	want.Set(nodesignal.Throughput, 0.05)
	assert.Equal(t, want, v.Signals)
	assert.Equal(t, 1, e.state.Nodes(), "a rank makes no node")

	g, ok := e.state.Group(fleetstate.GroupKey{Cluster: "c", Group: "job/stage-0"})
	require.True(t, ok)
	assert.InDelta(t, 0.99, *g.Get(reading.GroupMedian), 0)
	assert.True(t, g.Flag(reading.GroupQuorum))
	assert.Equal(t, map[string]int64{"active": 4}, g.Nodes)
	assert.InDelta(t, 0.06, g.Medians.V[nodesignal.Throughput], 0)
	assert.InDelta(t, 0.02, g.Scales.V[nodesignal.Throughput], 0)
	assert.InDelta(t, 0.05, g.Thresholds.V[nodesignal.Throughput], 0)
	assert.Nil(t, g.Get(reading.GroupStragglers))
	g, ok = e.state.Group(fleetstate.GroupKey{Cluster: "c"})
	require.True(t, ok, "the whole cluster")
	assert.InDelta(t, 1, *g.Get(reading.GroupStragglers), 0)

	for why := range unjudged.Count {
		e.push(t, newReport("c", "n1").point(gpusemconv.MetricNodeUnjudged, int(why), group...))
		v = e.view(t, "c", "n1")
		require.NotNil(t, v.Values.Get(reading.NodeUnjudged), "%s", why)
		assert.InDelta(t, float64(why), *v.Values.Get(reading.NodeUnjudged), 0, "%s", why)
	}

	// The node moves to another group; the end of the former verdict comes last.
	e.push(t, newReport("c", "n1").point(gpusemconv.MetricNodeStraggler, 0, gpusemconv.AttrPeerGroup, "other").
		point(gpusemconv.MetricNodeSuspicion, 0.3, gpusemconv.AttrPeerGroup, "other").
		point(gpusemconv.MetricNodeStraggler, nil, group...).point(gpusemconv.MetricNodeSuspicion, nil, group...))
	onList := func(group string, rank any) *reportBuilder {
		return newReport("c", "").point(gpusemconv.MetricStragglerRank, rank, gpusemconv.AttrHostName, "n1", gpusemconv.AttrPeerGroup, group)
	}
	e.push(t, onList("other", 3))
	e.push(t, onList("job/stage-0", nil))
	v = e.view(t, "c", "n1")
	assert.Equal(t, "other", v.Group)
	for f, want := range map[reading.Field]float64{reading.NodeStraggler: 0, reading.NodeSuspicion: 0.3, reading.NodeRank: 3} {
		require.NotNil(t, v.Values.Get(f), f)
		assert.InDelta(t, want, *v.Values.Get(f), 0, f)
	}
	e.push(t, onList("other", nil))
	assert.Nil(t, e.view(t, "c", "n1").Values.Get(reading.NodeRank), "on the list no more")
}

// TestSignsOfLife: a node's own report is one, a verdict on it is none.
func TestSignsOfLife(t *testing.T) {
	e := newTestExporter(t)
	now := start
	e.now = func() time.Time { return now }
	e.push(t, newReport("c", "n").point(gpusemconv.MetricNodeHealthScore, 0.9))
	assert.Equal(t, start, e.view(t, "c", "n").Seen.UTC())

	now = now.Add(30 * time.Second)
	e.push(t, newReport("c", "n").point(gpusemconv.MetricNodeStraggler, 0, gpusemconv.AttrPeerGroup, "g").
		point(gpusemconv.MetricNodeSuspicion, 0.1, gpusemconv.AttrPeerGroup, "g"))
	assert.Equal(t, start, e.view(t, "c", "n").Seen.UTC(), "the gateway's verdict is no sign of life")

	beat := start.Add(20 * time.Second)
	e.push(t, newReport("c", "n").point(gpusemconv.MetricNodeHeartbeat, int(beat.Unix())).point(gpusemconv.MetricNodeHealthScore, 0.8))
	assert.Equal(t, beat, e.view(t, "c", "n").Seen.UTC(), "a heartbeat has its own time")

	e.push(t, newReport("c", "n").point(gpusemconv.MetricNodeHeartbeat, int(start.Add(time.Hour).Unix())))
	assert.Equal(t, now, e.view(t, "c", "n").Seen.UTC(), "nothing is seen in the future")

	e.push(t, newReport("c", "n").point(gpusemconv.MetricNodeHeartbeat, int(start.Unix())))
	assert.Equal(t, now, e.view(t, "c", "n").Seen.UTC(), "an old report changes nothing")

	now = now.Add(61 * time.Second)
	e.push(t, newReport("c", "n").point(gpusemconv.MetricNodeHeartbeat, -1))
	assert.Equal(t, gpusemconv.StateMissing, e.view(t, "c", "n").State, "a heartbeat without a time that can be is no sign of life")
}

// TestEpisodes: a record makes an episode of the resource's node, and another ends it.
func TestEpisodes(t *testing.T) {
	e := newTestExporter(t)
	record := func(ep episode.Episode) plog.Logs {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		rl.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "n1")
		rl.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, "c")
		records := rl.ScopeLogs().AppendEmpty().LogRecords()
		records.AppendEmpty().SetEventName(gpusemconv.EventXid)
		otlp.Encode(&ep, records.AppendEmpty(), ep.Updated)
		return ld
	}
	ep := episode.Episode{
		ID: "e1", Phase: episode.PhaseOnset, Subject: episode.SubjectNode, Since: start, Updated: start, Reason: "thermal",
		Evidence: []episode.Evidence{{Fact: "hot"}},
	}
	require.NoError(t, e.pushLogs(t.Context(), record(ep)))
	list := e.state.Episodes(&fleetstate.EpisodeFilter{})
	require.Len(t, list, 1, "other events are no episodes")
	assert.Equal(t, []string{"c", "n1"}, []string{list[0].Cluster, list[0].Node})
	assert.True(t, list[0].Open())

	e.now = func() time.Time { return start.Add(time.Minute) }
	ep.Evidence = nil
	ep.End(e.now(), episode.CauseRecovered)
	require.NoError(t, e.pushLogs(t.Context(), record(ep)))
	list = e.state.Episodes(&fleetstate.EpisodeFilter{})
	require.Len(t, list, 1)
	assert.True(t, list[0].Ended.Equal(start.Add(time.Minute)))
	assert.Len(t, list[0].Evidence, 1, "what it was is known from its onset")
}

func TestWhoHoldsAGPU(t *testing.T) {
	e := newTestExporter(t)
	holds := func(node string, v any, key, value string) {
		e.push(t, newReport("c", node).point(gpusemconv.MetricGPUAllocation, v, key, value, gpusemconv.AttrHWID, "g", gpusemconv.AttrShared, "true"))
	}
	holders := func() []reading.Holder { v := e.view(t, "c", "n"); return v.Held.Of("g") }
	e.push(t, newReport("c", "n").point(gpusemconv.MetricGPUUp, 1, gpusemconv.AttrHWID, "g", gpusemconv.AttrReason, "ok"))
	holds("n", 1, gpusemconv.AttrJobID, "12")
	holds("n", 1, gpusemconv.AttrPodName, "p")
	pod := reading.Holder{Pod: "p", Shared: true}
	assert.Equal(t, []reading.Holder{pod, {Job: "12", Shared: true}}, holders())
	holds("n", nil, gpusemconv.AttrJobID, "12")
	assert.Equal(t, []reading.Holder{pod}, holders())
	holds("m", nil, gpusemconv.AttrPodName, "p")
	assert.Empty(t, e.view(t, "c", "m").GPUs, "an end makes no GPU")
}

// TestAJobWithSteps: the view knows which nodes count their throughput in steps.
func TestAJobWithSteps(t *testing.T) {
	e := newTestExporter(t)
	steps := func() *float64 { v := e.view(t, "c", "n"); return v.Values.Get(reading.StepDuration) }
	e.push(t, newReport("c", "n").point(gpusemconv.MetricAppStepDuration, .5, gpusemconv.AttrJobRank, "3"))
	assert.InDelta(t, .5, *steps(), 0)
	e.push(t, newReport("c", "n").point(gpusemconv.MetricAppStepDuration, nil, gpusemconv.AttrJobRank, "3"))
	assert.Nil(t, steps(), "the job is over")
}

// TestRefusedReadings: they are counted, and leave what the view had.
func TestRefusedReadings(t *testing.T) {
	b := newReport("c", "n")
	b.fullGPU(0, 1)
	b.fullGPU(1, 1)
	b.point(gpusemconv.MetricPower, -1.0, gpusemconv.AttrHWID, uuid(1), gpusemconv.AttrHWType, "gpu").
		point(gpusemconv.MetricTemperature, 900.0, gpusemconv.AttrHWID, uuid(1), gpusemconv.AttrSensorLocation, "memory").
		point(gpusemconv.MetricGPUUp, 1).point("some.metric", 1)
	tel := componenttest.NewTelemetry()
	e := newTestExporter(t)
	counting, err := newExporter(e.cfg, tel.NewTelemetrySettings())
	require.NoError(t, err)
	e.reader = counting.reader
	e.push(t, b)
	metadatatest.AssertEqualExporterFleetViewRejected(t, tel, []metricdata.DataPoint[int64]{
		{Attributes: otelattribute.NewSet(otelattribute.String("reason", "subject")), Value: 1},
		{Attributes: otelattribute.NewSet(otelattribute.String("reason", "value_range")), Value: 2},
	}, metricdatatest.IgnoreTimestamp())
	require.NoError(t, tel.Shutdown(t.Context()))
	assert.Nil(t, e.view(t, "c", "n").GPUs[1].Get(reading.Power))
}

// Other hardware of a node is no GPU.
func TestOtherHardwareIsNoGPU(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, newReport("c", "n").
		point(gpusemconv.MetricErrors, 7, gpusemconv.AttrHWID, "mlx5_0", gpusemconv.AttrHWType, "network", gpusemconv.AttrErrorType, "uncorrected").
		point(gpusemconv.MetricErrors, 7, gpusemconv.AttrHWID, "mlx5_1", gpusemconv.AttrErrorType, "symbol").
		point(gpusemconv.MetricPower, 900.0, gpusemconv.AttrHWID, "psu1").
		point(gpusemconv.MetricTemperature, 95.0, gpusemconv.AttrHWID, "CPU0", gpusemconv.AttrSensorLocation, "gpu").
		point(gpusemconv.MetricTemperature, 60.0, gpusemconv.AttrHWID, "GPU-0", gpusemconv.AttrSensorLocation, "gpu").
		point("hw.temperature.limit", 100.0, gpusemconv.AttrHWID, "CPU0", gpusemconv.AttrSensorLocation, "gpu", "hw.limit_type", "throttled").
		point(gpusemconv.MetricPower, 500.0, gpusemconv.AttrHWID, "GPU-0", gpusemconv.AttrHWType, "gpu", gpusemconv.AttrHWParent, "chassis").
		point(gpusemconv.MetricGPUUp, 1, gpusemconv.AttrHWID, "GPU-0", gpusemconv.AttrHWParent, "chassis").
		point(gpusemconv.MetricGPUUtilization, 0.9, gpusemconv.AttrHWID, "GPU-0"))
	v := e.view(t, "c", "n")
	require.Len(t, v.GPUs, 1)
	assert.Equal(t, "GPU-0", v.GPUs[0].UUID)
	assert.InDelta(t, 500, v.Watts, 0)
	assert.InDelta(t, 60, *v.GPUs[0].Get(reading.Temperature), 0, "a GPU may be named after its temperature")
}

// The job of a node ends when its reports have not named it for a minute. A gateway's verdict
// on the job that the node had is no report.
func TestAJobThatEnded(t *testing.T) {
	e := newTestExporter(t)
	job := func() string { return e.view(t, "c", "n").JobID }
	report := func() *reportBuilder { return newReport("c", "n").point(gpusemconv.MetricNodeHealthScore, 0.7) }
	e.push(t, report().attr(gpusemconv.AttrJobID, "12"))
	e.now = func() time.Time { return start.Add(time.Minute) }
	e.push(t, report())
	assert.Equal(t, "12", job(), "another report of the node names it")
	e.now = func() time.Time { return start.Add(61 * time.Second) }
	e.push(t, newReport("c", "n").attr(gpusemconv.AttrJobID, "12").point(gpusemconv.MetricNodeStraggler, 0, gpusemconv.AttrPeerGroup, "12"))
	e.push(t, report())
	assert.Empty(t, job())
}
