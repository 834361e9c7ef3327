// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// tell pushes a log record of a node.
func (e *fleetExporter) tell(t *testing.T, cluster, node, event string, attrs map[string]any) {
	t.Helper()
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
	if node != "" {
		rl.Resource().Attributes().PutStr("host.name", node)
	}
	lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	lr.SetEventName(event)
	lr.SetTimestamp(pcommon.NewTimestampFromTime(e.now()))
	require.NoError(t, lr.Attributes().FromRaw(attrs))
	require.NoError(t, e.pushLogs(t.Context(), ld))
}

func (e *fleetExporter) entries(t *testing.T, cluster, uuid string) (list []string) {
	t.Helper()
	boards, _ := e.ledger.List(&ledger.Filter{Clusters: []string{cluster}, UUIDs: []string{uuid}}, 0, 1)
	require.Len(t, boards, 1)
	for _, x := range boards[0].Entries {
		text := fmt.Sprintf("%s %s %s %s", x.Kind, x.Action, x.Outcome, x.By)
		if x.WholeNode {
			text += " (node)"
		}
		list = append(list, text)
	}
	return list
}

func TestTheLedgerReadsReports(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, &reportBuilder{md: report("n1", 3)})
	boards, total := e.ledger.List(&ledger.Filter{}, 0, 100)
	require.Equal(t, 8, total)
	b := boards[2]
	assert.Equal(t, []string{"bench", "NVIDIA H100 80GB HBM3", "570.1"}, []string{b.Cluster, b.Model, b.Driver})
	require.Len(t, b.Places, 1)
	assert.Equal(t, "n1", b.Places[0].Node)
	assert.NotEmpty(t, b.Places[0].Slot)
	require.NotNil(t, b.Places[0].Index)
}

func TestTheLedgerReadsEvents(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, &reportBuilder{md: report("n1", 3)})
	at := start
	e.now = func() time.Time { return at }
	at = at.Add(time.Minute)
	gpu := uuid(2)
	e.tell(t, "bench", "n1", gpusemconv.EventXid, map[string]any{"hw.id": gpu, "gpu.xid.code": 79, "gpu.xid.class": "x", "hw.gpu.health.action": "reset_gpu"})
	e.tell(t, "bench", "n1", gpusemconv.EventHealthChange, map[string]any{"hw.id": "MIG-1", "hw.parent": gpu, "hw.gpu.health.from": "healthy", "hw.gpu.health.to": "unhealthy", "hw.gpu.health.reasons": []any{"xid"}, "hw.gpu.health.actions": []any{"reset_gpu"}})
	e.tell(t, "bench", "n1", gpusemconv.EventStraggler, map[string]any{
		gpusemconv.AttrEpisodeID: "e1", gpusemconv.AttrEpisodeSubject: "node", gpusemconv.AttrEpisodePhase: "onset", gpusemconv.AttrHWID: gpu, gpusemconv.AttrEpisodeAction: "burn_in",
	})
	action := func(attrs map[string]any) map[string]any {
		out := map[string]any{gpusemconv.AttrActionID: "a1", gpusemconv.AttrActionOutcome: "taken", gpusemconv.AttrActionActor: gpusemconv.ActionActor}
		maps.Copy(out, attrs)
		return out
	}
	for _, attrs := range []map[string]any{
		{gpusemconv.AttrActionStep: "cordon"},
		{gpusemconv.AttrActionStep: "cordon"}, // told twice
		{gpusemconv.AttrActionStep: "notify"},
		{gpusemconv.AttrActionStep: "burn_in", gpusemconv.AttrActionRule: "test_failed", gpusemconv.AttrActionTest: "dcgmi", gpusemconv.AttrActionTestExitCode: 3, gpusemconv.AttrHWID: gpu},
		{gpusemconv.AttrActionStep: "word", gpusemconv.AttrActionRule: "repaired", gpusemconv.AttrActionActor: "ann", gpusemconv.AttrActionReason: "reseated"},
		{gpusemconv.AttrActionStep: "word", gpusemconv.AttrActionRule: "silence", gpusemconv.AttrActionActor: "bob", gpusemconv.AttrActionReason: "psu", gpusemconv.AttrActionUntil: at.Add(time.Hour).Format(time.RFC3339)},
		{gpusemconv.AttrActionStep: "word", gpusemconv.AttrActionRule: "acknowledge", gpusemconv.AttrActionActor: "bob", gpusemconv.AttrActionReason: "mine", gpusemconv.AttrEpisodeID: "e1"},
	} {
		e.tell(t, "bench", "n1", gpusemconv.EventAction, action(attrs))
	}
	assert.ElementsMatch(t, []string{
		"xid reset_gpu  ", "health reset_gpu  ", "episode burn_in  ", "action cordon taken gpu-collector-actions (node)", "test burn_in taken gpu-collector-actions",
		"repair repaired taken ann (node)", "word silence taken bob (node)", "word acknowledge taken bob (node)",
	}, e.entries(t, "bench", gpu))
	assert.NotContains(t, e.entries(t, "bench", uuid(3)), "xid reset_gpu  ")
	s := e.people.Silenced(people.Scope{Cluster: "bench", Node: "n1"}, at)
	require.NotNil(t, s)
	assert.Equal(t, []string{"bob", "psu", people.SourceAction}, []string{s.By, s.Reason, s.Source})
	assert.Equal(t, "mine", e.people.Acknowledged("bench", "e1").Reason)
}

// TestNoClientWritesIntoAnothersLedger: what a client of one cluster says of another's
// board reaches its own record of it, and the other's alone stays as it was.
func TestNoClientWritesIntoAnothersLedger(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, &reportBuilder{md: report("n1", 3)})
	gpu := uuid(2)
	e.tell(t, "evil", "n1", gpusemconv.EventXid, map[string]any{"hw.id": gpu, "gpu.xid.code": 79})
	e.tell(t, "evil", "n1", gpusemconv.EventAction, map[string]any{gpusemconv.AttrActionID: "a", gpusemconv.AttrActionStep: "word", gpusemconv.AttrActionRule: "silence", gpusemconv.AttrActionOutcome: "taken", gpusemconv.AttrActionActor: "x", gpusemconv.AttrActionReason: "r", gpusemconv.AttrActionUntil: start.Add(time.Hour).Format(time.RFC3339)})
	e.tell(t, "bench", "n2", gpusemconv.EventHealthChange, map[string]any{"hw.gpu.health.to": "unhealthy"})
	assert.Empty(t, e.entries(t, "bench", gpu))
	assert.Nil(t, e.people.Silenced(people.Scope{Cluster: "bench", Node: "n1"}, start))
	boards, _ := e.ledger.List(&ledger.Filter{Clusters: []string{"evil"}}, 0, 1)
	assert.Empty(t, boards)

	// Words without bounds, of all kinds.
	long := string(make([]byte, 100_000))
	for i := range 5000 {
		e.tell(t, "evil", fmt.Sprintf("n%d", i), gpusemconv.EventAction, map[string]any{gpusemconv.AttrActionStep: "word", gpusemconv.AttrActionRule: "silence", gpusemconv.AttrActionOutcome: "taken", gpusemconv.AttrActionActor: "x", gpusemconv.AttrActionReason: "r", gpusemconv.AttrActionUntil: start.Add(time.Hour).Format(time.RFC3339), gpusemconv.AttrActionBefore: long[:100]})
	}
	assert.LessOrEqual(t, len(e.people.Silences([]string{"evil"}, false, start)), people.MaxSilences/2)
	e.tell(t, "bench", "n1", gpusemconv.EventAction, map[string]any{gpusemconv.AttrActionStep: "cordon", gpusemconv.AttrActionOutcome: "taken", gpusemconv.AttrActionReason: long, gpusemconv.AttrHWID: gpu})
	assert.Less(t, e.ledger.Bytes(), int64(64<<10))
	_, err := e.people.Silence(people.Silence{Cluster: "bench", Node: "n1", Reason: "r", By: "ann", Until: start.Add(time.Hour)}, start)
	assert.NoError(t, err, "the others have room")
}

// TestTheLedgerReadsCounters: each of them by the catalogue's metric, and an increase of one
// that tells is an entry.
func TestTheLedgerReadsCounters(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, &reportBuilder{md: report("n1", 3)})
	gpu := uuid(2)
	value := map[reading.Field]float64{
		reading.RemappedCorrected: 1, reading.RemappedUncorrected: 2, reading.ECCCorrectedTotal: 30, reading.ECCUncorrectedTotal: 4,
		reading.RetiredSBE: 5, reading.RetiredDBE: 6,
	}
	count := func(more float64) *ledger.Board {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "bench")
		rm.Resource().Attributes().PutStr("host.name", "n1")
		for f, v := range value {
			known, _ := reading.Of(f)
			m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
			m.SetName(known.Name)
			m.SetUnit(known.Unit)
			var points pmetric.NumberDataPointSlice
			if known.Kind == reading.Counter {
				sum := m.SetEmptySum()
				sum.SetIsMonotonic(true)
				sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
				points = sum.DataPoints()
			} else {
				points = m.SetEmptyGauge().DataPoints()
			}
			p := points.AppendEmpty()
			p.SetDoubleValue(v + more)
			p.Attributes().PutStr("hw.id", gpu)
			p.Attributes().PutStr("hw.type", "gpu")
			for k, v := range reading.Attributes(f) {
				p.Attributes().PutStr(k, v)
			}
		}
		require.NoError(t, e.pushMetrics(t.Context(), md))
		boards, _ := e.ledger.List(&ledger.Filter{Clusters: []string{"bench"}, UUIDs: []string{gpu}}, 0, 1)
		require.Len(t, boards, 1)
		return boards[0]
	}
	b := count(0)
	assert.Equal(t, ledger.Counters{
		RemappedCorrected: new(1.0), RemappedUncorrected: new(2.0), ECCCorrected: new(30.0), ECCUncorrected: new(4.0), RetiredSingleBit: new(5.0), RetiredDoubleBit: new(6.0),
	}, b.Counters)
	before := len(b.Entries)
	b = count(1)
	assert.InDelta(t, 7, *b.Counters.RetiredDoubleBit, 0)
	var told []string
	for _, x := range b.Entries[before:] {
		told = append(told, x.Text)
	}
	assert.Len(t, told, 5, "%v: corrected errors alone are no news", told)
}

// TestACounterMayComeBeforeItsBoard: the order of a report's metrics says nothing.
func TestACounterMayComeBeforeItsBoard(t *testing.T) {
	e := newTestExporter(t)
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "bench")
	rm.Resource().Attributes().PutStr("host.name", "n1")
	for _, f := range []reading.Field{reading.RetiredDBE, reading.Info} {
		known, _ := reading.Of(f)
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName(known.Name)
		m.SetUnit(known.Unit)
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetDoubleValue(1)
		p.Attributes().PutStr("hw.id", uuid(0))
		p.Attributes().PutStr("hw.type", "gpu")
		for k, v := range reading.Attributes(f) {
			p.Attributes().PutStr(k, v)
		}
	}
	require.NoError(t, e.pushMetrics(t.Context(), md))
	boards, _ := e.ledger.List(&ledger.Filter{Clusters: []string{"bench"}}, 0, 1)
	require.Len(t, boards, 1)
	require.NotNil(t, boards[0].Counters.RetiredDoubleBit)
}
