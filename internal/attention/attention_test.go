// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func put(s *fleetstate.Store, node string, at time.Time, f func(*fleetstate.Update)) {
	u, _ := s.Begin(fleetstate.Key{Cluster: "c", Node: node}, at)
	u.SetGroup("g")
	u.SetState("active", true)
	if f != nil {
		f(&u)
	}
	u.Commit(at)
}

func gpu(u *fleetstate.Update, index int, h fleetstate.Health, up float64) int {
	j := u.GPU(fmt.Sprintf("GPU-%d", index))
	u.SetInfo(j, fleetstate.Info{Index: index})
	u.SetHealth(j, h, true)
	u.SetUp(j, up, map[bool]string{true: "ok", false: "lost"}[up == 1])
	return j
}

func slow(u *fleetstate.Update) { u.Set(reading.NodeStraggler, 1) }

func line(i *Item) string {
	return fmt.Sprintf("%s %s %s|%s|%s|%s|%s", i.Severity, i.Kind, i.Node, i.Part, i.What, i.Why, i.Next)
}

func lines(l *List) (out []string) {
	for i := range l.Items {
		out = append(out, line(&l.Items[i]))
	}
	return out
}

func TestWorstFirst(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	at := t0.Add(-10 * time.Minute)
	put(s, "well", t0, func(u *fleetstate.Update) { gpu(u, 0, fleetstate.Healthy, 1) })
	put(s, "gone", at, func(u *fleetstate.Update) { gpu(u, 0, fleetstate.Healthy, 1) })
	put(s, "lost", at, func(u *fleetstate.Update) { gpu(u, 3, fleetstate.Degraded, 1) })
	put(s, "lost", t0.Add(-6*time.Minute), func(u *fleetstate.Update) {
		u.SetXid(gpu(u, 3, fleetstate.Degraded, 0), fleetstate.Xid{Code: 79, Count: 1})
	})
	put(s, "lost", t0, func(u *fleetstate.Update) { u.SetGPU(u.GPU("GPU-3"), reading.Power, 1) })
	put(s, "sick", t0, func(u *fleetstate.Update) {
		j := gpu(u, 2, fleetstate.Degraded, 1)
		u.SetReason(j, fleetstate.Reason{Reason: "remap_pending", Action: "reset_gpu"}, true)
		u.SetReason(j, fleetstate.Reason{Reason: "pcie_replays", Action: "none"}, true)
		u.SetReason(j, fleetstate.Reason{Reason: "nvlink_crc", Action: "reset_gpu"}, true)
	})
	put(s, "slow", t0, func(u *fleetstate.Update) { gpu(u, 5, fleetstate.Healthy, 1); slow(u) })
	put(s, "early", t0, slow) // the record is on its way
	s.PutEpisode(&fleetstate.Episode{
		ID: "e1", Subject: fleetstate.SubjectNode, Cluster: "c", Group: "g", Node: "slow", Severity: "major", Signal: "throughput",
		Since: t0.Add(-time.Hour), Updated: t0, Gap: new(0.129), LostGPUHoursPerHour: new(12.0), Reason: "hw_thermal", Action: "check_cooling",
		Culprit: nodesignal.Subject{GPU: "GPU-5", Rank: nodesignal.OrdinalOf(11)}, GPU: "GPU-5",
		Evidence: []fleetstate.Evidence{{Fact: "hw_thermal", Value: new(1.0), Peers: new(0.0)}, {Fact: "hw_thermal_time", Value: new(9.0)}, {Fact: "temperature", Value: new(94.0), Peers: new(61.0)}},
	})
	s.PutEpisode(&fleetstate.Episode{ID: "e2", Subject: fleetstate.SubjectMissing, Cluster: "c", Node: "gone", Since: at, Updated: t0})
	l := Of(s, &Filter{}, t0)
	assert.Equal(t, []string{
		"critical lost_gpu lost|GPU 3|The GPU does not answer.|The driver reported Xid 79.|Drain the node and reboot it; have the GPU serviced if it is lost again.",
		"major straggler slow|rank 11 (GPU 5)|12.9 % behind its peers in throughput.|The hardware held the clocks down because of heat; temperature of the GPU: 94 °C, peers 61 °C.|" +
			"Check fans, airflow and coolant of the node: the GPU is too hot and its hardware slows it down.",
		"major missing_node gone||Nothing is heard of the node; its 1 GPU may still work.||Look whether the node is up, whether its agent runs, and whether it reaches the gateway.",
		"major sick_gpu sick|GPU 2|The health of the GPU is degraded.|A row remapping waits for a GPU reset; and 2 more.|Drain the node and reset the GPU.",
		"major straggler early||Slower than its peers.||Look at what the job does on the node.",
	}, lines(l))
	assert.Equal(t, map[Kind]int{Straggler: 2, LostGPU: 1, SickGPU: 1, MissingNode: 1}, l.Counts)
	lost, gone, sick := l.Items[0], l.Items[2], l.Items[3]
	assert.Equal(t, t0.Add(-6*time.Minute), lost.Since.UTC(), "lost, not sick")
	assert.False(t, lost.SinceBefore)
	assert.True(t, sick.SinceBefore, "it came sick")
	assert.True(t, gone.AtMost)
	assert.Equal(t, "e2", gone.Episode)
	assert.Equal(t, at, gone.Since.UTC(), "last seen")

	assert.Equal(t, lines(l)[1:2], lines(Of(s, &Filter{Kinds: []Kind{Straggler}, Nodes: []string{"slow"}}, t0)))
	assert.Empty(t, Of(s, &Filter{Clusters: []string{"other"}}, t0).Items)
}

// TestWhatNCCLNames: a rank, a communicator, a job.
func TestWhatNCCLNames(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	put(s, "n1", t0, func(u *fleetstate.Update) { gpu(u, 5, fleetstate.Healthy, 1) })
	put(s, "n2", t0, func(u *fleetstate.Update) { gpu(u, 5, fleetstate.Healthy, 1); u.Set(reading.NodeStraggler, 0) })
	rank := nodesignal.Subject{GPU: "GPU-5", Rank: nodesignal.OrdinalOf(3)}
	ep := func(id, subject string, f func(*fleetstate.Episode)) {
		e := &fleetstate.Episode{ID: id, Subject: subject, Cluster: "c", Group: "train", Job: "train", Severity: "major", Since: t0, Updated: t0}
		f(e)
		s.PutEpisode(e)
	}
	ep("r", fleetstate.SubjectNode, func(e *fleetstate.Episode) {
		e.Node, e.Signal, e.Culprit, e.Gap, e.Median, e.Reason, e.Action = "n1", "communication", rank, new(0.3), new(0.4), "unexplained", "burn_in"
	})
	ep("l", fleetstate.SubjectLink, func(e *fleetstate.Episode) {
		e.Communicator, e.Value, e.Median, e.Severity = "dp (0x1)", new(12e9), new(18e9), "minor"
	})
	ep("j", fleetstate.SubjectJob, func(e *fleetstate.Episode) { e.Severity = "critical" })
	const stalled = "critical group_fault "
	assert.Equal(t, stalled+"||Job train stands still: no operation of its ranks ends.|Nobody is known to hold it up.|Look at what the ranks of the job do, such as their stacks.", lines(Of(s, &Filter{}, t0))[0])
	// Later the job is known to wait for a rank.
	ep("j", fleetstate.SubjectJob, func(e *fleetstate.Episode) {
		e.Severity, e.Node, e.Culprit, e.GPU = "critical", "n2", nodesignal.Subject{Rank: rank.Rank}, rank.GPU
	})
	// That the node is no straggler is no news of the job.
	cfg := fleetstate.DefaultConfig()
	s.Expire(t0.Add(time.Second))
	s.Expire(t0.Add(time.Second + cfg.EpisodeDoubt))
	l := Of(s, &Filter{}, t0)
	assert.Equal(t, []string{
		stalled + "n2|rank 3 (GPU 5)|Job train stands still: no operation of its ranks ends.|The other ranks wait for rank 3 (GPU 5) on n2.|Look at what that rank does, and at the node's kernel log.",
		"major straggler n1|rank 3 (GPU 5)|Takes 50 % longer between collectives than its peers; the other ranks of job train wait 30 % of their time for it.|Nothing that was measured explains it.|" +
			"Drain the node and run a burn-in.",
		"minor group_fault ||Communicator dp (0x1) of job train is slow: 12 GB/s instead of 18 GB/s.|Its ranks arrive together, so that none of them is slow.|Look at the links between the nodes of the communicator.",
	}, lines(l))
	assert.Equal(t, []GPU{{"GPU-5", 5}}, l.Items[1].GPUs)
}

// TestManyAreOneItem: the slow of a group but for who has a reason of its own, and the
// silent of a group.
func TestManyAreOneItem(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	for _, n := range []string{"a", "b", "d", "e"} {
		put(s, n, t0, slow)
	}
	for i := range 5 {
		put(s, fmt.Sprintf("n%d", i), t0.Add(-time.Hour), func(u *fleetstate.Update) { gpu(u, i, fleetstate.Healthy, 1) })
	}
	own := fleetstate.Episode{Subject: fleetstate.SubjectNode, Cluster: "c", Group: "g", Severity: "major", Since: t0, Updated: t0, Reason: "unexplained"}
	hot, plain := own, own
	hot.ID, hot.Node, hot.Reason = "hot", "a", "hw_thermal"
	plain.ID, plain.Node = "plain", "b"
	s.PutEpisode(&hot)
	s.PutEpisode(&plain)
	s.PutEpisode(&fleetstate.Episode{
		ID: "rack", Subject: fleetstate.SubjectGroup, Cluster: "c", Group: "g", Severity: "major", Since: t0, Updated: t0, Gap: new(0.2), Signal: "throughput",
		Nodes: []string{"a", "b", "d"}, NodeCount: 3, Reason: "unexplained", Action: "check_shared",
	})
	l := Of(s, &Filter{}, t0)
	require.Len(t, l.Items, 3)
	assert.Equal(t, "Nothing is heard of 5 nodes.", l.Items[0].What)
	assert.InDelta(t, 5, *l.Items[0].CostPerHour, 0)
	assert.Equal(t, "a", l.Items[2].Node)
	assert.Equal(t, "3 nodes slow at once, 20 % behind their peers in throughput.", l.Items[1].What)
	assert.Equal(t, []string{"b", "d", "e"}, l.Items[1].Nodes, "e fell behind after the record")
	assert.Equal(t, map[Kind]int{Straggler: 4, GroupFault: 1, MissingNode: 5, LostGPU: 0, SickGPU: 0}, l.Counts)
}

// TestIDs: they stay when the record of a straggler comes, and no two items share one.
func TestIDs(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	put(s, "n", t0, slow)
	before := Of(s, &Filter{}, t0).Items
	s.PutEpisode(&fleetstate.Episode{ID: "e1", Subject: fleetstate.SubjectNode, Cluster: "c", Group: "g", Node: "n", Since: t0, Updated: t0})
	after := Of(s, &Filter{}, t0).Items
	require.Len(t, before, 1)
	require.Len(t, after, 1)
	assert.Equal(t, before[0].ID, after[0].ID)
	assert.NotEqual(t, idOf(LostGPU, "a", "b/c", ""), idOf(LostGPU, "a/b", "c", ""))
}

// TestPanicIsTold: so many nodes are slow at once that the threshold itself is suspect.
func TestPanicIsTold(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	put(s, "n", t0, nil)
	s.UpdateGroup(fleetstate.GroupKey{Cluster: "c", Group: "g"}, t0, func(g *fleetstate.GroupUpdate) { g.Set(reading.GroupPanic, 1) })
	items := Of(s, &Filter{}, t0).Items
	require.Len(t, items, 1)
	assert.Equal(t, "Many nodes slow at once.", items[0].What)
}

func TestWhatIsNotJudged(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	assert.Equal(t, []string{"No node has reported yet: point an agent at this gateway."}, Of(s, &Filter{}, t0).Waiting)
	for _, n := range []string{"n", "m"} {
		put(s, n, t0, func(u *fleetstate.Update) { u.Set(reading.NodeUnjudged, float64(unjudged.FewPeers)) })
	}
	assert.Equal(t, []string{"2 nodes of g are not judged: Too few peers tell the same signal (min_peers, quorum)."}, Of(s, &Filter{}, t0).Waiting)
	u, ok := s.Begin(fleetstate.Key{Cluster: "other", Node: "n"}, t0)
	require.True(t, ok)
	u.Commit(t0)
	assert.Equal(t, []string{"2 nodes of g in c are not judged: Too few peers tell the same signal (min_peers, quorum)."}, Of(s, &Filter{}, t0).Waiting)
}

func TestGPUsAreNamedByIndexOrUUID(t *testing.T) {
	for want, list := range map[string][]GPU{"GPU 3": {{"GPU-a", 3}}, "GPUs 1, 3": {{"GPU-a", 1}, {"GPU-b", 3}}, "GPU-a": {{"GPU-a", -1}}, "GPU-a, GPU-b": {{"GPU-a", -1}, {"GPU-b", -1}}} {
		assert.Equal(t, want, gpuNames(list))
	}
}

func TestEachActionOfTheRubricHasAdvice(t *testing.T) {
	for _, a := range gpuhealth.Actions {
		assert.NotEmpty(t, a.Advice(), a)
	}
}

// TestEachTroubleIsInOneItem draws fleets, and holds the list to what the store shows.
func TestEachTroubleIsInOneItem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := fleetstate.New(fleetstate.DefaultConfig())
		want := map[string]int{}
		var names, incident []string
		for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
			name := fmt.Sprintf("n%d", i)
			names = append(names, name)
			missing, straggles := rapid.Bool().Draw(t, "missing"), rapid.Bool().Draw(t, "slow")
			at := t0
			if missing {
				at = t0.Add(-time.Hour)
				want["missing "+name]++
			} else if straggles {
				want["slow "+name]++
			}
			put(s, name, at, func(u *fleetstate.Update) {
				if straggles {
					slow(u)
				}
				for g := range rapid.IntRange(0, 3).Draw(t, "gpus") {
					up := rapid.SampledFrom([]float64{1, 1, 0}).Draw(t, "up")
					h := rapid.SampledFrom([]fleetstate.Health{fleetstate.HealthUnknown, fleetstate.Healthy, fleetstate.Degraded, fleetstate.Unhealthy}).Draw(t, "health")
					gpu(u, g, h, up)
					switch id := fmt.Sprintf("%s GPU-%d", name, g); {
					case missing:
					case up == 0:
						want["lost "+id]++
					case h >= fleetstate.Degraded:
						want["sick "+id]++
					}
				}
			})
			if straggles && rapid.Bool().Draw(t, "episode") {
				s.PutEpisode(&fleetstate.Episode{
					ID: name, Subject: fleetstate.SubjectNode, Cluster: "c", Group: "g", Node: name, Since: t0, Updated: t0,
					Severity: rapid.SampledFrom(severities[:]).Draw(t, "severity"), Reason: rapid.SampledFrom([]string{"", "unexplained", "hw_thermal"}).Draw(t, "reason"),
				})
			}
			if straggles && rapid.Bool().Draw(t, "in") {
				incident = append(incident, name)
			}
		}
		if rapid.Bool().Draw(t, "incident") {
			s.PutEpisode(&fleetstate.Episode{
				ID: "rack", Subject: fleetstate.SubjectGroup, Cluster: "c", Group: "g", Severity: "major", Since: t0, Updated: t0, Nodes: incident, NodeCount: int64(len(incident)),
			})
		}
		if rapid.Bool().Draw(t, "silence") {
			s.PutEpisode(&fleetstate.Episode{ID: "away", Subject: fleetstate.SubjectMissing, Cluster: "c", Since: t0, Updated: t0, Nodes: names, NodeCount: int64(len(names))})
		}
		l := Of(s, &Filter{}, t0)
		got := map[string]int{}
		for i := range l.Items {
			item := &l.Items[i]
			require.NotEmpty(t, item.What)
			require.NotEmpty(t, item.Next)
			kind := map[Kind]string{Straggler: "slow ", GroupFault: "slow ", MissingNode: "missing ", LostGPU: "lost ", SickGPU: "sick "}[item.Kind]
			if item.Kind == LostGPU || item.Kind == SickGPU {
				for _, g := range item.GPUs {
					got[kind+item.Node+" "+g.UUID]++
				}
				continue
			}
			for _, n := range append(slices.Clone(item.Nodes), item.Node) {
				if n != "" {
					got[kind+n]++
				}
			}
		}
		require.Equal(t, want, got)
		require.True(t, slices.IsSortedFunc(l.Items, worse))
		require.Equal(t, l, Of(s, &Filter{}, t0), "the order is stable")
		for i := range l.Items {
			for j := range l.Items[:i] {
				require.Positive(t, worse(l.Items[i], l.Items[j]), "the order is total")
			}
		}
	})
}
