// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// named is a family whose model a test sets.
func named(change func(m *Model)) *Family {
	return &Family{Name: "test", Grace: 15 * time.Minute, draw: func(d *draw, m *Model) {
		*m = Model{Interval: 10 * time.Second, Length: 10 * time.Hour, Fault: FaultLaw{For: time.Hour, Nodes: 1}}
		d.nodes(m, 8)
		m.Fault.Nodes = 1
		change(m)
	}}
}

// noise is each node's noise in a clean run: its value by what it is without.
func noise(t *testing.T, f *Family) [][]float64 {
	t.Helper()
	r := f.run(1, 0, true)
	out := make([][]float64, r.Model.Nodes)
	for r.Next() {
		for i, v := range r.Values {
			if !math.IsNaN(v) {
				out[i] = append(out[i], v/r.Clean[i]-1)
			}
		}
	}
	return out
}

// moments are those of all nodes together, and the correlation at a lag.
func moments(x [][]float64, lag int) (mean, sd, phi float64) {
	n, c := 0.0, 0.0
	for _, node := range x {
		for i, v := range node {
			mean += v
			sd += v * v
			n++
			if i >= lag {
				c += v * node[i-lag]
			}
		}
	}
	return mean / n, math.Sqrt(sd / n), c / sd
}

// TestNoise: each law has the moments that it claims.
func TestNoise(t *testing.T) {
	for _, tt := range []struct {
		name    string
		change  func(m *Model)
		lag     int
		sd, phi float64
	}{
		{"iid", func(m *Model) { m.Sigma = 0.1 }, 1, 0.1, 0},
		{"AR", func(m *Model) { m.Sigma, m.Phi = 0.02, 0.8 }, 1, 0.02, 0.8},
		{"Student", func(m *Model) { m.Student, m.Sigma, m.Phi = true, 0.02, 0.5 }, 1, 0.02, 0.5},
		// AR .9 of a variance of 4, white of 1: 4/5 * .9 after a tick.
		{"white on top", func(m *Model) { m.Sigma, m.Phi, m.White = 0.02, 0.9, 0.01 }, 1, math.Sqrt(5) / 100, 0.72},
		// Two hours in each four are three times as loud: (1 + 9) / 2.
		{"restless", func(m *Model) { m.Sigma, m.Restless = 0.01, 3 }, 1, math.Sqrt(5) / 100, 0},
		// The fleet's rack noise is that of eight nodes at once.
		{"racks", func(m *Model) { m.Sigma, m.Racks, m.RackSigma, m.RackPhi = 0.01, 100, 0.02, 0.5 }, 1, math.Sqrt(5) / 100, 0.4},
		// Every second node has three times the noise.
		{"loud", func(m *Model) { m.Sigma, m.LoudEvery, m.Loud = 0.01, 2, 3 }, 1, math.Sqrt(5) / 100, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := noise(t, named(func(m *Model) {
				m.Jobs[0].Nodes, m.Nodes = 800, 800
				m.Length = 2 * time.Hour
				tt.change(m)
			}))
			mean, sd, phi := moments(x, tt.lag)
			assert.InDelta(t, 0, mean, 0.05*tt.sd)
			assert.InEpsilon(t, tt.sd, sd, 0.02)
			assert.InDelta(t, tt.phi, phi, 0.02)
		})
	}
}

// TestSteps: a tick is the mean rate of the whole steps that ended in it.
func TestSteps(t *testing.T) {
	x := noise(t, named(func(m *Model) { m.Steps = &Steps{Time: time.Second, Sigma: 0.05} }))
	_, sd, _ := moments(x, 1)
	assert.InEpsilon(t, 0.05/math.Sqrt(10), sd, 0.1, "ten steps")
	for _, node := range x {
		assert.Len(t, node, 3600)
	}

	// A step of 25 s ends in two of five ticks.
	x = noise(t, named(func(m *Model) { m.Steps = &Steps{Time: 25 * time.Second} }))
	for _, node := range x {
		assert.InDelta(t, 1440, len(node), 1)
		assert.InDelta(t, 0, node[0], 1e-12)
	}

	// One in fifty takes 3.5 times as long on average: the mean rate is that much less.
	r := named(func(m *Model) { m.Steps = &Steps{Time: time.Second, Long: 0.02} }).run(1, 0, true)
	steps, ticks := 0.0, 0.0
	for r.Next() {
		for i, v := range r.Values {
			steps += v * 10
			ticks++
			assert.GreaterOrEqual(t, r.Clean[i], v-1e-12)
		}
	}
	assert.InEpsilon(t, 10/(1+0.02*2.5), steps/ticks, 0.02)
}

// TestFaults: each kind loses as much as it should, when it should.
func TestFaults(t *testing.T) {
	play := func(law FaultLaw) []float64 {
		r := named(func(m *Model) { m.Fault = law }).run(1, 0, false)
		require.Len(t, r.Faults, law.Nodes)
		var lost []float64
		for r.Next() {
			lost = append(lost, 1-r.Values[r.Faults[0].Node]/r.Clean[0])
		}
		return lost
	}
	law := FaultLaw{Nodes: 3, Begin: time.Hour, For: 2 * time.Hour, Loss: 0.2}
	step := play(law)
	assert.InDelta(t, 0, step[359], 1e-12)
	assert.InDelta(t, 0.2, step[360], 1e-12)
	assert.InDelta(t, 0.2, step[1079], 1e-12)
	assert.InDelta(t, 0, step[1080], 1e-12)

	law.Kind, law.Rate = Drift, 0.15
	drift := play(law)
	assert.InDelta(t, 0.15, drift[719], 1e-9, "an hour of it")
	assert.InDelta(t, 0.2, drift[1000], 1e-9, "the most")

	law.Kind, law.Duty, law.Period = Flicker, 0.25, 100*time.Second
	flicker := play(law)
	sum := 0.0
	for tick, lost := range flicker {
		if tick < 360 || tick >= 1080 {
			assert.InDelta(t, 0, lost, 1e-12)
		}
		sum += lost
		if tick >= 370 && tick < 1080 {
			assert.InDelta(t, flicker[tick-10], lost, 1e-9, "after a period")
		}
	}
	assert.InDelta(t, 0.2*0.25*720, sum, 1e-6)

	law.Losses = []float64{0.6, 0.2, 0.1}
	for k, f := range named(func(m *Model) { m.Fault = law }).run(1, 0, false).Faults {
		assert.InDelta(t, law.Losses[k], f.Loss, 0, "one after the other")
	}
}

// TestDaily: the loss comes by and by, stays, goes as it came, and is back a day later.
func TestDaily(t *testing.T) {
	r := named(func(m *Model) {
		m.Length = 48 * time.Hour
		m.Fault = FaultLaw{Kind: Daily, Nodes: 3, Neighbour: true, Begin: time.Hour, For: 40 * time.Hour, Loss: 0.06, Period: time.Hour, Duty: 0.25}
	}).run(1, 0, false)
	for r.Next() {
		since := float64(r.Tick-360) / 360 // hours of the fault
		want, hour := 0.0, math.Mod(since, 24)
		if since >= 0 && since < 40 {
			want = 0.06 * max(0, min(hour, 6-hour, 1))
		}
		for k := range r.Faults {
			require.InDelta(t, 1-want, r.Values[r.Faults[k].Node], 1e-9, "tick %d", r.Tick)
		}
	}
	first := r.Faults[0].Node
	assert.Equal(t, []int{first + 1, first + 2}, []int{r.Faults[1].Node, r.Faults[2].Node})
}

// TestDips: a dip is as long and deep as the law, and each node is late by its own.
func TestDips(t *testing.T) {
	r := named(func(m *Model) {
		m.Dips = &Dips{Depth: 0.4, For: 35 * time.Second, Every: 10 * time.Minute, Clocks: 30 * time.Second}
	}).run(1, 0, true)
	lost, apart := make([]float64, 8), 0
	for r.Next() {
		for i, v := range r.Values {
			lost[i] += (1 - v) / 0.4
			if math.Abs(v-r.Values[0]) > 0.01 {
				apart++
			}
		}
	}
	for _, v := range lost {
		assert.InDelta(t, 60*3.5, v, 3.5, "sixty dips of three and a half ticks")
	}
	assert.Positive(t, apart)
}

// TestRestarts: all stop at once, then each comes up from its own level.
func TestRestarts(t *testing.T) {
	r := named(func(m *Model) { m.Restarts = &Restarts{Slow: 0.3} }).run(1, 0, true)
	require.NotEmpty(t, r.down)
	for k := range r.down {
		assert.LessOrEqual(t, r.down[k]+6, r.up[k])
		assert.LessOrEqual(t, r.up[k], r.down[k]+48)
		assert.LessOrEqual(t, r.up[k]+12, r.done[k])
		assert.LessOrEqual(t, r.done[k], r.up[k]+60)
		before := 0
		if k > 0 {
			before = r.done[k-1]
		}
		assert.LessOrEqual(t, before+360, r.down[k])
		assert.LessOrEqual(t, r.down[k], before+1080)
	}
	last := make([]float64, 8)
	for r.Next() {
		k, down := r.restarting(r.Tick)
		for i, v := range r.Values {
			assert.Equal(t, down, math.IsNaN(v))
			switch {
			case down:
				last[i] = 0
			case k < 0:
				assert.InDelta(t, 1, v, 1e-12)
			default:
				assert.GreaterOrEqual(t, v, 0.7)
				assert.Greater(t, v, last[i], "a ramp")
				last[i] = v
			}
		}
	}
}

// TestChurn: as many nodes are replaced as the law has it, and those at fault never are.
func TestChurn(t *testing.T) {
	r := named(func(m *Model) {
		m.Churn, m.Nodes, m.Jobs = 0.1, 200, []Job{{200, 1}}
		m.Fault.Nodes = 20
	}).run(1, 0, false)
	since := make([]int, 200)
	was := make([]bool, 200)
	for r.Next() {
		for i, v := range r.Values {
			assert.Equal(t, r.Absent[i], math.IsNaN(v))
			if was[i] && !r.Absent[i] {
				assert.GreaterOrEqual(t, r.Tick-since[i], 6)
				assert.LessOrEqual(t, r.Tick-since[i], 36)
				since[i] = r.Tick
			}
			if !was[i] && r.Absent[i] {
				since[i] = r.Tick
			}
			if !r.Absent[i] && r.Life[i] > 0 && r.Tick-since[i] < 18 {
				assert.LessOrEqual(t, v, 1.0)
				assert.GreaterOrEqual(t, v, 0.7)
			} else if !r.Absent[i] && r.nodes[i].fault == nil {
				assert.InDelta(t, 1, v, 1e-12)
			}
		}
		copy(was, r.Absent)
	}
	lives := 0
	for _, life := range r.Life {
		lives += int(life)
	}
	assert.InEpsilon(t, 180, lives, 0.25, "a tenth of the healthy in each of ten hours")
	for k := range r.Faults {
		assert.Zero(t, r.Life[r.Faults[k].Node])
	}
}

// TestSwap: a node that replaces another has any job.
func TestSwap(t *testing.T) {
	r := named(func(m *Model) {
		m.Churn, m.Swap, m.Nodes, m.Jobs = 0.5, true, 200, []Job{{100, 1}, {100, 0.5}}
	}).run(1, 0, true)
	for r.Next() {
	}
	others, lives := 0, 0
	for i, life := range r.Life {
		if life > 0 && r.nodes[i].fault == nil {
			lives++
			others += (r.nodes[i].job + i/100) % 2
		}
	}
	assert.Greater(t, lives, 150)
	assert.InDelta(t, 0.5, float64(others)/float64(lives), 0.1)
}

// TestTurns: a node takes up another job as often as the law has it, of two or of its own.
func TestTurns(t *testing.T) {
	for name, change := range map[string]func(*Model){
		"two jobs": func(m *Model) { m.Jobs = []Job{{100, 1}, {100, 0.5}} },
		"singles":  func(m *Model) { m.Jobs, m.Singles = []Job{{200, 1}}, 0.5 },
	} {
		r := named(func(m *Model) {
			m.Nodes, m.Turn = 200, 10*time.Minute
			change(m)
		}).run(1, 0, true)
		changes, last, seen := 0, make([]float64, 200), map[float64]bool{}
		for r.Next() {
			for i, v := range r.Values {
				if last[i] > 0 && v != last[i] {
					changes++
				}
				last[i], seen[v] = v, true
			}
		}
		assert.InEpsilon(t, 200*60, changes, 0.05, name)
		levels := slices.Sorted(maps.Keys(seen))
		assert.InDelta(t, 0.5, levels[0], 0.001, name)
		assert.InDelta(t, 1, levels[len(levels)-1], 0.001, name)
		assert.Equal(t, r.Model.Singles == 0, len(levels) == 2, name)
	}
}

// TestDiurnal: the swing is a day long.
func TestDiurnal(t *testing.T) {
	r := named(func(m *Model) {
		m.Length = 48 * time.Hour
		m.Diurnal = &Diurnal{Amplitude: 0.4, Unequal: 0.25}
	}).run(1, 0, true)
	var first []float64
	for r.Next() {
		if r.Tick == 6*360 {
			first = append(first, r.Values...)
			for _, v := range r.Values {
				assert.GreaterOrEqual(t, v, 1.3)
				assert.LessOrEqual(t, v, 1.5)
			}
		}
		if r.Tick == 30*360 {
			assert.InDeltaSlice(t, first, r.Values, 1e-9)
		}
	}
	assert.NotEqual(t, first[0], first[1])

	r = named(func(m *Model) { m.Diurnal = &Diurnal{Amplitude: 0.1, Period: time.Hour, Phase: time.Hour} }).run(1, 0, true)
	var hour [][]float64
	for r.Next() {
		hour = append(hour, append([]float64(nil), r.Values...))
	}
	assert.InDeltaSlice(t, hour[100], hour[460], 1e-9, "another period")
	assert.Greater(t, math.Abs(hour[100][0]-hour[100][1]), 0.001, "phases of their own")
}

// TestUpgrade: one by one the nodes become faster for good.
func TestUpgrade(t *testing.T) {
	r := named(func(m *Model) { m.Upgrade = &Upgrade{Most: 0.06, From: time.Hour, To: 3 * time.Hour} }).run(1, 0, true)
	faster := make([]int, 8)
	for r.Next() {
		for i, v := range r.Values {
			switch {
			case v == 1:
				assert.Zero(t, faster[i])
			case faster[i] == 0:
				faster[i] = r.Tick
			}
		}
	}
	for i, v := range r.Values {
		assert.GreaterOrEqual(t, v, 1.03)
		assert.LessOrEqual(t, v, 1.06)
		assert.GreaterOrEqual(t, faster[i], 360)
		assert.LessOrEqual(t, faster[i], 1080)
	}
	assert.NotEqual(t, faster[0], faster[1])
}

// TestWarmUp: at first all are slower, each by its own share, until a ramp ends.
func TestWarmUp(t *testing.T) {
	r := named(func(m *Model) { m.WarmUp, m.Cold = 10*time.Minute, 0.3 }).run(1, 0, true)
	last := make([]float64, 8)
	for r.Next() {
		for i, v := range r.Values {
			if r.Tick >= 60 {
				assert.InDelta(t, 1, v, 1e-12)
				continue
			}
			assert.GreaterOrEqual(t, v, 0.7)
			assert.Less(t, v, 1.0)
			assert.Greater(t, v, last[i], "a ramp")
			last[i] = v
		}
		if r.Tick == 0 {
			assert.NotEqual(t, r.Values[0], r.Values[1])
		}
	}
}

// TestGrid: values are rounded, and nothing is above 1.
func TestGrid(t *testing.T) {
	r := named(func(m *Model) { m.Sigma, m.Grid, m.Fault.Loss = 0.1, 0.05, 0.31 }).run(1, 0, false)
	seen := map[int]int{}
	for r.Next() {
		for _, v := range r.Values {
			step := math.Round(v / 0.05)
			assert.InDelta(t, step*0.05, v, 1e-12)
			seen[int(step)]++
		}
	}
	for step := range seen {
		assert.LessOrEqual(t, step, 20)
	}
	assert.Positive(t, seen[19])
	assert.Greater(t, seen[20], seen[19], "all that would be more")
}

// TestMismatch: such a node does more for an hour, at a lower clock.
func TestMismatch(t *testing.T) {
	r := named(func(m *Model) {
		d := newDraw(1, "odd", 0)
		d.nodes(m, 200)
		m.Mismatch, m.Fault.Nodes = &Mismatch{Share: 0.2, More: 0.05, Less: 0.1}, 1
	}).run(1, 0, true)
	mismatched := make([]int, 200)
	for r.Next() {
		for i, v := range r.Values {
			clock := 0.9
			if v > 1 {
				assert.InDelta(t, 1.05, v, 1e-12)
				clock *= 0.9
				mismatched[i]++
			}
			assert.InDelta(t, clock, r.Clocks[i], 1e-12)
		}
	}
	nodes := 0
	for i, ticks := range mismatched {
		if ticks > 0 {
			nodes++
			assert.Equal(t, 360, ticks)
			assert.Nil(t, r.nodes[i].fault)
		}
	}
	assert.InDelta(t, 40, nodes, 15)
}

// TestMissing: as many reports are lost as the law has it.
func TestMissing(t *testing.T) {
	n := 0
	for _, node := range noise(t, named(func(m *Model) { m.Missing = 0.3 })) {
		n += len(node)
	}
	assert.InEpsilon(t, 8*3600*0.7, n, 0.02)
}
