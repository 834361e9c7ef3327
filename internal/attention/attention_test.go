// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
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

func lines(l *List) (out []string) {
	for _, i := range l.Items {
		out = append(out, fmt.Sprintf("%s %s %s|%s|%s", i.Severity, i.Kind, i.Node, i.Part, i.Text))
	}
	return out
}

func TestWorstFirst(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	at := t0.Add(-10 * time.Minute)
	put(s, "well", t0, func(u *fleetstate.Update) { gpu(u, 0, fleetstate.Healthy, 1) })
	put(s, "gone", at, func(u *fleetstate.Update) { gpu(u, 0, fleetstate.Healthy, 1) })
	put(s, "lost", at, func(u *fleetstate.Update) { gpu(u, 3, fleetstate.Healthy, 1) })
	put(s, "lost", t0.Add(-6*time.Minute), func(u *fleetstate.Update) {
		u.SetXid(gpu(u, 3, fleetstate.Healthy, 0), fleetstate.Xid{Code: 79, Count: 1})
	})
	put(s, "lost", t0, nil)
	put(s, "sick", t0, func(u *fleetstate.Update) {
		j := gpu(u, 2, fleetstate.Degraded, 1)
		u.SetReason(j, fleetstate.Reason{Reason: "remap_pending", Action: "reset_gpu"}, true)
		u.SetReason(j, fleetstate.Reason{Reason: "pcie_replays", Action: "none"}, true)
	})
	put(s, "slow", t0, func(u *fleetstate.Update) {
		gpu(u, 5, fleetstate.Healthy, 1)
		u.Set(reading.NodeStraggler, 1)
	})
	s.PutEpisode(&fleetstate.Episode{
		ID: "e1", Subject: fleetstate.SubjectNode, Cluster: "c", Group: "g", Node: "slow", Severity: "major", Signal: "throughput",
		Since: t0.Add(-time.Hour), Updated: t0.Add(-30 * time.Minute), Gap: new(0.384), LostGPUHoursPerHour: new(12.0), LostGPUHours: new(3.0), Slowdown: new(1.25),
		Reason: "hw_thermal", Action: "check_cooling", Culprit: nodesignal.Subject{GPU: "GPU-5", Rank: nodesignal.OrdinalOf(11)},
	})
	s.PutEpisode(&fleetstate.Episode{
		ID: "e2", Subject: fleetstate.SubjectGroup, Cluster: "c", Group: "h", Severity: "major", Since: t0.Add(-time.Minute), Updated: t0,
		Nodes: []string{"a", "b", "d"}, NodeCount: 3, Topology: []string{"leaf=leaf-7"}, TopologyBad: 3, TopologyNodes: 4, Reason: "shared_place", Action: "check_shared",
	})
	l := Of(s, &Filter{}, t0)
	assert.Equal(t, []string{
		"critical lost_gpu lost|GPU 3|The GPU does not answer: Xid 79.",
		"major straggler slow|rank 11 (GPU 5)|38.4 % behind its peers in throughput. The job loses 20 %. The hardware lowers the clocks because of heat.",
		"major missing_node gone||The gateway hears nothing of the node. Its 1 GPU may still work.",
		"major group_fault ||3 nodes slow at once: 3 of the 4 nodes of leaf-7.",
		"major sick_gpu sick|GPU 2|A row remapping waits for a GPU reset. 1 finding more.",
	}, lines(l))
	assert.Equal(t, map[Kind]int{Straggler: 1, LostGPU: 1, SickGPU: 1, MissingNode: 1, GroupFault: 1}, l.Counts)

	lost, slow, gone, sick := l.Items[0], l.Items[1], l.Items[2], l.Items[4]
	assert.Equal(t, t0.Add(-6*time.Minute), lost.Since.UTC(), "when the gateway heard of it")
	assert.False(t, lost.SinceBefore)
	assert.InDelta(t, 0.1, *lost.Cost, 1e-9, "a GPU for six minutes")
	assert.True(t, sick.SinceBefore, "it came sick")
	assert.Equal(t, "reset_gpu", sick.Action)
	assert.Nil(t, sick.CostPerHour)
	assert.InDelta(t, 3+12*0.5, *slow.Cost, 1e-9)
	assert.Equal(t, "Check fans, airflow and coolant of the node: the GPU is too hot and its hardware slows it down.", slow.Advice)
	assert.True(t, gone.AtMost)
	assert.Equal(t, at, gone.Since.UTC())

	assert.Equal(t, []string{lines(l)[1]}, lines(Of(s, &Filter{Kinds: []Kind{Straggler}}, t0)))
	assert.Empty(t, Of(s, &Filter{Clusters: []string{"other"}}, t0).Items)
}

// TestARackThatIsSilentIsOneItem folds the silent nodes of a group.
func TestARackThatIsSilentIsOneItem(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	for i := range 5 {
		put(s, fmt.Sprintf("n%d", i), t0.Add(-time.Hour), func(u *fleetstate.Update) { gpu(u, i, fleetstate.Healthy, 1) })
	}
	l := Of(s, &Filter{}, t0)
	require.Len(t, l.Items, 1)
	assert.Equal(t, "5 nodes of the group are silent.", l.Items[0].Text)
	assert.Len(t, l.Items[0].Nodes, 5)
	assert.InDelta(t, 5, *l.Items[0].CostPerHour, 0)
	assert.Equal(t, 5, l.Counts[MissingNode])
}

func TestSilenceHasAReason(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	assert.Equal(t, []string{"No node has reported to this gateway yet. Point an agent at it."}, Of(s, &Filter{}, t0).Waiting)
	put(s, "n", t0, func(u *fleetstate.Update) { u.Set(reading.NodeUnjudged, float64(unjudged.FewPeers)) })
	assert.Equal(t, []string{"1 of 1 node is without a verdict, since there are too few peers: more active nodes of one job, role and GPU model are needed."}, Of(s, &Filter{}, t0).Waiting)
	for why := unjudged.Idle; why < unjudged.Count; why++ {
		if why != unjudged.Missing { // an item of its own
			assert.NotEmpty(t, why.Silence(1, 1), why)
		}
	}
}

// TestEachActionHasAdvice holds the table to the actions of the rubric.
func TestEachActionHasAdvice(t *testing.T) {
	for _, a := range gpuhealth.Actions {
		assert.NotEmpty(t, advices[string(a)], a)
	}
}

// TestAHealthyFleetNeedsNobody draws fleets, and holds the list to what is wrong.
func TestAHealthyFleetNeedsNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := fleetstate.New(fleetstate.DefaultConfig())
		lost, sick := 0, 0
		for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
			put(s, fmt.Sprintf("n%d", i), t0, func(u *fleetstate.Update) {
				for g := range rapid.IntRange(0, 8).Draw(t, "gpus") {
					switch up := rapid.SampledFrom([]float64{1, 1, 1, 0}).Draw(t, "up"); up {
					case 0:
						lost++
						gpu(u, g, fleetstate.HealthUnknown, up)
					default:
						h := rapid.SampledFrom([]fleetstate.Health{fleetstate.Healthy, fleetstate.Degraded, fleetstate.Unhealthy}).Draw(t, "health")
						if h > fleetstate.Healthy {
							sick++
						}
						gpu(u, g, h, up)
					}
				}
			})
		}
		l := Of(s, &Filter{}, t0)
		assert.Equal(t, []int{lost, sick}, []int{l.Counts[LostGPU], l.Counts[SickGPU]})
		named := 0
		for i, item := range l.Items {
			named += len(item.GPUs)
			assert.NotEmpty(t, item.Text)
			assert.NotEmpty(t, item.Advice)
			if i > 0 {
				assert.LessOrEqual(t, worse(l.Items[i-1], item), 0)
			}
		}
		assert.Equal(t, lost+sick, named, "each GPU is in one item")
	})
}

// TestWhatIsSilencedComesLast: with the person's word, and counted all the same. An item of
// many nodes is silenced when each of them is, until the first of these silences ends.
func TestWhatIsSilencedComesLast(t *testing.T) {
	s := fleetstate.New(fleetstate.DefaultConfig())
	book := people.New(1)
	silence := func(k people.Silence) {
		k.Cluster, k.By, k.Reason = "c", "ann", "psu"
		_, err := book.Silence(k, t0)
		require.NoError(t, err)
	}
	put(s, "lost", t0, func(u *fleetstate.Update) { gpu(u, 3, fleetstate.Healthy, 0) })
	put(s, "sick", t0, func(u *fleetstate.Update) { gpu(u, 2, fleetstate.Degraded, 1) })
	away := []string{"r0", "r1", "r2", "r3"}
	for _, n := range away {
		put(s, n, t0.Add(-time.Hour), nil)
	}
	list := func() (out []string) {
		l := Of(s, &Filter{Silenced: func(of people.Scope) *people.Silence { return book.Silenced(of, t0) }}, t0)
		assert.Equal(t, 1, l.Counts[LostGPU])
		for _, i := range l.Items {
			text := string(i.Kind)
			if i.Silenced != nil {
				text += " until " + i.Silenced.Until.Sub(t0).String() + ": " + i.Silenced.Reason
			}
			out = append(out, text)
		}
		return out
	}
	assert.Equal(t, []string{"lost_gpu", "missing_node", "sick_gpu"}, list())
	silence(people.Silence{Node: "lost", Until: t0.Add(time.Hour)})
	for i, n := range away[1:] {
		silence(people.Silence{Node: n, Until: t0.Add(time.Duration(2+i) * time.Hour)})
	}
	assert.Equal(t, []string{"missing_node", "sick_gpu", "lost_gpu until 1h0m0s: psu"}, list())
	silence(people.Silence{Node: away[0], Until: t0.Add(24 * time.Hour)})
	assert.Equal(t, []string{"sick_gpu", "lost_gpu until 1h0m0s: psu", "missing_node until 2h0m0s: psu"}, list())
	silence(people.Silence{Group: "g", Until: t0.Add(48 * time.Hour)})
	assert.Equal(t, []string{"lost_gpu until 48h0m0s: psu", "missing_node until 48h0m0s: psu", "sick_gpu until 48h0m0s: psu"}, list())
}
