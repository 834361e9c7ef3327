// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func play(t *testing.T, job Job, f *Faults) (p *Play, shares []float64, seconds float64) {
	require.NoError(t, job.Validate())
	p = New(job, rand.New(rand.NewPCG(1, 2)))
	for range 20 {
		p.Step(f)
	}
	seconds = p.Now()
	return p, p.Shares(seconds, nil), seconds
}

func job() Job {
	return Job{TP: 4, DP: 4, PP: 1, GPUs: 8, MicroBatches: 4, Blocks: 2, Compute: 0.1, TensorTime: 0.01, DataTime: 0.1}
}

// Without noise a rank's time is what the job's operations take.
func TestTheTimeOfAStep(t *testing.T) {
	_, shares, seconds := play(t, job(), &Faults{})
	const step = 4*2*(0.1+0.01) + 0.1
	assert.InDelta(t, 20*step, seconds, 1e-9)
	for _, s := range shares {
		assert.InDelta(t, (4*2*0.01+0.1)/step, s, 1e-9)
	}
}

// A rank that computes longer delays all, and waits least.
func TestTheLateOneWaitsLeast(t *testing.T) {
	for name, change := range map[string]func(*Job){
		"in lockstep": func(*Job) {},
		"noise":       func(j *Job) { j.Noise, j.Bias = 0.04, 0.01 },
		"stages":      func(j *Job) { j.DP, j.PP, j.PipeTime = 2, 2, 0.001 },
		"overlap":     func(j *Job) { j.Overlap, j.DataTime = true, 0.02 },
	} {
		t.Run(name, func(t *testing.T) {
			j := job()
			change(&j)
			_, _, well := play(t, j, &Faults{})
			slower := make([]float64, j.Ranks())
			slower[5] = 0.2
			p, shares, seconds := play(t, j, &Faults{Slower: slower})
			assert.Greater(t, seconds, 1.1*well)
			assert.Equal(t, 5, slices.Index(shares, slices.Min(shares)))
			assert.Greater(t, p.Took(), 0.0)
		})
	}
}

// A slow rail takes all ranks' time alike, and its own operations take longer.
func TestASlowRail(t *testing.T) {
	j := job()
	p, shares, _ := play(t, j, &Faults{Rail: 3, RailOf: 1})
	for rank, want := range map[int]float64{1: 0.3, 5: 0.3, 0: 0.1, 6: 0.1} {
		least, total := p.Data(rank)
		assert.InDelta(t, want, least, 1e-9)
		assert.InDelta(t, 20*want, total, 1e-9)
	}
	least, total := p.Data(1)
	assert.Zero(t, least+total, "nothing since")
	assert.Equal(t, 1, p.DataGroup(13))
	assert.Less(t, slices.Max(shares)-slices.Min(shares), 0.01)
}

func TestValidate(t *testing.T) {
	for _, change := range []func(*Job){
		func(j *Job) { j.TP = 0 }, func(j *Job) { j.GPUs = 7 }, func(j *Job) { j.Compute = 0 }, func(j *Job) { j.Noise = -1 },
	} {
		j := job()
		change(&j)
		assert.Error(t, j.Validate())
	}
}
