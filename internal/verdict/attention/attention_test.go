// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
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
		u.SetXid(gpu(u, 3, fleetstate.Degraded, 0), fleetstate.Xid{Code: 79, Count: 1}, true)
	})
	put(s, "lost", t0, func(u *fleetstate.Update) { u.SetGPU(u.GPU("GPU-3"), reading.Power, 1) })
	put(s, "sick", t0, func(u *fleetstate.Update) {
		j := gpu(u, 2, fleetstate.Degraded, 1)
		u.SetReason(j, fleetstate.HealthReason{Reason: "remap_pending", Action: "reset_gpu"}, true)
		u.SetReason(j, fleetstate.HealthReason{Reason: "pcie_replays", Action: "none"}, true)
		u.SetReason(j, fleetstate.HealthReason{Reason: "nvlink_crc", Action: "reset_gpu"}, true)
	})
	put(s, "slow", t0, func(u *fleetstate.Update) { gpu(u, 5, fleetstate.Healthy, 1); slow(u) })
	put(s, "early", t0, slow) // the record is on its way
	s.PutEpisode(&episode.Episode{
		ID: "e1", Subject: episode.SubjectNode, Cluster: "c", Group: "g", Node: "slow", Severity: episode.SeverityMajor, Signal: "throughput",
		Since: t0.Add(-time.Hour), Updated: t0, Gap: new(0.129), Cost: new(12.0), Reason: "hw_thermal", Action: "check_cooling",
		Culprit: nodesignal.Subject{GPU: "GPU-5", Rank: nodesignal.OrdinalOf(11)}, GPU: "GPU-5",
		Evidence: []episode.Evidence{{Fact: "hw_thermal", Value: new(1.0), Peers: new(0.0)}, {Fact: "hw_thermal_time", Value: new(9.0)}, {Fact: "temperature", Value: new(94.0), Peers: new(61.0)}},
	})
	s.PutEpisode(&episode.Episode{ID: "e2", Subject: episode.SubjectMissing, Cluster: "c", Node: "gone", Since: at, Updated: t0})
	l := Of(s, &Filter{}, t0)
	assert.Equal(t, []string{
		"critical lost_gpu lost|GPU 3|The GPU does not answer.|The driver reported Xid 79.|Drain the node and reboot it.",
		"major straggler slow|rank 11 (GPU 5)|12.9 % behind its peers in throughput.|The hardware held the clocks down because of heat; temperature of the GPU: 94 °C, peers 61 °C.|" +
			"Check fans, airflow and coolant of the node.",
		"major missing_node gone||No report from the node; its 1 GPU may still work.||Look whether the node is up, whether its agent runs, and whether it reaches the gateway.",
		"major sick_gpu sick|GPU 2|The health of the GPU is degraded.|A row remapping waits for a GPU reset; and 2 more.|Drain the node and reset the GPU.",
		"major straggler early||Slower than its peers.||The record says by how much and why. The record comes within a minute.",
	}, lines(l))
	assert.Equal(t, Counts{Nodes: 6, Stragglers: 2, LostGPUs: 1, SickGPUs: 1, Missing: 1}, l.Counts)
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
	ep := func(id string, subject episode.Subject, f func(*episode.Episode)) {
		e := &episode.Episode{ID: id, Subject: subject, Cluster: "c", Group: "train", Job: "train", Severity: episode.SeverityMajor, Since: t0, Updated: t0}
		f(e)
		s.PutEpisode(e)
	}
	ep("r", episode.SubjectNode, func(e *episode.Episode) {
		e.Node, e.Signal, e.Culprit, e.Gap, e.Median, e.Reason, e.Action = "n1", "communication", rank, new(0.3), new(0.4), "unexplained", "burn_in"
	})
	ep("l", episode.SubjectLink, func(e *episode.Episode) {
		e.Communicator, e.Value, e.Median, e.Severity = "dp", new(12e9), new(18e9), episode.SeverityMinor
	})
	ep("j", episode.SubjectJob, func(e *episode.Episode) { e.Severity = episode.SeverityCritical })
	const stalled = "critical group_fault "
	assert.Equal(t, stalled+"||Job train stands still: no operation of its ranks ends.|Nobody is known to hold it up.|Look at what the ranks of the job do, such as their stacks.", lines(Of(s, &Filter{}, t0))[0])
	// Later the job is known to wait for a rank.
	ep("j", episode.SubjectJob, func(e *episode.Episode) {
		e.Severity, e.Node, e.Culprit, e.GPU = episode.SeverityCritical, "n2", nodesignal.Subject{Rank: rank.Rank}, rank.GPU
	})
	// The episode goes on though the node is no straggler.
	cfg := fleetstate.DefaultConfig()
	s.Expire(t0.Add(time.Second))
	s.Expire(t0.Add(time.Second + cfg.EpisodeDoubt))
	l := Of(s, &Filter{}, t0)
	assert.Equal(t, []string{
		stalled + "n2|rank 3 (GPU 5)|Job train stands still: no operation of its ranks ends.|The other ranks wait for rank 3 (GPU 5) on n2.|Look at what that rank does, and at the node's kernel log.",
		"major straggler n1|rank 3 (GPU 5)|Takes 50 % longer between collectives than its peers; the other ranks of job train wait 30 % of their time for it.|Nothing that was measured explains it.|" +
			"Drain the node and run a burn-in.",
		"minor group_fault ||Communicator dp of job train is slow: 12 GB/s instead of 18 GB/s.|Its ranks arrive together, so that none of them is slow.|Look at the links between the nodes of the communicator.",
	}, lines(l))
	assert.Equal(t, []Device{{"GPU-5", new(5)}}, l.Items[1].GPUs)
}

// TestManyAreOneItem: the slow nodes of a group but for one with its own reason, and the missing
// nodes of a group.
func TestManyAreOneItem(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	for _, n := range []string{"a", "b", "d", "e"} {
		put(s, n, t0, slow)
	}
	for i := range 5 {
		put(s, fmt.Sprintf("n%d", i), t0.Add(-time.Hour), func(u *fleetstate.Update) { gpu(u, i, fleetstate.Healthy, 1) })
	}
	own := episode.Episode{Subject: episode.SubjectNode, Cluster: "c", Group: "g", Severity: episode.SeverityMajor, Since: t0, Updated: t0, Reason: "unexplained"}
	hot, plain := own, own
	hot.ID, hot.Node, hot.Reason = "hot", "a", "hw_thermal"
	plain.ID, plain.Node = "plain", "b"
	s.PutEpisode(&hot)
	s.PutEpisode(&plain)
	s.PutEpisode(&episode.Episode{
		ID: "rack", Subject: episode.SubjectGroup, Cluster: "c", Group: "g", Severity: episode.SeverityMajor, Since: t0, Updated: t0, Gap: new(0.2), Signal: "throughput",
		Nodes: []string{"a", "b", "d", "well"}, NodeCount: 3, Reason: "unexplained", Action: "check_shared",
	})
	l := Of(s, &Filter{}, t0)
	require.Len(t, l.Items, 3)
	assert.Equal(t, "No report from 5 nodes.", l.Items[0].What)
	assert.InDelta(t, 5, *l.Items[0].CostPerHour, 0)
	assert.Equal(t, "a", l.Items[2].Node)
	assert.Equal(t, "3 nodes slow at once, 20 % behind their peers in throughput.", l.Items[1].What)
	assert.Equal(t, []string{"b", "d", "e"}, l.Items[1].Nodes, "e fell behind after the record")
	assert.Equal(t, Counts{Nodes: 9, Stragglers: 4, GroupFaults: 1, Missing: 5}, l.Counts)
}

// TestIDs: they stay when the record of a straggler comes, and no two items share one.
func TestIDs(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	put(s, "n", t0, slow)
	before := Of(s, &Filter{}, t0).Items
	s.PutEpisode(&episode.Episode{ID: "e1", Subject: episode.SubjectNode, Cluster: "c", Group: "g", Node: "n", Since: t0, Updated: t0})
	after := Of(s, &Filter{}, t0).Items
	require.Len(t, before, 1)
	require.Len(t, after, 1)
	assert.Equal(t, before[0].ID, after[0].ID)
	assert.NotEqual(t, idOf(LostGPU, "a", "b/c", ""), idOf(LostGPU, "a/b", "c", ""))
}

func TestWhatIsNotJudged(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	assert.Equal(t, []string{"No node has reported yet: point an agent at this gateway."}, Of(s, &Filter{}, t0).Waiting)
	for _, n := range []string{"n", "m"} {
		put(s, n, t0, func(u *fleetstate.Update) { u.Set(reading.NodeUnjudged, float64(unjudged.FewPeers)) })
	}
	assert.Equal(t, []string{"2 nodes of g are not judged: Fewer peers than `min_peers` send the same signal. Compare more nodes with `group_by`."}, Of(s, &Filter{}, t0).Waiting)
	u, ok := s.Begin(fleetstate.Key{Cluster: "other", Node: "n"}, t0)
	require.True(t, ok)
	u.Commit(t0)
	assert.Equal(t, []string{"2 nodes of g in c are not judged: Fewer peers than `min_peers` send the same signal. Compare more nodes with `group_by`."}, Of(s, &Filter{}, t0).Waiting)
}

func TestGPUsAreNamedByIndexOrUUID(t *testing.T) {
	for want, list := range map[string][]Device{"GPU 3": {{"GPU-a", new(3)}}, "GPUs 1, 3": {{"GPU-a", new(1)}, {"GPU-b", new(3)}}, "2 GPUs": {{UUID: "GPU-a"}, {UUID: "GPU-b"}}} {
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
				s.PutEpisode(&episode.Episode{
					ID: name, Subject: episode.SubjectNode, Cluster: "c", Group: "g", Node: name, Since: t0, Updated: t0,
					Severity: episode.Severity(rapid.IntRange(1, 3).Draw(t, "severity")), Reason: rapid.SampledFrom([]string{"", "unexplained", "hw_thermal", "gpu_lost"}).Draw(t, "reason"),
					GPU: rapid.SampledFrom([]string{"", "GPU-0"}).Draw(t, "gpu"),
				})
			}
			if straggles && rapid.Bool().Draw(t, "in") {
				incident = append(incident, name)
			}
		}
		if rapid.Bool().Draw(t, "incident") {
			s.PutEpisode(&episode.Episode{
				ID: "rack", Subject: episode.SubjectGroup, Cluster: "c", Group: "g", Severity: episode.SeverityMajor, Since: t0, Updated: t0, Nodes: incident, NodeCount: int64(len(incident)),
			})
		}
		if rapid.Bool().Draw(t, "recorded") {
			s.PutEpisode(&episode.Episode{ID: "away", Subject: episode.SubjectMissing, Cluster: "c", Since: t0, Updated: t0, Nodes: names, NodeCount: int64(len(names))})
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
				if item.Straggler {
					got["slow "+item.Node]++
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

// TestOneCauseIsOneItem: a lost GPU, or a sick one that a node's verdict points at, is one item
// with the slowness that it causes, with one cost. It answers for stragglers too.
func TestOneCauseIsOneItem(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	put(s, "a", t0, func(u *fleetstate.Update) { gpu(u, 3, fleetstate.Degraded, 0); slow(u) })
	put(s, "b", t0, func(u *fleetstate.Update) { gpu(u, 1, fleetstate.Degraded, 1); slow(u) })
	put(s, "c", t0, func(u *fleetstate.Update) { gpu(u, 3, fleetstate.Degraded, 0); slow(u) })
	put(s, "d", t0, func(u *fleetstate.Update) { gpu(u, 1, fleetstate.Degraded, 1); slow(u) }) // the record is on its way
	put(s, "other", t0, func(u *fleetstate.Update) { gpu(u, 1, fleetstate.Degraded, 1); slow(u) })
	for node, f := range map[string]func(*episode.Episode){
		"a": func(e *episode.Episode) { e.Reason, e.Action, e.Cost = "gpu_lost", "inspect_job", new(23.9) },
		"b": func(e *episode.Episode) {
			e.GPU, e.Culprit = "mlx5_0", nodesignal.Subject{GPU: "GPU-1", Rank: nodesignal.OrdinalOf(4)}
			e.Reason, e.Action, e.Since = "sw_thermal", "check_cooling", t0.Add(-time.Hour)
		},
		"c": func(e *episode.Episode) { e.Reason, e.Severity = "gpu_lost", episode.SeverityMinor },
		"other": func(e *episode.Episode) {
			e.GPU, e.Action, e.Severity, e.Recovering = "GPU-2", "reboot", episode.SeverityMinor, true
		},
	} {
		e := &episode.Episode{
			ID: node, Subject: episode.SubjectNode, Cluster: "c", Group: "g", Node: node, Signal: "throughput", Gap: new(0.37), Since: t0, Updated: t0,
			Severity: episode.SeverityCritical,
		}
		f(e)
		s.PutEpisode(e)
	}
	l := Of(s, &Filter{Kinds: []Kind{Straggler, LostGPU}}, t0)
	var got []string
	for _, i := range l.Items {
		got = append(got, fmt.Sprintf("%s %s %s|%s|%s %v %s", i.Severity, i.Kind, i.Node, i.Part, i.What, or(i.CostPerHour, 0), i.Episode))
	}
	assert.Equal(t, []string{
		"critical lost_gpu a|GPU 3|The GPU does not answer. The node: 37 % behind its peers in throughput. 23.9 a",
		"critical lost_gpu c|GPU 3|The GPU does not answer. The node: 37 % behind its peers in throughput. 1 c",
		"critical sick_gpu b|rank 4 (GPU 1)|The health of the GPU is degraded. The node: 37 % behind its peers in throughput. 0 b",
		"major sick_gpu d|GPU 1|The health of the GPU is degraded. 0 ",
		"minor straggler other||37 % behind its peers in throughput. It keeps up now: the verdict ends when it has done so for some minutes. 0 other",
	}, got)
	assert.Equal(t, 5, l.Counts.Stragglers)
	b := l.Items[2]
	assert.Equal(t, []any{"sw_thermal", "check_cooling", t0.Add(-time.Hour), true}, []any{b.Reason, b.Action, b.Since, strings.HasPrefix(b.ID, "straggler/")}, "what the health does not know")
	assert.Contains(t, b.Next, "Check fans")
	assert.NotEqual(t, "inspect_job", l.Items[0].Action, "the health knows what to do")
	assert.Equal(t, "none", l.Items[4].Action, "it keeps up")
}

// A board whose slices are lost or sick with it is one GPU, and costs one.
func TestSlicesAreNoGPUs(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	for node, up := range map[string]float64{"lost": 0, "sick": 1} {
		put(s, node, t0, func(u *fleetstate.Update) {
			gpu(u, 2, fleetstate.Unhealthy, up)
			for i := range 7 {
				m := u.GPU(fmt.Sprint("MIG-", i))
				u.SetInfo(m, fleetstate.Info{Index: 2})
				u.SetParent(m, "GPU-2")
				u.SetHealth(m, fleetstate.Unhealthy, true)
				u.SetUp(m, up, "lost")
			}
		})
	}
	l := Of(s, &Filter{}, t0)
	assert.Equal(t, []int{1, 1}, []int{l.Counts.LostGPUs, l.Counts.SickGPUs})
	for _, i := range l.Items {
		assert.Equal(t, []Device{{"GPU-2", new(2)}}, i.GPUs)
		assert.Equal(t, "GPU 2", i.Part)
	}
	assert.InDelta(t, 1, *l.Items[0].CostPerHour, 0)
}
