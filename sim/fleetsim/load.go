// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math/rand/v2"
	"time"
)

// demand is what a training job asks of a GPU. Every few seconds a step ends with the exchange
// of gradients. Every half hour the GPUs wait a minute for a checkpoint.
type demand struct {
	work   float64 // how much of full power the kernels draw, 0 to 1
	busy   float64 // part of the time that any kernel runs, 0 to 1
	memory float64 // part of the memory that is allocated
	links  float64 // part of the link rates in use
}

const (
	stepTime        = 6 * time.Second
	exchangePart    = 0.15 // of a step
	checkpointEvery = 30 * time.Minute
	checkpointTime  = time.Minute
)

// schedule is the demand over time on all GPUs of a job.
type schedule struct {
	phase  time.Duration // where in the cycle of checkpoints the job starts
	memory float64
}

func newSchedule(rng *rand.Rand) schedule {
	return schedule{phase: time.Duration(rng.Int64N(int64(checkpointEvery))), memory: 0.7 + 0.2*rng.Float64()}
}

func (s *schedule) at(t, dt time.Duration) demand {
	t += s.phase
	if t%checkpointEvery < checkpointTime {
		return demand{work: 0.05, busy: 0.02, memory: s.memory, links: 0.02}
	}
	// The share of dt in which the training step exchanges.
	exchange := overlap(t%stepTime, dt, stepTime)
	return demand{
		work: 0.97*(1-exchange) + 0.55*exchange, busy: 1, memory: s.memory,
		links: 0.3*(1-exchange) + exchange,
	}
}

// waitWork is the work of a GPU that waits for the others of its job: a kernel of the
// communication library spins, at a fraction of the power that is our judgement.
const waitWork = 0.4

// waiting is the demand of a GPU of that speed in a job that steps at pace: a faster GPU waits
// for the slowest. Starved is the part of the time in which the host does not feed the GPU.
func (d demand) waiting(pace, speed, starved float64) demand {
	if speed > pace && d.busy == 1 { // not in a checkpoint
		works := pace / speed
		d.work = works*d.work + (1-works)*min(waitWork, d.work)
		d.links *= works
	}
	if starved > 0 {
		d.work, d.busy, d.links = d.work*(1-starved), d.busy*(1-starved), d.links*(1-starved)
	}
	return d
}

// overlap is the part of the dt before t, a time within a cycle, that is on the cycle's end.
func overlap(t, dt, cycle time.Duration) float64 {
	from := cycle - time.Duration(exchangePart*float64(cycle))
	in := max(0, t-max(from, t-dt))
	if t < dt { // dt reaches into the cycle before
		in += min(cycle-from, dt-t)
	}
	return min(1, in.Seconds()/dt.Seconds())
}
