// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// playXids is play of a fleet whose third node has had Xids of its memory, or some from it on.
func (r *stateRig) playXids(intervals int, xids float64, scores ...float64) {
	r.playXidsOf(1, intervals, xids, scores...)
}

func (r *stateRig) playXidsOf(nodes, intervals int, xids float64, scores ...float64) {
	for range intervals {
		md := fleet(scores...)
		for i := range scores {
			gpu := testGPU(i, 0)
			(&sample{name: "hw.gpu.up", pairs: []string{"reason", "ok"}, value: 1}).write(md.ResourceMetrics().At(i), gpu)
			if i >= 2 && i < 2+nodes && xids > 0 {
				s := sample{name: "hw.gpu.xid.events", pairs: []string{"gpu.xid.code", "94"}, value: xids, count: true}
				s.write(md.ResourceMetrics().At(i), gpu).SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
			}
		}
		require.NoError(r.t, r.metrics.ConsumeMetrics(r.t.Context(), md))
		time.Sleep(10 * time.Second)
		synctest.Wait()
	}
}

// reasons are what the records say, by their phases.
func (r *stateRig) reasons() (all [][2]string) {
	for _, ld := range r.records.AllLogs() {
		for _, rl := range ld.ResourceLogs().All() {
			for _, sl := range rl.ScopeLogs().All() {
				for _, lr := range sl.LogRecords().All() {
					phase, _ := lr.Attributes().Get(gpusemconv.AttrEpisodePhase)
					why, _ := lr.Attributes().Get(gpusemconv.AttrEpisodeReason)
					all = append(all, [2]string{phase.Str(), why.Str()})
				}
			}
		}
	}
	return all
}

// TestAReasonOutlivesTheGateway: an Xid explains a node that is slow. After a restart the node
// becomes slower: it is the same Xid that explains it. Without the facts nobody knows.
func TestAReasonOutlivesTheGateway(t *testing.T) {
	for name, tt := range map[string]struct {
		killed, forgets bool
		want            reason.Reason
	}{
		"upgrade":       {want: "gpu_memory_fault"},
		"killed":        {killed: true, want: "gpu_memory_fault"},
		"without facts": {forgets: true, want: reason.Unexplained},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				one := newStateRig(t, d, nil)
				one.playXids(20, 0, 1, 1, 1, 1, 1, 1)
				one.playXids(16, 1, 1, 1, 0.95, 1, 1, 1)
				told := one.reasons()
				require.NotEmpty(t, told)
				require.Equal(t, [2]string{"onset", "gpu_memory_fault"}, told[0])
				if tt.killed {
					d = d.copied()
				}
				one.shutdown()
				if tt.forgets {
					delete(d.values, factsKey)
				}
				time.Sleep(20 * time.Second)

				two := newStateRig(t, d, nil)
				two.playXids(30, 1, 1, 1, 0.5, 1, 1, 1)
				told = two.reasons()
				require.GreaterOrEqual(t, len(told), 2, "%v", told)
				assert.Equal(t, [2]string{"continues", "gpu_memory_fault"}, told[0])
				for _, r := range told[1:] {
					assert.Contains(t, []string{"severity", "update"}, r[0])
					assert.Equal(t, string(tt.want), r[1], "%v", told)
				}
				two.shutdown()
			})
		})
	}
}

// TestFactsOfOpenEpisodesAreKept: what explains an open episode is more than an hour old. A
// gateway that ends before its first tick keeps it too, and so does one after it.
func TestFactsOfOpenEpisodesAreKept(t *testing.T) {
	for name, tt := range map[string]struct {
		slow     int
		subject  string
		restarts int
	}{
		"a node":                     {1, "node", 1},
		"a node, twice at once":      {1, "node", 3},
		"an incident":                {5, "group", 1},
		"an incident, twice at once": {5, "group", 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				scores := func(slow float64) (all []float64) {
					for i := range 16 {
						v := 1.0
						if i >= 2 && i < 2+tt.slow {
							v = slow
						}
						all = append(all, v)
					}
					return all
				}
				d := newDisk()
				one := newStateRig(t, d, nil)
				one.playXidsOf(tt.slow, 20, 0, scores(1)...)
				one.playXidsOf(tt.slow, 400, 1, scores(0.8)...)
				onset := one.told()
				require.NotEmpty(t, onset)
				require.Equal(t, tt.subject, onset[0].subject)
				require.Equal(t, [2]string{"onset", "gpu_memory_fault"}, one.reasons()[0])
				one.shutdown()
				for range tt.restarts - 1 {
					between := newStateRig(t, d, nil)
					time.Sleep(3 * time.Second)
					between.shutdown()
					require.Empty(t, between.told(), "no tick yet")
				}

				last := newStateRig(t, d, nil)
				last.playXidsOf(tt.slow, 30, 1, scores(0.5)...)
				told := last.reasons()
				require.GreaterOrEqual(t, len(told), 2, "%v", told)
				assert.Equal(t, [2]string{"continues", "gpu_memory_fault"}, told[0])
				for k, r := range told[1:] {
					assert.Equal(t, onset[0].id, last.told()[k+1].id)
					assert.Equal(t, "gpu_memory_fault", r[1], "%v", told)
				}
				last.shutdown()
			})
		})
	}
}

// TestWhoseFactsAreAskedFor: those of nodes with an episode of their own come before those of
// many, and no more than are saved.
func TestWhoseFactsAreAskedFor(t *testing.T) {
	many := func(of string) (names []string) {
		for i := range 100 {
			names = append(names, fmt.Sprint(of, i))
		}
		return names
	}
	x := &explainer{told: map[string]told{}, most: 100}
	for i, ev := range []straggler.Event{
		{Subject: straggler.SubjectGroup, Nodes: many("group")},
		{Subject: straggler.SubjectCluster, Nodes: many("cluster")},
		{Subject: straggler.SubjectCluster, Nodes: many("place")},
		{Subject: straggler.SubjectCluster, Nodes: many("other")},
		{Subject: straggler.SubjectCommunicator, Nodes: many("link")},
		{Subject: straggler.SubjectNode, Node: "one"},
		{Subject: straggler.SubjectNode, Node: "two"},
	} {
		ev.ID, ev.Cluster = strconv.Itoa(i), "prod"
		x.keep(&episode{Event: &ev, finding: &reason.Finding{}})
	}
	all := x.accused()
	require.GreaterOrEqual(t, len(all), reason.MaxSaved)
	assert.Less(t, len(all), reason.MaxSaved+100)
	assert.ElementsMatch(t, []reason.Name{{Cluster: "prod", Node: "one"}, {Cluster: "prod", Node: "two"}}, all[:2])
	for _, n := range all {
		assert.False(t, strings.HasPrefix(n.Node, "link"), n)
	}
}
