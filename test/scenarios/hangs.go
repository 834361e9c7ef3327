// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// HangCase is a family of jobs that make pauses: steps, checkpoints, evaluations. Most of
// them stand still in the end.
type HangCase struct {
	Name string
	Runs int
	// Hangs is false of healthy jobs, Power is of jobs without the Inspector, and Told of
	// those where RAS knows a laggard.
	Hangs, Power, Told bool
	Hours              float64
}

// HangCases returns them all.
func HangCases() []HangCase {
	return []HangCase{
		{Name: "named", Runs: 100, Hangs: true, Told: true, Hours: 1.5},
		{Name: "equal", Runs: 100, Hangs: true, Hours: 1.5},
		{Name: "power", Runs: 100, Hangs: true, Power: true, Hours: 1.5},
		{Name: "healthy", Runs: 40, Hours: 12},
		{Name: "healthy_power", Runs: 40, Power: true, Hours: 12},
	}
}

// HangOutcome is what came of a case.
type HangOutcome struct {
	Case HangCase
	// Hangs there were; of them those with a record in time, and with exactly one. Beyond
	// has how long after the longest pause the records came.
	Hangs, InTime, Single int
	Beyond                []time.Duration
	// Named counts hangs with the right rank alone, at once or in an update of the record,
	// Misnamed those with another.
	Named, Misnamed int
	// False records, in JobDays of work.
	False   int
	JobDays float64
}

// The promises.
const (
	hangWithin    = 90 * time.Second
	mostHangFalse = 0.01
)

type hangModel struct {
	nodes        int
	step         time.Duration
	every, pause time.Duration // checkpoints
	vary         float64       // how much pauses differ
	watts, spin  float64
	idles        bool // GPUs are idle in a checkpoint, and else spin
	skew         []time.Duration
	phase        []time.Duration
}

func drawHang(r *rand.Rand) hangModel {
	m := hangModel{
		nodes: 2 + r.IntN(15), step: time.Duration(logUniform(r, 1, 30) * float64(time.Second)),
		every: time.Duration(logUniform(r, 5, 40) * float64(time.Minute)), pause: time.Duration(logUniform(r, 5, 300) * float64(time.Second)),
		vary: 0.3 * r.Float64(), watts: 3000 + 3000*r.Float64(), spin: 0.2 + 0.2*r.Float64(), idles: r.IntN(2) == 0,
	}
	for range m.nodes {
		m.skew = append(m.skew, time.Duration(r.NormFloat64()*float64(time.Minute)))
		m.phase = append(m.phase, time.Duration(r.IntN(int(Interval))))
	}
	return m
}

// EvaluateHangs plays all cases.
func EvaluateHangs(ctx context.Context, cases []HangCase, seed uint64, progress func(done, runs int, name string)) ([]HangOutcome, error) {
	var out []HangOutcome
	runs, done := 0, 0
	for i := range cases {
		runs += cases[i].Runs
	}
	for _, c := range cases {
		o := HangOutcome{Case: c}
		for run := range c.Runs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			h := fnv.New64a()
			_, _ = fmt.Fprintf(h, "hang %s %d", c.Name, run) // never fails
			rng := rand.New(rand.NewPCG(seed, h.Sum64()))
			p := &hangPlay{c: &c, m: drawHang(rng), rng: rng, book: hang.New(hang.DefaultConfig(), 1<<20)}
			if err := p.play(&o); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
			done++
			progress(done, runs, c.Name)
		}
		out = append(out, o)
	}
	return out, nil
}

// HangFigures prints them.
func HangFigures(w io.Writer, results []HangOutcome) {
	for i := range results {
		o := &results[i]
		name, n := "eval_hangs_"+o.Case.Name+"_", float64(o.Hangs)
		if o.Hangs > 0 {
			figure.Fprint(w, name+"in_time", float64(o.InTime)/n, "share", 1, false)
			figure.Fprint(w, name+"single", float64(o.Single)/n, "share", 1, false)
			figure.Fprint(w, name+"beyond_max", figure.Quantile(o.Beyond, 1).Seconds(), "s", hangWithin.Seconds(), true)
			if o.Case.Told {
				figure.Fprint(w, name+"laggards", float64(o.Named)/n, "share", 1, false)
			}
			figure.Fprint(w, name+"misnamed", float64(o.Misnamed), "{record}", 0, true)
		}
		figure.Fprint(w, name+"false", float64(o.False)/o.JobDays, "/job-day", mostHangFalse, true)
	}
}

// hangPlay is one run.
type hangPlay struct {
	c    *HangCase
	m    hangModel
	rng  *rand.Rand
	book *hang.Book

	done    time.Duration // when the last operation ended
	until   time.Duration // of a pause
	next    time.Duration // checkpoint
	longest time.Duration // between the ends of two operations
	paused  time.Duration // the same by their dumps, twice a second
	hung    time.Duration // since when, 0 for not
	asked   time.Duration // when RAS was first
	late    int64         // rank
}

// operations of a step, the last at its end.
const hangOperations = 4

func (p *hangPlay) play(o *HangOutcome) error {
	end := time.Duration(p.c.Hours * float64(time.Hour))
	p.next = p.m.every
	hangs := end + time.Duration(p.rng.Float64()*float64(time.Hour))
	if p.c.Hangs {
		end = hangs + 2*time.Hour
	}
	p.late = int64(p.rng.IntN(8 * p.m.nodes))
	records := 0
	for at := Interval; at <= end; at += Interval {
		if p.c.Hangs && p.hung == 0 && at > hangs && at > p.until {
			p.hung = p.done
			o.Hangs++
		}
		p.work(at)
		if err := p.report(at); err != nil {
			return err
		}
		if p.hung == 0 {
			o.JobDays += Interval.Hours() / 24
		}
		for _, e := range p.book.Tick(epoch.Add(at)) {
			switch {
			case e.Kind == straggler.EventEnd:
			case p.hung == 0:
				o.False++
			default:
				if e.Kind == straggler.EventOnset {
					records++
				}
				if records == 1 && e.Kind == straggler.EventOnset {
					o.Beyond = append(o.Beyond, at-p.hung-p.longest)
					if at-p.hung-p.longest <= hangWithin {
						o.InTime++
					}
				}
				switch {
				case p.c.Told && len(e.Laggards) == 1 && e.Laggards[0].Subject.Rank == nodesignal.OrdinalOf(p.late):
					o.Named++
				case len(e.Laggards) > 0:
					o.Misnamed++
				}
			}
		}
	}
	if records == 1 {
		o.Single++
	}
	return nil
}

// work lets operations end up to a time.
func (p *hangPlay) work(at time.Duration) {
	for p.hung == 0 {
		ends := max(p.done, p.until) + p.m.step/hangOperations
		if ends > at {
			return
		}
		p.longest = max(p.longest, ends-p.done)
		p.paused = max(p.paused, dumped(ends)-dumped(p.done))
		p.done = ends
		if ends >= p.next {
			p.until = ends + time.Duration(float64(p.m.pause)*(1+p.m.vary*(2*p.rng.Float64()-1)))
			p.next = p.until + p.m.every
		}
	}
}

// dumped is when the plug-in writes what ended at a time.
func dumped(at time.Duration) time.Duration {
	const each = 500 * time.Millisecond
	return (at + each - 1) / each * each
}

// report is what the agents push: each at its own moment, by its own clock, some late and
// some never.
func (p *hangPlay) report(at time.Duration) error {
	pausing := at < p.until
	for n := range p.m.nodes {
		if p.rng.IntN(100) == 0 {
			continue
		}
		scraped := at - p.m.phase[n]/2 // before this tick
		arrived := epoch.Add(min(scraped+time.Duration(p.rng.IntN(3000))*time.Millisecond, at))
		name := nodeName(n, 0)
		if p.c.Power {
			d := hang.Draw{Busy: true, HasBusy: true, Watts: p.m.watts, HasWatts: true}
			if pausing || p.hung > 0 {
				d.Watts *= p.m.spin
				d.Busy = !pausing || !p.m.idles
			}
			d.Watts *= 1 + 0.05*p.rng.NormFloat64()
			if err := p.book.Power(cluster, "job", name, d, arrived); err != nil {
				return err
			}
			continue
		}
		clock := epoch.Add(p.m.skew[n])
		for r := range int64(8) {
			rank := int64(n)*8 + r
			of := hang.Of{Communicator: "0xa", Rank: rank}
			if err := p.book.Progress(cluster, "job", name, of, nodesignal.Subject{Rank: nodesignal.OrdinalOf(rank)},
				clock.Add(min(dumped(p.done), scraped)), clock.Add(scraped), arrived); err != nil {
				return err
			}
			if err := p.book.Pause(cluster, "job", nodesignal.Subject{Rank: nodesignal.OrdinalOf(rank)}, p.paused); err != nil {
				return err
			}
		}
		// The agent of the first ranks asks when the job stands longer than ever before, and
		// a minute later. One question to a job that goes on says nothing.
		if p.hung == 0 || !p.c.Told || n != 0 {
			continue
		}
		if p.asked == 0 && scraped-dumped(p.done) >= max(10*time.Second, p.paused+2*time.Second) {
			p.asked = scraped
		}
		if p.asked > 0 && scraped >= p.asked+time.Minute {
			if err := p.book.Lag(cluster, "job", hang.Laggard{Of: hang.Of{Communicator: "0xa", Rank: p.late}}, arrived); err != nil {
				return err
			}
		}
	}
	return nil
}
