// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// Reading collects the values of one push of one node. The zero value is empty.
type Reading struct {
	points []point
}

type point struct {
	of    nodesignal.Subject
	in    *Input
	value float64
}

// Add takes one value of a part of the node. It reports false for a value that is
// negative or not finite. The subject's text is kept until Reset.
func (r *Reading) Add(in *Input, of nodesignal.Subject, v float64) bool {
	if !(v >= 0) || math.IsInf(v, 1) {
		return false
	}
	r.points = append(r.points, point{of, in, v})
	return true
}

// Empty reports whether nothing was added.
func (r *Reading) Empty() bool { return len(r.points) == 0 }

// Reset empties r.
func (r *Reading) Reset() {
	clear(r.points)
	r.points = r.points[:0]
}

// Bounds of a node.
const (
	MaxGPUs  = 128 // an NVL72 rack has 72
	MaxRanks = 256 // several may share a GPU
	maxName  = 253 // bytes of a GPU's ID; a UUID has 40
)

// rateWindow is the time constant over which the rate of a counter is
// averaged: the thresholds are per minute.
const rateWindow = time.Minute

// maxRate bounds a counter's rate, in multiples of what is allowed. Without a bound the average
// of a burst stays above that for many windows after it, so for 2.3, ln(10), at most.
const maxRate = 10

// table has one row per GPU, one per rank, and one for the node itself. Its times count from
// its first reading. Its rows hold few pointers: a simulated fleet has a million of them.
type table struct {
	epoch time.Time
	rows  []row
	ranks int       // rows of ranks
	room  int       // rows that may be added
	short int       // readings of rows for which there was no room
	best  []float64 // by input, the most that a GPU has shown
	// unnamed is what counts of the newest push of a rank without a name. It is crowded once
	// a push had several values of one.
	unnamed map[unnamed]float64
	crowded bool
}

// unnamed is an input of a rank without a name.
type unnamed struct {
	rank  nodesignal.Ordinal
	input int
}

// row holds what was reported of one subject. A rank reports few of the inputs, which
// come first in the plan: its cells end behind the last of them.
type row struct {
	of     nodesignal.Subject
	cells  []cell
	counts []count // by counter
}

// cell is one input of one GPU. Values between two evaluations become one as the
// catalogue says: their mean or the last.
type cell struct {
	sum      float64
	value    float64 // of the last evaluation with data; a rate for a counter
	at       time.Duration
	n        int32
	reported bool // at is when
	known    bool
	fresh    bool // reported since the last evaluation
}

// count is where a counter was at its last evaluation with data.
type count struct {
	value float64
	at    time.Duration
	known bool
}

// since is a time as the table has it, which begins with the first.
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
		// A report goes GPU by GPU, or metric by metric.
		if at < 0 || t.rows[at].of != p.of {
			if at = t.row(p.of, at+1, plan); at < 0 {
				dropped++
				continue
			}
		}
		c := t.rows[at].cell(p.in.index, plan)
		switch {
		case p.in.last:
			c.sum, c.n = p.value, 1
		case p.in.worst != nil && !p.of.Named():
			t.unname(c, p, when)
		default:
			c.sum += p.value
			c.n++
		}
		c.at, c.reported = when, true
	}
	return dropped
}

// unname takes a value that names no rank: of several in one push of an instance the
// worst counts, since they are likely to be of as many ranks.
func (t *table) unname(c *cell, p *point, now time.Duration) {
	value, at := p.value, unnamed{p.of.Rank, p.in.index}
	if t.unnamed == nil {
		t.unnamed = map[unnamed]float64{}
	}
	if c.n > 0 && c.at == now {
		value = p.in.worst(value, t.unnamed[at])
		c.sum -= t.unnamed[at]
		t.crowded = true
	} else {
		c.n++
	}
	c.sum += value
	t.unnamed[at] = value
}

// hasUnnamedRanks reports whether more than one rank without a name has reported.
func (t *table) hasUnnamedRanks() bool {
	n := 0
	for i := range t.rows {
		if of := t.rows[i].of; of.IsRank() && !of.Named() {
			n++
		}
	}
	return t.crowded || n > 1
}

// row returns the row of a subject, which may be the next. Without one it makes a
// row if there is room, else it returns -1.
func (t *table) row(of nodesignal.Subject, next int, plan *Plan) int {
	if next < len(t.rows) && t.rows[next].of == of {
		return next
	}
	if at := slices.IndexFunc(t.rows, func(r row) bool { return r.of == of }); at >= 0 {
		return at
	}
	r := row{of: of}
	r.of.GPU = strings.Clone(of.GPU)
	switch {
	case len(of.GPU) > maxName:
		return -1
	case t.room <= 0:
		t.short++
		return -1
	case of.IsRank():
		if t.ranks >= MaxRanks {
			return -1
		}
		t.ranks++
	case of.GPU != "" && len(t.rows)-t.ranks >= MaxGPUs:
		return -1
	default:
		r.cells, r.counts = make([]cell, plan.count), make([]count, plan.counts)
	}
	t.rows = append(t.rows, r)
	t.room--
	return len(t.rows) - 1
}

// cell returns the cell of an input, to write to.
func (r *row) cell(input int, plan *Plan) *cell {
	if short := input + 1 - len(r.cells); short > 0 {
		r.cells = append(r.cells, make([]cell, short)...)
		r.counts = append(r.counts, make([]count, plan.counts-len(r.counts))...)
	}
	return &r.cells[input]
}

// at returns the cell of an input, to read.
func (r *row) at(input int) *cell {
	if input >= len(r.cells) {
		return &unknown
	}
	return &r.cells[input]
}

var unknown cell

// take ends the window between two evaluations. A value that was not reported in it
// holds for ttl. A GPU that reported nothing for so long is forgotten.
func (t *table) take(now time.Time, ttl time.Duration, plan *Plan) {
	if t.best == nil {
		t.best = make([]float64, plan.count)
	}
	when := t.since(now)
	kept := 0
	for i := range t.rows {
		switch r := &t.rows[i]; {
		case r.take(when, ttl, plan, t.best):
			if kept < i {
				t.rows[kept] = *r
			}
			kept++
		case r.of.IsRank():
			t.ranks--
		}
	}
	if kept < len(t.rows) {
		t.rows = slices.Clone(t.rows[:kept]) // what is gone takes no memory
	}
	t.unnamed = nil
}

// take reports whether anything is left of the row.
func (r *row) take(now, ttl time.Duration, plan *Plan, best []float64) (alive bool) {
	for i := range r.cells {
		c := &r.cells[i]
		if !c.reported {
			continue
		}
		c.fresh = c.n > 0
		switch at := plan.counters[i]; {
		case c.fresh && at >= 0:
			c.count(&r.counts[at], plan.rates[at])
		case c.fresh:
			c.value, c.known = c.sum/float64(c.n), true
		case c.known && now-c.at > ttl:
			c.known = false
		}
		c.sum, c.n = 0, 0
		if c.known {
			best[i] = max(best[i], c.value)
		}
		alive = alive || c.known || now-c.at <= ttl
	}
	return alive
}

// count turns a counter into a rate per second, bounded by most. Its first value only begins
// the count, and so does one lower than the last, which is a new start.
func (c *cell) count(last *count, most float64) {
	raw, dt := c.sum, (c.at - last.at).Seconds()
	if last.known && raw >= last.value && dt > 0 {
		c.value += (1 - math.Exp(-dt/rateWindow.Seconds())) * (min((raw-last.value)/dt, most) - c.value)
		c.known = true
	}
	*last = count{raw, c.at, true}
}

// workPower is the share of its power limit that no GPU draws without work: one at rest at
// its highest clocks draws a sixth on an H100, and two fifths on the smallest boards.
const workPower = 0.6

// doubt leaves out a utilisation below idleBelow of GPUs that draw the power of work: it is
// not measured then.
func (t *table) doubt(p *Plan, idleBelow float64) {
	for i := range t.rows {
		power, limit := t.rows[i].at(p.power), t.rows[i].at(p.powerLimit)
		if u := t.rows[i].at(p.utilization); u.known && u.value < idleBelow && power.known && limit.known && power.value >= workPower*limit.value {
			u.known = false
		}
	}
}

// mean of an input over the GPUs that reported it, and how many they are.
func (t *table) mean(input int) (mean float64, n int) {
	sum := 0.0
	for i := range t.rows {
		if c := t.rows[i].at(input); c.known {
			sum += c.value
			n++
		}
	}
	return sum / float64(max(n, 1)), n
}

// application reports whether the job has reported: known at all, and since the last
// evaluation.
func (t *table) application(p *Plan) (reported, fresh bool) {
	for i := range t.rows {
		for _, in := range p.application {
			c := t.rows[i].at(in)
			reported, fresh = reported || c.known, fresh || c.fresh
		}
	}
	return reported, fresh
}

// load is what decides which readings count.
type load struct {
	node      bool    // the node is busy
	gpu       float64 // the utilisation from which a GPU is under load
	metered   int     // GPUs that reported their utilisation
	unmetered bool    // GPUs without utilisation are under load
}

// Signals are a node's raw signals and where they come from.
type Signals struct {
	nodesignal.Values
	// Worst is the part of the node that a signal across AcrossMin is of.
	Worst [nodesignal.Count]nodesignal.Subject
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
			x, of, ok := t.measure(p, &m.sources[i], l)
			if !ok || m.worst && out.Known[s] && x >= out.V[s] {
				continue
			}
			out.Set(s, x)
			out.Worst[s] = of
			if !m.worst {
				used[s] = i + 1
				break
			}
		}
	}
	return out
}

// measure returns the value of a source for the node, and the part that it is about.
func (t *table) measure(p *Plan, src *source, l load) (x float64, of nodesignal.Subject, ok bool) {
	if src.when == WhenBusy && !l.node {
		return 0, of, false
	}
	sum, n := 0.0, 0
	worst := math.Inf(1)
	for i := range t.rows {
		r := &t.rows[i]
		v, known := t.counted(p, src, l, r)
		if !known {
			continue
		}
		sum += v
		n++
		if v < worst || v == worst && src.across == AcrossMin && r.of.Compare(of) < 0 {
			worst, of = v, r.of
		}
	}
	switch src.across {
	case AcrossMin:
		return worst, of, n > 0
	case AcrossSum:
		return sum, nodesignal.Subject{}, n >= max(l.metered, 1)
	}
	return sum / float64(max(n, 1)), nodesignal.Subject{}, n > 0
}

// counted returns the value of a source for a row, false without one. A rank has its GPU's
// readings for those that it does not report, but the first: the GPU has its own row.
func (t *table) counted(p *Plan, src *source, l load, r *row) (float64, bool) {
	if !r.at(src.factors[0].input).known {
		return 0, false
	}
	board := r
	if r.of.IsRank() && r.of.GPU != "" {
		of := nodesignal.Subject{GPU: r.of.GPU}
		if i := slices.IndexFunc(t.rows, func(r row) bool { return r.of == of }); i >= 0 {
			board = &t.rows[i]
		}
	}
	if src.when == WhenLoad {
		if c := r.or(board, p.utilization); c.known && c.value < l.gpu || !c.known && !l.unmetered {
			return 0, false
		}
	}
	x := 1.0
	for i := range src.factors {
		v, ok := t.value(r, board, &src.factors[i])
		if !ok {
			return 0, false
		}
		x *= v
	}
	// Two finite numbers may have a product, or an inverse, that is not.
	return x, x-x == 0
}

// or is at, of another row where this one has no value.
func (r *row) or(other *row, input int) *cell {
	if c := r.at(input); c.known {
		return c
	}
	return other.at(input)
}

func (t *table) value(r, board *row, f *factor) (float64, bool) {
	c := r.or(board, f.input)
	if !c.known {
		return 0, false
	}
	x := c.value
	if f.limit >= 0 || f.best {
		limit := 0.0
		if f.limit >= 0 && r.or(board, f.limit).known {
			limit = r.or(board, f.limit).value
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

// unbounded is room for all that a node may report.
const unbounded = math.MaxInt

// Rows are how many GPUs and ranks the node has, with one for itself where it has readings of
// its own.
func (n *Node) Rows() int { return len(n.table.rows) }

// RowBytes are those of a row with all inputs.
func (p *Plan) RowBytes() int {
	return int(unsafe.Sizeof(row{})) + p.count*int(unsafe.Sizeof(cell{})) + p.counts*int(unsafe.Sizeof(count{})) + maxName
}

// ObserveWithin is Observe of a node that may have no more than room rows more. Short is how
// many readings it left out for that.
func (n *Node) ObserveWithin(room int, r *Reading, now time.Time) (dropped, short int) {
	n.table.room, n.table.short = room, 0
	dropped = n.table.observe(r, n.plan, now)
	return dropped - n.table.short, n.table.short
}
