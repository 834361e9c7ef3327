// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

var noPeers threshold.Received

// peersAt are the parameters of peers with this median step rate.
func peersAt(centre float64) straggler.Params {
	return straggler.Params{
		Centre: centre, Relative: true, MinGap: 0.05, Scale: 0.01, MaxBias: 0.02,
		Limits: [...]float64{11, 9, 12}, Elapsed: interval,
	}
}

// answer is what comes back with the push that has just been: the tick before
// it, in which the peers had this centre.
func (r *rig) answer(centre float64, more ...threshold.SignalParams) *threshold.Received {
	last := r.now.Add(-interval)
	return &threshold.Received{
		Value: threshold.Value{
			Version: last.UnixMilli(), Threshold: 0.9, Median: 0.99, Ref: 20, QuorumMet: true, TTL: 50 * time.Second,
			Signals: append(more, threshold.SignalParams{Signal: nodesignal.Throughput, Params: peersAt(centre)}),
		},
		At: last, First: last, After: last.Add(-interval),
	}
}

func TestADipOfAllIsComparedWithTheSameDip(t *testing.T) {
	r := newRig(t)
	// rates are what the fleet, and the node, do in each interval.
	rates := []float64{20, 20, 20, 20, 20, 20, 20, 20, 20, 4, 4, 4, 20, 20, 12, 20, 20, 20, 20}
	for i, rate := range rates {
		var peers *threshold.Received
		if i >= 2 {
			peers = r.answer(rates[i-2])
		}
		res := r.step(peers, of(StepRate, rate))
		assert.Zero(t, res.Suspicion, "at %d", i)
	}
}

func TestSlowFromTheFirstStepAmongPeers(t *testing.T) {
	r := newRig(t)
	onset := -1
	for i := range 20 {
		res := r.step(r.answer(20), of(StepRate, 17))
		if res.Changed {
			assert.True(t, res.Straggler)
			assert.Equal(t, nodesignal.Throughput, res.Signal)
			onset = i
		}
		assert.True(t, res.BySignals)
	}
	// The first two answers are of no push of its. Six values warm up. The last of
	// them is the first of three that decide.
	assert.Equal(t, 2+6-1+3-1, onset)
}

func TestSumsStandStillWithoutTheGateway(t *testing.T) {
	r := newRig(t)
	var last *threshold.Received
	for range 12 {
		last = r.answer(20)
		r.step(last, of(StepRate, 20))
	}
	// The whole fleet slows down while the gateway is away, and in the answer
	// that is repeated its centre is as it was.
	for i := range 40 {
		res := r.step(last, of(StepRate, 18.5))
		assert.Zero(t, res.Suspicion)
		assert.False(t, res.Straggler)
		assert.Equal(t, i < 4, res.BySignals)
	}

	r = newRig(t)
	for range 12 {
		last = r.answer(20)
		r.step(last, of(StepRate, 16))
	}
	require.True(t, r.n.straggler)
	modes := map[Mode]bool{}
	for range 33 {
		res := r.step(last, of(StepRate, 18.5))
		modes[res.Mode] = res.Straggler
	}
	assert.Equal(t, map[Mode]bool{ModeFleet: true, ModeCached: true, ModeLocal: false}, modes,
		"the verdict stands until what the peers said is too old")
}

func TestThePlainRuleWatchesMeanwhile(t *testing.T) {
	r := newRig(t)
	var last *threshold.Received
	for range 12 {
		last = r.answer(20)
		r.step(last, of(StepRate, 20))
	}
	var res Result
	for range 12 {
		res = r.step(last, of(StepRate, 10))
	}
	assert.Equal(t, ModeCached, res.Mode)
	assert.True(t, res.Straggler)
	for range 8 {
		res = r.step(r.answer(20), of(StepRate, 20))
	}
	assert.False(t, res.Straggler, "the peers' word replaces it")
}

func TestANodeFindsItsCohort(t *testing.T) {
	upper := threshold.SignalParams{Signal: nodesignal.Throughput, From: 15, HasFrom: true, Params: peersAt(30)}
	for rate, slow := range map[float64]bool{30: false, 27: true, 10: false, 8.5: true} {
		r := newRig(t)
		var res Result
		for range 15 {
			res = r.step(r.answer(10, upper), of(StepRate, rate))
		}
		assert.Equal(t, slow, res.Straggler, "%v", rate)
	}
}

// TestANodeFindsItsCohortByAnotherSignal: its group is split by the clock.
func TestANodeFindsItsCohortByAnotherSignal(t *testing.T) {
	upper := threshold.SignalParams{Signal: nodesignal.Throughput, From: 0.5, By: nodesignal.CPU, HasFrom: true, Params: peersAt(30)}
	for cpu, slow := range map[float64]bool{0.4: false, 0.6: true} {
		r := newRig(t)
		var res Result
		for i := range 30 {
			signals := []threshold.SignalParams{}
			if i >= 10 {
				signals = append(signals, upper)
			}
			res = r.step(r.answer(10, signals...), of(StepRate, 10), of(CPUPressure, 1-cpu))
		}
		assert.Equal(t, slow, res.Straggler, "%v", cpu)
	}
}

func TestNobodyIsAccusedByWhatNobodyMeasures(t *testing.T) {
	r := newRig(t)
	for i := range 60 {
		centre := 20.0
		if i > 40 {
			centre = 30
		}
		res := r.step(r.answer(centre), of(StepRate, 20))
		require.False(t, res.Straggler, "the peers moved, and it says the same as ever")
	}
	for i := range 12 {
		r.step(r.answer(30), of(StepRate, 20+float64(i%2)))
	}
	assert.True(t, r.n.straggler)
}

func TestATickWithoutParametersEndsTheVerdict(t *testing.T) {
	r := newRig(t)
	for range 12 {
		r.step(r.answer(20), of(StepRate, 17))
	}
	require.True(t, r.n.straggler)
	few := r.answer(20)
	few.Signals, few.QuorumMet, few.Threshold = nil, false, 0
	res := r.step(few, of(StepRate, 17))
	assert.False(t, res.Straggler, "with whom should it be compared")
	assert.Zero(t, res.Suspicion)
}

func TestATickIsSteppedOnce(t *testing.T) {
	r := newRig(t)
	for range 8 {
		r.step(r.answer(20), of(StepRate, 20))
	}
	p := r.answer(20)
	first := r.step(p, of(StepRate, 10))
	r.step(p, of(StepRate, 10))
	again := r.answer(20)
	again.Version = p.Version
	for range 5 {
		assert.InDelta(t, first.Suspicion, r.step(again, of(StepRate, 10)).Suspicion, 0)
	}
}

// TestTheFirstAnswerOfAGroup is of a tick that the node's pushes had reached.
func TestTheFirstAnswerOfAGroup(t *testing.T) {
	r := newRig(t)
	for range 6 {
		r.step(nil, of(StepRate, 16))
	}
	for range 7 {
		r.step(nil, of(StepRate, 16))
	}
	r.step(nil, of(StepRate, 40))
	first := r.answer(20)
	first.After = time.Time{}
	assert.NotZero(t, r.step(first, of(StepRate, 16)).Suspicion, "it was warm by then, and slow in the push before the newest")
}

func TestALongSilenceEndsTheVerdict(t *testing.T) {
	r := newRig(t)
	for range 12 {
		r.step(r.answer(20), of(StepRate, 16))
	}
	require.True(t, r.n.straggler)
	r.now = r.now.Add(52 * time.Second)
	late := r.answer(20)
	late.After = late.First.Add(-time.Minute)
	res := r.step(late, of(StepRate, 16))
	assert.False(t, res.Straggler, "to the gateway it was missing")
	assert.Zero(t, r.n.trackers.warm, "what it pushed a minute ago is not of this tick")
}

func TestWhatTheSumsSuspectIsNotLearnt(t *testing.T) {
	r := newRig(t)
	step := func() Result {
		p := r.answer(20)
		p.Signals[0].MaxBias = 0
		return r.step(p, of(StepRate, 19.4))
	}
	res := step()
	for res.Suspicion < 0.5 {
		res = step()
	}
	before := r.n.rate.n
	res = step()
	assert.Less(t, res.Suspicion, 1.0)
	assert.Equal(t, before, r.n.rate.n)
}

// TestAMeanStandsStillInAnIncident that the gateway tells of, once it is a mean.
func TestAMeanStandsStillInAnIncident(t *testing.T) {
	r := newRig(t)
	step := func(rate float64, hold bool) float64 {
		peers := r.answer(20)
		peers.Hold = hold
		r.step(peers, of(StepRate, rate))
		return r.n.trackers.cohort.means[nodesignal.Throughput].value
	}
	young := 0.0
	for range 10 {
		young = step(20, true)
	}
	assert.InDelta(t, 20, young, 1e-9, "a young mean is learnt in an incident too")
	step(19.9, false)
	step(19.9, false)
	before := step(19.9, false)
	assert.Less(t, before, 20.0)
	for range 3 {
		assert.InDelta(t, before, step(19.9, true), 0)
	}
	assert.Less(t, step(19.9, false), before)
}
