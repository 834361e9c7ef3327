// SPDX-License-Identifier: Apache-2.0

package families

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// TestToldAs: values are cut at the top, then rounded. No report stays none.
func TestToldAs(t *testing.T) {
	m := Model{Top: 1, Quantum: 0.05}
	assert.InDelta(t, 1, m.told(1.2), 1e-12)
	assert.InDelta(t, 0.9, m.told(0.912), 1e-12)
	assert.True(t, math.IsNaN(m.told(math.NaN())))

	r := named(func(m *Model) { m.Sigma, m.Top, m.Quantum = 0.05, 1, 0.02 }).run(1, 0, true)
	top := 0
	for r.Next() {
		for _, v := range r.Values {
			steps := v / 0.02
			require.InDelta(t, math.Round(steps), steps, 1e-9)
			require.LessOrEqual(t, v, 1+1e-9)
			if v > 0.99 {
				top++
			}
		}
	}
	assert.InDelta(t, 0.5, float64(top)/float64(8*r.Ticks()), 0.1)
}

// TestOthers: each signal has its own noise around its level, at most 1, and the fault
// is in one alone.
func TestOthers(t *testing.T) {
	f := named(func(m *Model) {
		m.Others = []Other{
			{Signal: nodesignal.Compute, Level: 0.8, Sigma: 0.02, Phi: 0.5},
			{Signal: nodesignal.CPU, Level: 1, Sigma: 0.05},
		}
		m.Sigma, m.Length = 0.01, 4*time.Hour
		m.Fault.Begin, m.Fault.Loss, m.Fault.Signal = time.Hour, 0.5, nodesignal.Compute
	})
	r := f.Play(1, 0, false)
	hit := r.Faults[0].Node
	assert.InDelta(t, 0.02, r.Faults[0].Noise, 1e-12)
	assert.Equal(t, 10*time.Second, r.Faults[0].Oracle)
	noise, before, lost := make([][]float64, 1), 0.0, 0.0
	for r.Next() {
		assert.InDelta(t, 1, r.Values[hit], 0.1, "the throughput keeps")
		for i := range r.Values {
			if i != hit {
				noise[0] = append(noise[0], r.Others[0][i]/0.8-1)
			}
			require.LessOrEqual(t, r.Others[1][i], 1.0)
			require.InDelta(t, 1, r.Others[1][i], 0.4)
		}
		switch {
		case r.Tick < 360:
			before += r.Others[0][hit] / 360
		case r.Tick < 720:
			lost += r.Others[0][hit] / 360
		}
	}
	assert.InDelta(t, 0.8, before, 0.01)
	assert.InDelta(t, 0.4, lost, 0.01)
	// The seven nodes of a tick lie side by side: seven places are one tick.
	mean, sd, phi := moments(noise, 7)
	assert.InDelta(t, 0, mean, 0.002)
	assert.InEpsilon(t, 0.02, sd, 0.02)
	assert.InDelta(t, 0.5, phi, 0.03)
}

// TestShard: what is passed on is never off by more than the band, nothing is held back
// for longer than the resync, and most of a quiet fleet is.
func TestShard(t *testing.T) {
	r := named(func(m *Model) {
		m.Sigma, m.Shard = 0.01, &Shard{Band: 0.03, Resync: 2 * time.Minute}
	}).run(1, 0, true)
	known, since, same := make([]float64, 8), make([]int, 8), 0
	for r.Next() {
		for i, v := range r.Values {
			if !r.Same[i] {
				known[i], since[i] = v, r.Tick
				continue
			}
			same++
			require.LessOrEqual(t, math.Abs(v/known[i]-1), 0.03)
			require.Less(t, r.Tick-since[i], 12)
		}
	}
	assert.Greater(t, float64(same)/float64(8*r.Ticks()), 0.5)
}

// TestRecorded: a run plays the recording from some tick on, and slows the node whose
// turn it is for an hour.
func TestRecorded(t *testing.T) {
	rec := &Recording{Rates: [][]float64{{1, 2}, {3, 4}, {5, 6}}, Peers: [][]string{{"a"}, {"a"}}, Slow: []int{0}}
	f := Recorded("r", rec, []int{1}, 0.1, 0.3)
	assert.Equal(t, 1, f.Runs)
	assert.Equal(t, 2, rec.LeastPeers())
	assert.InDelta(t, 6, rec.Fastest(), 0)
	r, clean := f.Play(1, 7, false), f.Play(1, 7, true)
	require.Len(t, r.Faults, 1)
	fault := r.Faults[0]
	assert.Equal(t, 1, fault.Node)
	assert.Equal(t, 360, fault.End-fault.Begin)
	var row int
	for r.Next() {
		require.True(t, clean.Next())
		if r.Tick == 0 {
			row = int(clean.Values[0]) / 2
		}
		want := rec.Rates[(row+r.Tick)%3]
		require.Equal(t, want, clean.Values)
		require.InDelta(t, want[1]*(1-fault.At(r.Tick)), r.Values[1], 1e-12)
	}
	none := Recorded("none", rec, nil, 0, 0)
	assert.Empty(t, none.Play(1, 0, false).Faults)
}
