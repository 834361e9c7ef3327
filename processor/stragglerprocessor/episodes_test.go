// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/episode"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/test/eventdoc"
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
	o.observe(t.Context(), e, hardware(8, "n2"), noon)
	o.observe(t.Context(), e, fleet(1, 1, 1, 1, 1, 1, 1, 1), noon)
	return o, e.Tick(noon)
}

// hardware is what the nvml receivers of n nodes say.
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
			gauge(rm, gpusemconv.MetricTemperature, temperature, "hw.id", id, "hw.sensor_location", "gpu")
			gauge(rm, gpusemconv.MetricGPUThrottleActive, throttled, "hw.id", id, "reason", "hw_thermal")
		}
	}
	return md
}

func onset() episode.Event {
	return episode.Event{
		Kind: episode.EventOnset, Subject: episode.SubjectNode, ID: "e1",
		Cluster: "prod", Group: "J/stage-0", Node: "n2", Peers: []string{"J", "stage-0"},
		Signal: nodesignal.Throughput, Severity: episode.SeverityMajor,
		At: noon.Add(time.Minute), Since: noon, Confidence: 0.75,
		Gap: 0.125, Value: 8.75, Median: 10, Compared: true, Rank: 1, Active: 8, NodeCount: 1,
	}
}

func explainerOf(o *observer) *explainer {
	return newExplainer(createDefaultConfig().(*Config), o.facts)
}

// complete returns the record of an event of hotFleet, and its sentence.
func complete(t *testing.T, ev episode.Event) plog.ResourceLogs {
	t.Helper()
	o, report := hotFleet(t)
	report.Events = []episode.Event{ev}
	found := explainerOf(o).episodes(report)
	require.Len(t, found, 1)
	return found[0].record(&o.ids, "v", ev.At.Add(time.Second)).ResourceLogs().At(0)
}

func theRecord(rl plog.ResourceLogs) plog.LogRecord { return rl.ScopeLogs().At(0).LogRecords().At(0) }

func TestAnOnsetSaysAllThatIsKnown(t *testing.T) {
	rl := complete(t, onset())
	assert.Equal(t, map[string]any{
		"k8s.cluster.name": "prod", "host.name": "n2", "gpu.job.id": "J", "gpu.job.role": "stage-0",
	}, rl.Resource().Attributes().AsRaw())
	assert.Equal(t, metadata.ScopeName, rl.ScopeLogs().At(0).Scope().Name())
	lr := theRecord(rl)
	assert.Equal(t, "gpu.straggler.episode", lr.EventName())
	assert.Equal(t, noon.Add(time.Minute), lr.Timestamp().AsTime())
	assert.Equal(t, noon.Add(time.Minute+time.Second), lr.ObservedTimestamp().AsTime())
	assert.Equal(t, plog.SeverityNumberWarn, lr.SeverityNumber())
	assert.Equal(t, "Warn", lr.SeverityText())
	assert.Equal(t, "STRAGGLER n2: its throughput has been 12.5 % behind its peers' since 2026-03-01T12:00:00Z, "+
		"8.75 against a median of 10 among the 8 active nodes of J/stage-0 (confidence 0.75); "+
		"reason hw_thermal of GPU-2-0 (hw_thermal 1, peers 0); the job loses 8 GPU-hours per hour. "+
		"Check fans, airflow and coolant of the node: the GPU is too hot and its hardware slows it down", lr.Body().Str())
	assert.Equal(t, map[string]any{
		"gpu.straggler.episode.id": "e1", "gpu.straggler.phase": "onset", "gpu.straggler.subject": "node",
		"gpu.straggler.severity": "major", "gpu.straggler.since": "2026-03-01T12:00:00.000Z",
		"gpu.peer_group": "J/stage-0", "gpu.signal": "throughput", "gpu.straggler.gap": 0.125, "gpu.straggler.allocations": []any{"job=12"},
		"gpu.straggler.value": 8.75, "gpu.straggler.peers.median": 10.0, "gpu.straggler.peers.active": int64(8),
		"gpu.straggler.rank": int64(1), "gpu.straggler.confidence": 0.75, "gpu.straggler.gpu_hours_lost_per_hour": 8.0,
		"gpu.straggler.reason": "hw_thermal", "gpu.straggler.observation": false, "gpu.straggler.action": "check_cooling",
		"hw.id": "GPU-2-0",
		"gpu.straggler.evidence": []any{
			"fact=hw_thermal value=1 peers=0 unit=1 gpu=GPU-2-0",
			"fact=temperature value=91 peers=60 unit=Cel gpu=GPU-2-0",
		},
	}, lr.Attributes().AsRaw())
}

// TestTheSmallestCulpritComesFirst: the rank, and apart from it the device that
// the reason points at.
func TestTheSmallestCulpritComesFirst(t *testing.T) {
	rank := nodesignal.Subject{GPU: "GPU-2-5", Rank: nodesignal.OrdinalOf(21), LocalRank: nodesignal.OrdinalOf(5)}
	for name, tt := range map[string]struct {
		node     string
		of       nodesignal.Subject
		sentence string
		want     map[string]any
	}{
		"the reason is another GPU's": {
			"n2", rank, "STRAGGLER rank 21 (GPU-2-5, local rank 5) of n2: the node's throughput has been 12.5 % behind",
			map[string]any{"gpu.job.rank": int64(21), "gpu.job.local_rank": int64(5), "gpu.job.rank.hw.id": "GPU-2-5", "hw.id": "GPU-2-0"},
		},
		"without a reason": {
			"n3", rank, "STRAGGLER rank 21 (GPU-2-5, local rank 5) of n3: ",
			map[string]any{"gpu.job.rank": int64(21), "gpu.job.local_rank": int64(5), "gpu.job.rank.hw.id": "GPU-2-5", "hw.id": "GPU-2-5"},
		},
		"a rank alone": {
			"n3", nodesignal.Subject{Rank: nodesignal.OrdinalOf(0)}, "STRAGGLER rank 0 of n3: ", map[string]any{"gpu.job.rank": int64(0)},
		},
		"a forged name": {
			"n3",
			nodesignal.Subject{GPU: "GPU\nSTRAGGLER n1"},
			`STRAGGLER "GPU\nSTRAGGLER n1" of n3: `,
			map[string]any{"gpu.job.rank.hw.id": "GPU\nSTRAGGLER n1", "hw.id": "GPU\nSTRAGGLER n1"},
		},
		"nobody": {"n3", nodesignal.Subject{}, "STRAGGLER n3: its throughput", map[string]any{}},
	} {
		t.Run(name, func(t *testing.T) {
			ev := onset()
			ev.Node, ev.Culprit = tt.node, tt.of
			lr := theRecord(complete(t, ev))
			assert.Contains(t, lr.Body().Str(), tt.sentence)
			got := lr.Attributes().AsRaw()
			maps.DeleteFunc(got, func(key string, _ any) bool {
				return !slices.Contains([]string{"gpu.job.rank", "gpu.job.local_rank", "gpu.job.rank.hw.id", "hw.id"}, key)
			})
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestWhatIsNotKnownIsLeftOut(t *testing.T) {
	ev := onset()
	ev.Node, ev.Since, ev.Rank, ev.Severity = "n3", time.UnixMilli(0), 0, episode.SeverityCritical
	lr := theRecord(complete(t, ev))
	a := lr.Attributes().AsRaw()
	assert.Equal(t, plog.SeverityNumberError, lr.SeverityNumber())
	assert.Equal(t, "unexplained", a["gpu.straggler.reason"])
	assert.Equal(t, "burn_in", a["gpu.straggler.action"])
	assert.Contains(t, lr.Body().Str(), "since before it was watched, 8.75")
	assert.Contains(t, lr.Body().Str(), "; unexplained; the job loses 8 GPU-hours per hour. Drain the node")
	for _, key := range []string{"gpu.straggler.since", "gpu.straggler.rank", "hw.id", "gpu.straggler.evidence", "gpu.straggler.cause"} {
		assert.NotContains(t, a, key)
	}

	ev.Compared = false
	lr = theRecord(complete(t, ev))
	assert.Contains(t, lr.Body().Str(), "since before it was watched, among the 8 active nodes")
	assert.NotContains(t, lr.Attributes().AsRaw(), gpusemconv.AttrEpisodeValue)
	assert.NotContains(t, lr.Attributes().AsRaw(), gpusemconv.AttrEpisodePeersMedian)

	ev.Peers = []string{"", "stage-0"}
	assert.NotContains(t, theRecord(complete(t, ev)).Attributes().AsRaw(), gpusemconv.AttrEpisodeCost, "nobody waits without a job")
	ev = onset()
	ev.Gap = -0.01
	assert.NotContains(t, theRecord(complete(t, ev)).Attributes().AsRaw(), gpusemconv.AttrEpisodeCost)

	o, report := hotFleet(t)
	o.facts = newFactReader(createDefaultConfig().(*Config))
	report.Events = []episode.Event{onset()}
	assert.False(t, explainerOf(o).episodes(report)[0].hasCost, "how many GPUs they have is not known")
}

func TestOtherEpisodes(t *testing.T) {
	severity := onset()
	severity.Kind, severity.Severity, severity.Gap = episode.EventSeverity, episode.SeverityCritical, 0.3
	end := onset()
	end.Kind, end.Cause, end.At = episode.EventEnd, episode.CauseRecovered, noon.Add(90*time.Second)
	many := onset()
	many.Subject, many.Node, many.Cause, many.NodeCount, many.Nodes = episode.SubjectGroup, "", episode.CauseStragglers, 2, []string{"n1", "n2"}
	worse, more, unexplained := many, many, many
	unexplained.Nodes = []string{"n3", "n4"}
	worse.Kind, worse.Severity = episode.EventSeverity, episode.SeverityCritical
	more.Kind = episode.EventUpdate
	over := many
	over.Kind, over.Cause = episode.EventEnd, episode.CauseIdle
	missing := onset()
	missing.Subject = episode.SubjectMissing
	back := missing
	back.Kind, back.Cause = episode.EventEnd, episode.CauseRecovered
	silent := missing
	silent.Node, silent.NodeCount = "", 3
	for _, tc := range []struct {
		ev       episode.Event
		severity plog.SeverityNumber
		body     string
		has      map[string]any
		hasNot   []string
	}{
		{severity, plog.SeverityNumberError, "straggler n2 is critical now: its throughput has been 30.0 % behind", map[string]any{
			"gpu.straggler.phase": "severity", "gpu.straggler.reason": "hw_thermal", "gpu.straggler.gpu_hours_lost_per_hour": 19.2,
		}, nil},
		{end, plog.SeverityNumberInfo, "n2 is no straggler any more: recovered after 1m30s", map[string]any{
			"gpu.straggler.duration": 90.0, "gpu.straggler.cause": "recovered", "gpu.straggler.severity": "major",
		}, []string{"gpu.straggler.reason", "gpu.straggler.gpu_hours_lost_per_hour", "hw.id"}},
		{many, plog.SeverityNumberWarn, "INCIDENT: 2 nodes of the 8 active ones of group J/stage-0 of cluster prod have fallen behind since 2026-03-01T12:00:00Z, by 12.5 % of throughput; reason hw_thermal on 1 of 2 (hw_thermal 1, peers 0); the job loses 8 GPU-hours per hour. Check fans", map[string]any{
			"gpu.straggler.reason": "hw_thermal", "gpu.straggler.observation": false, "gpu.straggler.action": "check_cooling",
			"gpu.straggler.reason.nodes": int64(1), "gpu.straggler.reason.nodes_asked": int64(2),
			"gpu.straggler.evidence": []any{"fact=hw_thermal value=1 peers=0 unit=1", "fact=temperature value=91 peers=60 unit=Cel"},
			"gpu.straggler.nodes":    []any{"n1", "n2"}, "gpu.straggler.node_count": int64(2), "gpu.straggler.cause": "stragglers",
			"gpu.straggler.peers.median": 10.0, "gpu.straggler.value": 8.75,
		}, []string{"hw.id", "gpu.straggler.rank", "gpu.straggler.confidence"}},
		{unexplained, plog.SeverityNumberWarn, "by 12.5 % of throughput; unexplained; the job loses 8 GPU-hours per hour. Look for what the nodes share", map[string]any{
			"gpu.straggler.reason": "unexplained", "gpu.straggler.action": "check_shared", "gpu.straggler.reason.nodes": int64(0),
		}, []string{"gpu.straggler.evidence"}},
		{worse, plog.SeverityNumberError, "incident is critical now: 2 nodes of the 8 active ones of group J/stage-0", map[string]any{
			"gpu.straggler.phase": "severity", "gpu.straggler.node_count": int64(2),
		}, nil},
		{more, plog.SeverityNumberWarn, "incident has more nodes now: 2 nodes of the 8 active ones", map[string]any{
			"gpu.straggler.phase": "update", "gpu.straggler.nodes": []any{"n1", "n2"},
		}, nil},
		{over, plog.SeverityNumberInfo, "the incident of group J/stage-0 of cluster prod is over: idle after 1m0s", nil, []string{"gpu.straggler.gap", "gpu.straggler.value", "gpu.straggler.peers.median"}},
		{missing, plog.SeverityNumberWarn, "MISSING: nothing is heard of n2 of group J/stage-0 of cluster prod since 2026-03-01T12:00:00Z", nil, []string{
			"gpu.signal", "gpu.straggler.gap", "gpu.straggler.node_count", "gpu.straggler.nodes", "gpu.straggler.reason",
		}},
		{back, plog.SeverityNumberInfo, "the silence of n2 is over: recovered after 1m0s", nil, nil},
		{silent, plog.SeverityNumberWarn, "MISSING: nothing is heard of 3 nodes of group", map[string]any{"gpu.straggler.node_count": int64(3)}, nil},
	} {
		t.Run(tc.body, func(t *testing.T) {
			lr := theRecord(complete(t, tc.ev))
			assert.Equal(t, tc.severity, lr.SeverityNumber())
			assert.Contains(t, lr.Body().Str(), tc.body)
			a := lr.Attributes().AsRaw()
			for key, want := range tc.has {
				if f, ok := want.(float64); ok {
					assert.InDelta(t, f, a[key], 1e-9, key)
				} else {
					assert.Equal(t, want, a[key], key)
				}
			}
			for _, key := range tc.hasNot {
				assert.NotContains(t, a, key)
			}
		})
	}
}

// TestOnsetsNameTheJobs of the GPU at fault, else of the node.
func TestOnsetsNameTheJobs(t *testing.T) {
	o, report := hotFleet(t)
	md := pmetric.NewMetrics()
	gauge(resource(md, map[string]any{"host.name": "n2", "k8s.cluster.name": "prod"}), gpusemconv.MetricGPUAllocation, 1,
		"hw.id", "GPU-2-1", gpusemconv.AttrJobID, "13", gpusemconv.AttrShared, "true")
	o.observe(t.Context(), straggler.New(createDefaultConfig().(*Config).engine()), md, noon)
	x := explainerOf(o)
	told := func(ev episode.Event) any {
		report.Events = []episode.Event{ev}
		return theRecord(x.episodes(report)[0].record(&o.ids, "v", ev.At).ResourceLogs().At(0)).Attributes().AsRaw()[gpusemconv.AttrEpisodeAllocations]
	}
	of, silent := onset(), onset()
	of.Culprit, silent.Subject = nodesignal.Subject{GPU: "GPU-2-1"}, episode.SubjectMissing
	assert.Equal(t, []any{"job=12", "job=13"}, told(onset()))
	assert.Equal(t, []any{"job=13"}, told(of))
	assert.Equal(t, []any{"job=12", "job=13"}, told(silent))
	of.Kind = episode.EventEnd
	assert.Nil(t, told(of))
}

// TestAnEndSaysWhy: the reason that was told last, though the facts are gone.
func TestAnEndSaysWhy(t *testing.T) {
	o, report := hotFleet(t)
	x := explainerOf(o)
	x.most = 2
	record := func(ev episode.Event) plog.LogRecord {
		report.Events = []episode.Event{ev}
		return theRecord(x.episodes(report)[0].record(&o.ids, "v", ev.At).ResourceLogs().At(0))
	}
	cool, end := onset(), onset()
	cool.Node, cool.ID = "n3", "e2"
	end.Kind, end.Cause, end.At = episode.EventEnd, episode.CauseRecovered, noon.Add(90*time.Second)
	group := onset()
	group.Subject, group.Node, group.ID, group.Nodes = episode.SubjectGroup, "", "e3", []string{"n2"}

	record(cool)
	worse := cool
	worse.Kind, worse.Node = episode.EventSeverity, "n2"
	record(worse) // it is known now
	record(onset())
	record(group)
	assert.Len(t, x.told, 2, "bounded")
	x.facts = newFactReader(createDefaultConfig().(*Config))

	lr := record(end)
	assert.Equal(t, "n2 is no straggler any more: recovered after 1m30s; reason hw_thermal of GPU-2-0", lr.Body().Str())
	a := lr.Attributes().AsRaw()
	assert.Equal(t, []any{"hw_thermal", false, "GPU-2-0"}, []any{a["gpu.straggler.reason"], a["gpu.straggler.observation"], a["hw.id"]})
	for _, key := range []string{"gpu.straggler.action", "gpu.straggler.evidence"} {
		assert.NotContains(t, a, key, "there is nothing to do any more")
	}
	again := end
	again.ID = "e2"
	assert.Contains(t, record(again).Body().Str(), "; reason hw_thermal of GPU-2-0", "the last word counts")
	assert.NotContains(t, record(again).Attributes().AsRaw(), "gpu.straggler.reason", "nothing is kept of what is over")
	assert.Empty(t, x.told)

	x.facts = o.facts
	record(group)
	over := group
	over.Kind, over.Cause = episode.EventEnd, episode.CauseRecovered
	assert.Contains(t, record(over).Body().Str(), "is over: recovered after 1m0s; reason hw_thermal")
}

// TestEpisodesAreDocumented compares docs/events.md with what a record can have.
func TestEpisodesAreDocumented(t *testing.T) {
	group := onset()
	group.Subject, group.Node, group.Cause, group.Nodes, group.NodeCount = episode.SubjectGroup, "", episode.CauseStragglers, []string{"n2"}, 1
	end := onset()
	end.Kind, end.Cause = episode.EventEnd, episode.CauseRecovered
	end.Culprit = nodesignal.Subject{GPU: "GPU-2-0", Rank: nodesignal.OrdinalOf(0), LocalRank: nodesignal.OrdinalOf(0)}
	all := map[string]any{}
	link := episode.Event{Subject: episode.SubjectLink, Cluster: "prod", Group: "42", Job: "42", Detail: "tp:0 (0xa)"}
	for _, ev := range []episode.Event{onset(), group, end, link} {
		maps.Copy(all, theRecord(complete(t, ev)).Attributes().AsRaw())
	}
	want, err := eventdoc.Attributes("../../docs/events.md", gpusemconv.EventStraggler)
	require.NoError(t, err)
	assert.Equal(t, want, slices.Sorted(maps.Keys(all)))
}

func TestANameCannotForgeASentence(t *testing.T) {
	ev := onset()
	ev.Node = "evil\nSTRAGGLER forged"
	lr := theRecord(complete(t, ev))
	assert.Contains(t, lr.Body().Str(), `STRAGGLER "evil\nSTRAGGLER forged": `)
	ev = onset()
	ev.Cluster = "evil\ncluster"
	ev.Subject = episode.SubjectMissing
	assert.NotContains(t, theRecord(complete(t, ev)).Body().Str(), "\n")
}

// A reason that was there long before the node fell behind is told as such.
func TestAnOldReasonSaysSinceWhen(t *testing.T) {
	ev := onset()
	ev.Since, ev.At = noon.Add(10*time.Minute), noon.Add(11*time.Minute)
	lr := theRecord(complete(t, ev))
	assert.Contains(t, lr.Body().Str(), "; reason hw_thermal of GPU-2-0 (hw_thermal 1, peers 0, and was there before);")
	evidence := lr.Attributes().AsRaw()["gpu.straggler.evidence"].([]any)
	assert.Equal(t, "fact=hw_thermal value=1 peers=0 unit=1 since=unknown gpu=GPU-2-0", evidence[0])

	o, report := hotFleet(t)
	o.observe(t.Context(), straggler.New(createDefaultConfig().(*Config).engine()), hardware(8, "n3"), noon.Add(5*time.Minute))
	ev.Node = "n3"
	report.Events = []episode.Event{ev}
	lr = theRecord(explainerOf(o).episodes(report)[0].record(&o.ids, "v", ev.At).ResourceLogs().At(0))
	assert.Contains(t, lr.Body().Str(), "peers 0, and was there before, since 2026-03-01T12:05:00Z);")
	evidence = lr.Attributes().AsRaw()["gpu.straggler.evidence"].([]any)
	assert.Equal(t, "fact=hw_thermal value=1 peers=0 unit=1 since=2026-03-01T12:05:00.000Z gpu=GPU-3-0", evidence[0])
}
