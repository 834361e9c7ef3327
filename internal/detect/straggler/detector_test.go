// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// TestALossIsTold: the greater the loss and the calmer the peers, the sooner. A small one
// is found by a longer window. Three calm minutes end it.
func TestALossIsFound(t *testing.T) {
	for _, tc := range []struct {
		noise, loss float64
		from, to    int // ticks from the loss to the onset
	}{
		{0.005, 0.50, 3, 4},
		{0.005, 0.20, 3, 4},
		{0.01, 0.50, 3, 4},
		{0.01, 0.20, 3, 5},
		{0.01, 0.10, 3, 12},
		{0.02, 0.10, 4, 40},
		{0.005, 0.03, 5, 20},
		{0.01, 0.03, 8, 60},
	} {
		t.Run(fmt.Sprintf("%v %% under %v %%", 100*tc.loss, 100*tc.noise), func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 32, nil)
			p.noise = tc.noise
			require.Empty(t, p.ticks(540))
			began := p.now
			lose(tc.loss, 5)(p)
			var events []episode.Episode
			after := 0
			for ; len(events) == 0 && after < 360; after++ {
				events = p.ticks(1)
			}
			require.Equal(t, []string{"node onset j-05"}, brief(events))
			assert.True(t, after >= tc.from && after <= tc.to, "found after %d ticks", after)
			ev := events[0]
			assert.Equal(t, nodesignal.Throughput.String(), ev.Signal)
			assert.InDelta(t, 0, ev.Since.Sub(began).Seconds(), map[bool]float64{true: 20, false: 180}[tc.loss >= 0.1])
			assert.InDelta(t, tc.loss, *ev.Gap, 0.02)
			assert.InDelta(t, 10, *ev.Median, 0.1)
			assert.InDelta(t, 10*(1-tc.loss), *ev.Value, 10*3*tc.noise)
			assert.True(t, *ev.Confidence > 0.6 && *ev.Confidence < 0.9, "%v", *ev.Confidence)
			assert.EqualValues(t, 1, *ev.Rank)
			assert.EqualValues(t, 32, *ev.Active)
			p.ticks(60)
			assert.InDelta(t, tc.loss, p.node("j-05").Gap, 0.012)
			assert.Equal(t, ev.Since, p.node("j-05").Since)

			p.loss = nil
			for after = 0; len(events) != 1 || events[0].Phase != episode.PhaseEnd; after++ {
				require.Less(t, after, 200)
				events = p.ticks(1)
			}
			assert.Equal(t, []string{"node end j-05 recovered"}, brief(events))
			assert.GreaterOrEqual(t, after, 18, "three minutes")
			assert.LessOrEqual(t, after, map[bool]int{true: 22, false: 60}[tc.loss >= 0.2 || tc.noise < 0.01 && tc.loss >= 0.1],
				"and what the window takes that saw it: ten, where two minutes showed nothing")
		})
	}
}

// TestNature: nodes that always differ by up to 9 % are no stragglers. What one of them
// loses on top is found, and reported without its baseline. A node that was away is still that
// node; what one does after it was idle may be something else.
func TestNature(t *testing.T) {
	natures := func(t *testing.T) (*play, map[int]float64) {
		p := newPlay(t, []string{"j"}, 32, nil)
		p.noise = 0.005
		loss := map[int]float64{}
		for i := range 32 {
			loss[i] = 0.003 * float64(i)
		}
		loseEach(loss)(p)
		require.Empty(t, p.ticks(4*360))
		return p, loss
	}
	for name, tc := range map[string]struct {
		then  func(p *play, loss map[int]float64)
		ticks int
		want  []string
	}{
		"10 % more": {func(_ *play, loss map[int]float64) { loss[31] = 0.19 }, 30, []string{"node onset j-31"}},
		"away for five minutes": {func(p *play, _ map[int]float64) {
			missing(31)(p)
			require.Equal(p.t, []string{"missing onset j-31"}, brief(p.ticks(30)))
			missing()(p)
			require.Equal(p.t, []string{"missing end j-31 recovered"}, brief(p.ticks(1)))
		}, 180, nil},
		"idle for a minute": {func(p *play, _ map[int]float64) {
			idle(31)(p)
			require.Empty(p.t, p.ticks(6))
			idle()(p)
		}, 60, []string{"node onset j-31"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, loss := natures(t)
			tc.then(p, loss)
			events := p.ticks(tc.ticks)
			require.Equal(t, tc.want, brief(events))
			if loss[31] > 0.1 { // of what is left
				assert.InDelta(t, 0.10, *events[0].Gap, 0.02)
			}
		})
	}
}

// TestSignals: whatever a signal's direction and unit are, a loss of its own `min_gap` is
// found, and what is far below is not.
func TestSignals(t *testing.T) {
	high := func(s nodesignal.Signal) func(*Config) {
		return func(c *Config) { c.Signals[s].Decides, c.Signals[s].Direction = true, nodesignal.High }
	}
	for name, tc := range map[string]struct {
		signal    nodesignal.Signal
		config    func(*Config)
		usual, is float64
		gap       float64 // reported, 0 for none
	}{
		"a clock that falls by 6 points":        {nodesignal.Compute, nil, 0.98, 0.92, 0.06},
		"a clock that falls by 1 point":         {nodesignal.Compute, nil, 0.98, 0.97, 0},
		"a higher clock":                        {nodesignal.Compute, nil, 0.70, 0.98, 0},
		"links at half":                         {nodesignal.Interconnect, nil, 0.9, 0.45, 0.45},
		"links 2 points less":                   {nodesignal.Interconnect, nil, 0.9, 0.88, 0},
		"a CPU that others use":                 {nodesignal.CPU, nil, 0.98, 0.73, 0.25},
		"a CPU that others use a little":        {nodesignal.CPU, nil, 0.98, 0.93, 0},
		"a score":                               {nodesignal.Score, nil, 0.95, 0.80, 0.15},
		"power decides nothing":                 {nodesignal.Power, nil, 3000, 1500, 0},
		"memory decides nothing":                {nodesignal.Memory, nil, 0.9, 0.1, 0},
		"power that decides":                    {nodesignal.Power, high(nodesignal.Power), 3000, 4500, 0.333},
		"less power where more is bad":          {nodesignal.Power, high(nodesignal.Power), 3000, 2000, 0},
		"a step time: a rate where more is bad": {nodesignal.Throughput, high(nodesignal.Throughput), 2, 2.5, 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 16, tc.config)
			p.also = func(o *nodesignal.Observation, i int) {
				x := tc.usual
				if i == 3 && p.k >= 90 {
					x = tc.is
				}
				x *= 1 + 0.002*p.draw.NormFloat64()
				o.Values = nodesignal.Values{}
				if tc.signal == nodesignal.Score {
					o.Score, o.HasScore = x, true
				} else {
					o.Values.Set(tc.signal, x)
				}
			}
			events := p.ticks(150)
			if tc.gap == 0 {
				require.Empty(t, events)
				return
			}
			require.Equal(t, []string{"node onset j-03"}, brief(events))
			assert.Equal(t, tc.signal.String(), events[0].Signal)
			assert.InDelta(t, tc.gap, *events[0].Gap, 0.02)
			assert.InDelta(t, tc.usual, *events[0].Median, 0.01*tc.usual)
			assert.InDelta(t, tc.is, *events[0].Value, 0.02*tc.is)
		})
	}
}

// TestTheWorstSignalIsNamed, in terms of what is worth an alert.
func TestTheWorstSignalIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		rate, clock, cpu float64 // losses
		want             nodesignal.Signal
	}{
		"the clock, not what follows of it": {0.10, 0.40, 0, nodesignal.Compute},
		"the rate":                          {0.30, 0.10, 0, nodesignal.Throughput},
		"20 points of the CPU are less":     {0.20, 0, 0.25, nodesignal.Throughput},
		"but half of it is more":            {0.10, 0, 0.5, nodesignal.CPU},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 16, nil)
			p.also = func(o *nodesignal.Observation, i int) {
				o.Values.Set(nodesignal.Compute, 0.95)
				o.Values.Set(nodesignal.CPU, 0.98)
				if i == 3 && p.k >= 60 {
					o.Values.Set(nodesignal.Compute, 0.95-tc.clock)
					o.Values.Set(nodesignal.CPU, 0.98-tc.cpu)
				}
			}
			require.Empty(t, p.ticks(60))
			lose(tc.rate, 3)(p)
			require.Equal(t, "node onset j-03", brief(p.ticks(40))[0])
			n := p.node("j-03")
			assert.Equal(t, tc.want, n.Signal)
			assert.InDelta(t, []float64{tc.rate, tc.clock, 0, tc.cpu}[tc.want], n.Gap, 0.02)
		})
	}
}

// TestTheDetectableLossIsFound within the hour, and half of it is not.
func TestTheDetectableLossIsFound(t *testing.T) {
	was := 0.0
	for _, noise := range []float64{0.005, 0.02, 0.06} {
		p := newPlay(t, []string{"j"}, 24, nil)
		p.noise = noise
		require.Empty(t, p.ticks(3*360))
		loss := p.group().Detectable
		assert.GreaterOrEqual(t, loss, was, "more noise makes it greater")
		was = loss
		lose(loss/2, 3)(p)
		require.Empty(t, p.ticks(360), "%v under %v", loss/2, noise)
		lose(0)(p)
		require.Empty(t, p.ticks(3*360))
		lose(1.15*p.group().Detectable, 3)(p)
		require.Equal(t, []string{"node onset j-03"}, brief(p.ticks(360)), "%v under %v", loss, noise)
	}
}

// TestNewcomers: the caches of one that comes to a settled group are cold for five
// minutes. Where all come together each is compared after a minute.
func TestNewcomers(t *testing.T) {
	late := func(p *play) { p.idle = func(_ string, i int) bool { return i == 3 && p.k < 120 } }
	runStories(t, map[string]story{
		"cold for four minutes": {steps: []step{
			{do: both(late, lose(0.4, 3)), ticks: 144},
			{do: lose(0), ticks: 100},
		}},
		"slow for longer": {steps: []step{
			{do: both(late, lose(0.4, 3)), ticks: 149},
			{ticks: 5, want: []string{"node onset j-03"}},
		}},
		"slow from the first, with all": {steps: []step{
			{do: lose(0.4, 3), ticks: 2},
			{ticks: 1, want: []string{"node onset j-03"}},
		}},
	})
}

// TestPhasesOfAll are no faults: a restart with a ramp, checkpoints, pauses of each at
// its own time, and a load that goes.
func TestPhasesOfAll(t *testing.T) {
	for name, share := range map[string]func(k, i int) float64{ // of the usual work
		"a restart with a ramp": func(k, _ int) float64 { return min(max(float64(k-420)/30, 0.02), 1) },
		"checkpoints":           func(k, _ int) float64 { return map[bool]float64{true: 0.5, false: 1}[k%90 < 4] },
		"each at its own time":  func(k, i int) float64 { return map[bool]float64{true: 0.1, false: 1}[(k+5*i)%120 < 2] },
		"a load that goes":      func(k, _ int) float64 { return min(max(1.5-float64(k)/1000, 0.2), 1) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlay(t, []string{"j"}, 24, nil)
			p.noise = 0.01
			require.Empty(t, p.ticks(300))
			p.loss = func(_ string, i int) float64 { return 1 - share(p.k, i) }
			assert.Empty(t, p.ticks(800))
		})
	}
}

// TestLargeLossesAreFoundSoon in young groups and old ones, whatever the limits learnt, and
// by half of the nodes at once. Since stays what it was while the verdict lasts.
func TestLargeLossesAreFoundSoon(t *testing.T) {
	for name, tt := range map[string]struct {
		noise, loss  float64
		young, slow  int
		within, slot int
		differ       float64 // always, by normal numbers of this deviation
	}{
		"a young group":           {0.02, 0.4, 10, 1, 12, 3, 0},
		"half of all stop":        {0.01, 1, 360, 10, 24, 0, 0},
		"half lose a third":       {0.01, 0.33, 360, 10, 24, 0, 0},
		"young nodes that differ": {0.002, 0.4, 12, 1, 30, 3, 0.03},
		"a quarter of an hour in": {0.002, 0.4, 90, 1, 30, 3, 0.03},
	} {
		t.Run(name, func(t *testing.T) {
			p, kind := newPlay(t, []string{"a"}, 20, nil), rand.New(rand.NewPCG(4, 1))
			baseline := [20]float64{}
			for i := range baseline {
				baseline[i] = 1 + tt.differ*kind.NormFloat64()
			}
			p.noise = tt.noise
			p.loss = func(_ string, i int) float64 {
				if i >= tt.slot && i < tt.slot+tt.slow && p.k >= tt.young {
					return 1 - baseline[i]*(1-tt.loss)
				}
				return 1 - baseline[i]
			}
			var since time.Time
			for p.k < tt.young+60 {
				p.ticks(1)
				slow, n := stragglers(p.last), p.node(nodeName("a", tt.slot))
				require.LessOrEqual(t, len(slow), tt.slow)
				require.True(t, p.k > tt.young || len(slow) == 0, "%v", slow)
				if n.Straggler && since.IsZero() {
					since = n.Since
					assert.LessOrEqual(t, p.k-1-tt.young, tt.within)
				}
				require.True(t, !n.Straggler || n.Since.Equal(since))
			}
			assert.False(t, since.IsZero())
		})
	}
}

// TestAStepOfCoarseValues is no loss once three nodes rose by it, and two steps are one.
func TestAStepOfCoarseValues(t *testing.T) {
	p := newPlay(t, []string{"j"}, 20, nil)
	coarse := func(steps float64) {
		p.also = func(o *nodesignal.Observation, i int) {
			x := 1.0
			if i == 5 {
				x -= 0.05 * steps
			} else if (p.k+7*i)%60 == 0 {
				x -= 0.05
			}
			o.Values = throughput(x)
		}
	}
	coarse(0)
	require.Empty(t, p.ticks(400))
	coarse(1)
	require.Empty(t, p.ticks(200))
	coarse(3)
	assert.Equal(t, []string{"node onset j-05"}, brief(p.ticks(30)))
}

// TestAShiftOfAll nodes moves no limit: their deviations are about those of their peers.
func TestAShiftOfAll(t *testing.T) {
	l := normal{U: [windows]float64{1, 1, 1, 1}}
	e := New(DefaultConfig())
	tracks, ref := make([]track, 9), make([]int32, 9)
	for i := range tracks {
		ref[i], tracks[i].E[0] = int32(i), 0.1+0.001*float32(i-4)
	}
	e.limit(&l, tracks, ref, 0, 1, 0.05)
	assert.InDelta(t, 0.1, l.Shift[0], 1e-6)
	assert.Less(t, l.D[0], 0.01)
}
