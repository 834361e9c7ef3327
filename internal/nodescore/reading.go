// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// Reading collects the values of one push of one node. The zero value is empty.
type Reading struct {
	points []point
}

type point struct {
	gpu     string // empty for what is the node's
	index   int
	counter bool
	value   float64
}

// Add takes one value of a GPU, or of the node where gpu is empty; it reports
// false for one that is not finite or negative. gpu is kept until Reset.
func (r *Reading) Add(in *Input, gpu string, v float64) bool {
	if !(v >= 0) || math.IsInf(v, 1) {
		return false
	}
	r.points = append(r.points, point{gpu, in.index, in.counter, v})
	return true
}

// Empty reports whether nothing was added.
func (r *Reading) Empty() bool { return len(r.points) == 0 }

// Reset empties r.
func (r *Reading) Reset() {
	clear(r.points)
	r.points = r.points[:0]
}

// MaxGPUs bounds the GPUs of a node; an NVL72 rack has 72.
const MaxGPUs = 128

// rateWindow is the time constant over which the rate of a counter is
// averaged: the thresholds are per minute.
const rateWindow = time.Minute

// maxRate is how many times as much as is allowed a counter's rate counts. Errors come
// a thousand times as fast as they may, and the average would not be below what is
// allowed for seven minutes after the last of them; so it is in 2.3, ln(10) windows.
const maxRate = 10

// table holds what a node's readings are worth: one row per GPU and one for
// the node itself. Its times count from its first reading, and its rows hold no
// pointers: who plays the agents of a fleet has a million of them.
type table struct {
	epoch time.Time
	rows  []row
	// best is the most that a GPU has shown of an input.
	best []float64
}

type row struct {
	gpu    string
	cells  []cell
	counts []count // by counter
}

// cell is one input of one GPU. Values between two evaluations are averaged; of
// a counter the last counts.
type cell struct {
	sum   float64
	value float64 // of the last evaluation with data; a rate for a counter
	at    time.Duration
	n     int32
	told  bool // at is when
	known bool
	fresh bool // told since the last evaluation
}

// count is where a counter was at its last evaluation with data.
type count struct {
	value float64
	at    time.Duration
	known bool
}

// since is a time as the table has it.
func (t *table) since(now time.Time) time.Duration {
	if t.epoch.IsZero() {
		t.epoch = now
	}
	return now.Sub(t.epoch)
}

// observe takes the readings of one push and returns how many were too much.
func (t *table) observe(r *Reading, plan *Plan, now time.Time) (dropped int) {
	at, when := -1, t.since(now)
	for i := range r.points {
		p := &r.points[i]
		// A report tells GPU after GPU, or metric after metric.
		if at < 0 || t.rows[at].gpu != p.gpu {
			if at = t.row(p.gpu, plan); at < 0 {
				dropped++
				continue
			}
		}
		c := &t.rows[at].cells[p.index]
		if p.counter {
			c.sum, c.n = p.value, 1
		} else {
			c.sum += p.value
			c.n++
		}
		c.at, c.told = when, true
	}
	return dropped
}

// row returns the row of a GPU, a new one if there is room, else -1.
func (t *table) row(gpu string, plan *Plan) int {
	at := slices.IndexFunc(t.rows, func(r row) bool { return r.gpu == gpu })
	if at >= 0 {
		return at
	}
	if gpu != "" && len(t.rows) >= MaxGPUs {
		return -1
	}
	t.rows = append(t.rows, row{strings.Clone(gpu), make([]cell, plan.count), make([]count, plan.counts)})
	return len(t.rows) - 1
}

// take ends the window between two evaluations. What was not told in it holds
// for ttl, a GPU that told nothing for so long is forgotten.
func (t *table) take(now time.Time, ttl time.Duration, plan *Plan) {
	if t.best == nil {
		t.best = make([]float64, plan.count)
	}
	when := t.since(now)
	t.rows = slices.DeleteFunc(t.rows, func(r row) bool {
		alive := false
		for i := range r.cells {
			c := &r.cells[i]
			var counter *count
			most := 0.0
			if at := plan.counters[i]; at >= 0 {
				counter, most = &r.counts[at], plan.rates[at]
			}
			c.take(when, ttl, counter, most)
			if c.known {
				t.best[i] = max(t.best[i], c.value)
			}
			alive = alive || c.known || c.told && when-c.at <= ttl
		}
		return !alive
	})
}

func (c *cell) take(now, ttl time.Duration, counter *count, most float64) {
	c.fresh = c.n > 0
	switch {
	case c.fresh && counter != nil:
		c.count(counter, most)
	case c.fresh:
		c.value, c.known = c.sum/float64(c.n), true
	case c.known && now-c.at > ttl:
		c.known = false
	}
	c.sum, c.n = 0, 0
}

// count turns a counter into a rate per second, of which no more than most counts. Its
// first value, and one lower than the last, which is a new start, only begin the count.
func (c *cell) count(last *count, most float64) {
	raw, dt := c.sum, (c.at - last.at).Seconds()
	if last.known && raw >= last.value && dt > 0 {
		c.value += (1 - math.Exp(-dt/rateWindow.Seconds())) * (min((raw-last.value)/dt, most) - c.value)
		c.known = true
	}
	*last = count{raw, c.at, true}
}

// mean of an input over the GPUs that told it.
func (t *table) mean(input int) (float64, bool) {
	sum, n := 0.0, 0
	for i := range t.rows {
		if c := &t.rows[i].cells[input]; c.known {
			sum += c.value
			n++
		}
	}
	return sum / float64(max(n, 1)), n > 0
}

// application reports whether the job has told of itself: known at all, and
// since the last evaluation.
func (t *table) application(p *Plan) (told, fresh bool) {
	for i := range t.rows {
		for _, in := range p.application {
			c := &t.rows[i].cells[in]
			told, fresh = told || c.known, fresh || c.fresh
		}
	}
	return told, fresh
}

// load is what decides which readings count.
type load struct {
	node      bool    // the node is busy
	gpu       float64 // the utilisation from which a GPU is under load
	unmetered bool    // GPUs without utilisation are under load
}

// Signals are a node's raw signals and where they come from.
type Signals struct {
	nodesignal.Values
	// GPU is the one that a signal across AcrossMin is of.
	GPU [nodesignal.Count]string
}

// signals measures. used is the source that each signal came from so far plus
// one; a source of a lower rank than that is not asked any more.
func (t *table) signals(p *Plan, l load, used *[nodesignal.Count]int) (out Signals) {
	for s := range nodesignal.Score {
		m := &p.measures[s]
		for i := range m.sources {
			if !m.worst && used[s] > 0 && i >= used[s] {
				break
			}
			x, gpu, ok := t.measure(p, &m.sources[i], l)
			if !ok || m.worst && out.Known[s] && x >= out.V[s] {
				continue
			}
			out.Set(s, x)
			out.GPU[s] = gpu
			if !m.worst {
				used[s] = i + 1
				break
			}
		}
	}
	return out
}

// measure returns what a source says of the node, and of which GPU.
func (t *table) measure(p *Plan, src *source, l load) (x float64, gpu string, ok bool) {
	if src.when == WhenBusy && !l.node {
		return 0, "", false
	}
	sum, n, gpus := 0.0, 0, 0
	worst := math.Inf(1)
	for i := range t.rows {
		r := &t.rows[i]
		if r.gpu != "" && r.cells[p.utilization].known {
			gpus++
		}
		if src.when == WhenLoad && !r.loaded(p, l) {
			continue
		}
		v, known := t.product(r, src)
		if !known {
			continue
		}
		sum += v
		n++
		if v < worst {
			worst, gpu = v, r.gpu
		}
	}
	switch {
	case n == 0:
		return 0, "", false
	case src.across == AcrossMin:
		return worst, gpu, true
	case src.across == AcrossSum:
		return sum, "", n >= gpus
	default:
		return sum / float64(n), "", true
	}
}

func (r *row) loaded(p *Plan, l load) bool {
	if c := &r.cells[p.utilization]; c.known {
		return c.value >= l.gpu
	}
	return l.unmetered
}

func (t *table) product(r *row, src *source) (float64, bool) {
	x := 1.0
	for i := range src.factors {
		v, ok := t.value(r, &src.factors[i])
		if !ok {
			return 0, false
		}
		x *= v
	}
	// Two finite numbers may have a product, or an inverse, that is not.
	return x, !math.IsInf(x, 0) && !math.IsNaN(x)
}

func (t *table) value(r *row, f *factor) (float64, bool) {
	c := &r.cells[f.input]
	if !c.known {
		return 0, false
	}
	x := c.value
	if f.limit >= 0 || f.best {
		limit := 0.0
		if f.limit >= 0 && r.cells[f.limit].known {
			limit = r.cells[f.limit].value
		} else if f.best {
			limit = t.best[f.input]
		}
		if limit <= 0 {
			return 0, false
		}
		x /= limit
	}
	switch f.use {
	case UseInverse:
		return 1 / x, x > 0
	case UseOneMinus:
		return max(1-x, 0), true
	case UseRate:
		return f.allowed / max(x, f.allowed), true
	default:
		return x, true
	}
}
