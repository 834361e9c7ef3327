// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

func silentBelow(n int) func(string, int) bool {
	return func(_ string, i int) bool { return i < n }
}

func TestASilentNodeIsTold(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	seen := p.now.Add(-tick)
	p.silent = silentBelow(1)
	require.Empty(t, p.ticks(6), "50 s, and two ticks for others that may follow")
	require.Equal(t, StateMissing, p.node("j-00").State)
	told := p.ticks(1)
	require.Equal(t, []string{"missing onset j-00"}, brief(told))
	assert.Equal(t, seen, told[0].Since)
	assert.Equal(t, "j", told[0].Group)
	require.Empty(t, p.ticks(30))
	p.silent = nil
	end := p.ticks(1)
	require.Equal(t, []string{"missing end j-00 recovered"}, brief(end))
	assert.Equal(t, told[0].ID, end[0].ID)
	assert.Equal(t, StateActive, p.node("j-00").State)
}

// TestAShortSilenceIsNotTold: it is over before the others were waited for.
func TestAShortSilenceIsNotTold(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	p.silent = silentBelow(1)
	p.ticks(6)
	require.Equal(t, StateMissing, p.node("j-00").State)
	p.silent = nil
	assert.Empty(t, p.ticks(20))
}

// TestManySilentNodesAreOneEvent, of their group, or of the cluster when they
// are of several.
func TestManySilentNodesAreOneEvent(t *testing.T) {
	p := newPlay(t, []string{"a", "b"}, 12, nil)
	p.ticks(10)
	seen := p.now.Add(-tick)
	p.silent = func(g string, i int) bool { return g == "a" && i < 5 }
	told := p.ticks(20)
	require.Equal(t, []string{"missing onset 5"}, brief(told))
	assert.Equal(t, "a", told[0].Group)
	assert.Equal(t, SeverityCritical, told[0].Severity)
	assert.Equal(t, seen, told[0].Since)
	assert.Equal(t, []string{"a-00", "a-01", "a-02", "a-03", "a-04"}, told[0].Nodes)
	p.silent = func(g string, i int) bool { return g == "a" && i < 1 }
	require.Empty(t, p.ticks(20), "one of them is still silent")
	p.silent = nil
	end := p.ticks(1)
	require.Equal(t, []string{"missing end 5 recovered"}, brief(end))
	assert.Equal(t, told[0].ID, end[0].ID)

	p.silent = silentBelow(2)
	told = p.ticks(20)
	require.Equal(t, []string{"missing onset 4"}, brief(told))
	assert.Empty(t, told[0].Group)
}

func TestTwoSilentNodesAreTwo(t *testing.T) {
	p := newPlay(t, []string{"j"}, 12, nil)
	p.ticks(10)
	p.silent = silentBelow(2)
	assert.Equal(t, []string{"missing onset j-00", "missing onset j-01"}, brief(p.ticks(20)))
}

// TestSilentNodesWaitForEachOther: pushes of one outage end within an interval.
func TestSilentNodesWaitForEachOther(t *testing.T) {
	p := newPlay(t, []string{"j"}, 12, nil)
	p.ticks(10)
	p.silent = silentBelow(2)
	p.ticks(1)
	p.silent = silentBelow(4)
	assert.Equal(t, []string{"missing onset 4"}, brief(p.ticks(20)))
	p.silent = func(_ string, i int) bool { return i < 6 }
	p.ticks(1)
	p.silent = func(_ string, i int) bool { return i < 8 }
	assert.Equal(t, []string{"missing onset 4"}, brief(p.ticks(20)), "the next outage is waited for as well")
}

// TestANodeForgottenBeforeItIsToldOf leaves no episode that nobody ends.
func TestANodeForgottenBeforeItIsToldOf(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, func(c *Config) { c.Retention = time.Minute })
	p.ticks(10)
	p.silent = func(_ string, i int) bool { return i == 7 }
	assert.Empty(t, p.ticks(20))
	assert.Equal(t, 7, p.e.Nodes())
}

func TestTheListOfAnEventIsBounded(t *testing.T) {
	p := newPlay(t, []string{"j"}, 12, func(c *Config) { c.Episodes.MaxListed = 3 })
	p.ticks(10)
	p.silent = silentBelow(7)
	told := p.ticks(20)
	require.Len(t, told, 1)
	assert.Equal(t, 7, told[0].NodeCount)
	assert.Len(t, told[0].Nodes, 3)
}

// TestADeafGatewayMissesNobody: no tick came for long, so nobody was listened to.
func TestADeafGatewayMissesNobody(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	p.now = p.now.Add(10 * tick)
	require.Empty(t, p.tickOnce())
	for _, n := range p.last.Nodes {
		require.NotEqual(t, StateMissing, n.State)
	}
	assert.Empty(t, p.ticks(10))
}

// TestADeafGatewayForgetsNothing: behind a shard a signal that does not change is said
// once, and heartbeats confirm it. A tick that comes late, however late, voids none.
func TestADeafGatewayForgetsNothing(t *testing.T) {
	for _, late := range []time.Duration{10 * tick, 4 * tick} {
		f := newFleet(t, nil)
		beat := func(with bool) {
			for i := range 8 {
				o := Observation{Cluster: "c", Node: nodeName("j", i), Peers: []string{"j"}, Heartbeat: true}
				if with {
					o.State, o.HasState = StateActive, true
					o.Values.Set(nodesignal.Throughput, 10)
				}
				require.NoError(t, f.e.Observe(&o, f.now))
			}
		}
		active := func(r *Report) int { return groupOf(t, r, "c", "j").Counts[StateActive] }
		beat(true)
		f.tick()
		for range 10 {
			beat(false)
			require.Equal(t, 8, active(f.tick()))
		}
		f.tick() // nothing came in time for this one
		f.now = f.now.Add(late - tick)
		f.tick()
		for range 3 {
			beat(false)
			require.Equal(t, 8, active(f.tick()), "after a tick that was late by %s", late)
		}
	}
}

// TestFlappingSilenceIsToldThrice within an hour.
func TestFlappingSilenceIsToldThrice(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	var told []Event
	for range 5 {
		p.silent = silentBelow(1)
		told = append(told, p.ticks(10)...)
		p.silent = nil
		told = append(told, p.ticks(10)...)
	}
	assert.Len(t, told, 6, "three begins and ends")
	assert.EqualValues(t, 2, p.counters.Flapping)
	p.ticks(360)
	p.silent = silentBelow(1)
	assert.Len(t, p.ticks(10), 1, "a new hour")
}

// TestAForgottenOutageEnds: all of the silent ones are past the retention.
func TestAForgottenOutageEnds(t *testing.T) {
	p := newPlay(t, []string{"j"}, 8, nil)
	p.ticks(10)
	p.silent = silentBelow(4)
	require.Equal(t, []string{"missing onset 4"}, brief(p.ticks(20)))
	assert.Equal(t, []string{"missing end 4 forgotten"}, brief(p.ticks(360)))
	assert.Equal(t, 4, p.e.Nodes())
}
