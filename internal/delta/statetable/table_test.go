// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newTable(edit func(*Settings)) *Table {
	set := Settings{MaxNodes: 10, MaxSeries: 100, Rand: func(int64) int64 { return 0 }}
	if edit != nil {
		edit(&set)
	}
	return New(set)
}

var nodeA, nodeB = KeyOf([]byte("a")), KeyOf([]byte("b"))

// observe runs one node's points through a report that is left open.
func observe(r *Report, key NodeKey, points ...Point) []Verdict {
	r.OpenNode(key)
	out := make([]Verdict, 0, len(points))
	for _, p := range points {
		out = append(out, r.Observe(&p))
	}
	r.CloseNode()
	return out
}

// in runs a report of one node that is accepted.
func in(t *Table, now time.Duration, key NodeKey, do func(*Report)) {
	r := t.Begin(now)
	r.OpenNode(key)
	do(r)
	r.CloseNode()
	r.Commit()
}

// settle ends a report as the next hop's answer says.
func settle(r *Report, accepted bool) {
	if accepted {
		r.Commit()
	} else {
		r.Abort()
	}
}

// push is a whole report of one node that is accepted.
func push(t *Table, now time.Duration, key NodeKey, points ...Point) []Verdict {
	r := t.Begin(now)
	out := observe(r, key, points...)
	r.Commit()
	return out
}

func double(key uint64, v float64) Point {
	return Point{Key: key, Value: math.Float64bits(v), Kind: KindDouble}
}

func TestObserveComparesBits(t *testing.T) {
	nan := math.Float64frombits(0x7ff8000000000001)
	otherNaN := math.Float64frombits(0x7ff8000000000002)
	for _, tt := range []struct {
		name         string
		first, again Point
		want         Verdict
	}{
		{"same double", double(1, 0.5), double(1, 0.5), Unchanged},
		{"other double", double(1, 0.5), double(1, math.Nextafter(0.5, 1)), Forward},
		{"same NaN", double(1, nan), double(1, nan), Unchanged},
		{"NaN with another payload", double(1, nan), double(1, otherNaN), Forward},
		{"minus zero", double(1, 0), double(1, math.Copysign(0, -1)), Forward},
		{"int with a double's bits", double(1, 1), Point{Key: 1, Value: math.Float64bits(1), Kind: KindInt}, Forward},
		{"hash with an int's bits", Point{Key: 1, Value: 7, Kind: KindInt}, Point{Key: 1, Value: 7, Kind: KindHash}, Forward},
		{"other start time", Point{Key: 1, Value: 7, Origin: 1}, Point{Key: 1, Value: 7, Origin: 2}, Forward},
		{"other series", double(1, 1), double(2, 1), Forward},
		{"later, same value", Point{Key: 1, Value: 7, Time: 1e18}, Point{Key: 1, Value: 7, Time: 2e18}, Unchanged},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tb := newTable(nil)
			require.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, tt.first))
			require.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, tt.first))
			assert.Equal(t, []Verdict{tt.want}, push(tb, 0, nodeA, tt.again))
			assert.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, tt.again))
			assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeB, tt.again), "nodes are apart")
		})
	}
}

func TestOrderOfSeriesDoesNotMatter(t *testing.T) {
	tb := newTable(nil)
	push(tb, 0, nodeA, double(1, 1), double(2, 2), double(3, 3), double(4, 4))
	assert.Equal(t, []Verdict{Unchanged, Forward, Forward, Unchanged},
		push(tb, 0, nodeA, double(4, 4), double(2, 0), double(9, 1), double(1, 1)))
	assert.Equal(t, []Verdict{Unchanged, Unchanged, Unchanged, Unchanged, Unchanged},
		push(tb, 0, nodeA, double(9, 1), double(3, 3), double(2, 0), double(4, 4), double(1, 1)))
}

func TestRepeatedSeries(t *testing.T) {
	tb := newTable(nil)
	assert.Equal(t, []Verdict{Forward, Forward}, push(tb, 0, nodeA, double(1, 1), double(1, 2)))
	assert.EqualValues(t, 1, tb.Stats().Series)
	assert.Equal(t, []Verdict{Forward, Forward}, push(tb, 0, nodeA, double(1, 2), double(1, 2)))
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, double(1, 2)), "last of those, not known as unambiguous")
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, double(1, 2)))
	assert.Equal(t, []Verdict{Unchanged, Forward}, push(tb, 0, nodeA, double(1, 2), double(1, 3)))
	assert.Equal(t, []Verdict{Forward, Forward}, push(tb, 0, nodeA, double(1, 3), double(1, 2)))
}

func TestNodeOpenedTwiceInAReport(t *testing.T) {
	tb := newTable(nil)
	for i, want := range []Verdict{Forward, Unchanged, Unchanged} {
		r := tb.Begin(0)
		assert.Equal(t, []Verdict{want}, observe(r, nodeA, double(1, 1)), "report %d", i)
		assert.Equal(t, []Verdict{Forward}, observe(r, nodeB, double(1, float64(i))), "report %d", i)
		assert.Equal(t, []Verdict{want}, observe(r, nodeA, double(2, 2)), "report %d", i)
		r.Commit()
	}
	r := tb.Begin(0)
	assert.Equal(t, []Verdict{Forward}, observe(r, nodeA, double(1, 5)))
	assert.Equal(t, []Verdict{Forward}, observe(r, nodeA, double(1, 1)), "the last value wins at the next hop")
	r.Commit()
}

func TestForget(t *testing.T) {
	tb := newTable(nil)
	forget := func(then ...Point) (out []Verdict) {
		in(tb, 0, nodeA, func(r *Report) {
			r.Forget(1)
			for _, p := range then {
				out = append(out, r.Observe(&p))
			}
		})
		return out
	}
	push(tb, 0, nodeA, double(1, 1))
	forget()
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, double(1, 1)))
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, double(1, 1)))
	assert.Equal(t, []Verdict{Forward}, forget(double(1, 1)), "the value comes back in the same report")
	assert.Empty(t, func() []Verdict { tb = newTable(nil); return forget() }(), "a series that was never there")
	assert.EqualValues(t, 0, tb.Stats().Series)
}

func TestStale(t *testing.T) {
	const t0 = uint64(1_800_000_000e9)
	at := func(v float64, d time.Duration) Point {
		p := double(1, v)
		p.Time = t0 + uint64(d)
		return p
	}
	tb := newTable(nil)
	push(tb, 0, nodeA, at(1, 0))
	push(tb, 0, nodeA, at(1, 20*time.Second))
	assert.Equal(t, []Verdict{Stale}, push(tb, 0, nodeA, at(2, 10*time.Second)), "older than an unchanged one")
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, at(2, 20*time.Second)), "not older")
	assert.EqualValues(t, 1, tb.Stats().Stale)

	r := tb.Begin(0)
	observe(r, nodeA, at(3, 40*time.Second))
	r.Abort()
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, at(2, 30*time.Second)), "a refused report leaves no time behind")

	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, at(4, -time.Hour)), "a clock that was set back")
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, at(4, -time.Hour+time.Second)))
	assert.Equal(t, []Verdict{Stale}, push(tb, 0, nodeA, at(5, -time.Hour)))

	noTime := double(1, 6)
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, noTime))
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, noTime))
}

func TestResync(t *testing.T) {
	tb := newTable(func(s *Settings) {
		s.ResyncInterval = 100
		s.Rand = func(n int64) int64 { require.EqualValues(t, 100, n); return 29 }
	})
	push(tb, 0, nodeA, double(1, 1), double(2, 2))
	assert.Equal(t, []Verdict{Unchanged, Unchanged}, push(tb, 29, nodeA, double(1, 1), double(2, 2)))
	// The node's series come in two pushes; both are part of the resync.
	assert.Equal(t, []Verdict{Forward}, push(tb, 30, nodeA, double(1, 1)))
	assert.Equal(t, []Verdict{Forward}, push(tb, 31, nodeA, double(2, 2)))
	assert.Equal(t, []Verdict{Unchanged, Unchanged}, push(tb, 129, nodeA, double(1, 1), double(2, 2)))

	r := tb.Begin(130)
	assert.Equal(t, []Verdict{Forward, Forward}, observe(r, nodeA, double(1, 1), double(2, 2)))
	r.Abort()
	assert.Equal(t, []Verdict{Forward, Forward}, push(tb, 131, nodeA, double(1, 1), double(2, 2)), "not accepted, so again")
	assert.EqualValues(t, 2, tb.Stats().Resyncs)

	// After a silence, one resync and not one for each interval missed; the phase stays.
	assert.Equal(t, []Verdict{Forward}, push(tb, 765, nodeA, double(1, 1)))
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 829, nodeA, double(1, 1)))
	assert.Equal(t, []Verdict{Forward}, push(tb, 830, nodeA, double(1, 1)))
	assert.EqualValues(t, 4, tb.Stats().Resyncs)
}

func TestHeartbeatDue(t *testing.T) {
	beat := func(tb *Table, now time.Duration, key NodeKey, accepted bool) bool {
		r := tb.Begin(now)
		r.OpenNode(key)
		due := r.HeartbeatDue(0)
		r.CloseNode()
		settle(r, accepted)
		return due
	}
	tb := newTable(func(s *Settings) { s.HeartbeatInterval = 10 })
	assert.True(t, beat(tb, 0, nodeA, false))
	assert.True(t, beat(tb, 1, nodeA, true), "the first one was not accepted")
	assert.False(t, beat(tb, 10, nodeA, true))
	assert.True(t, beat(tb, 10, nodeB, true))
	assert.True(t, beat(tb, 11, nodeA, true))

	r := tb.Begin(100)
	for _, want := range []bool{true, false} {
		r.OpenNode(nodeA)
		assert.Equal(t, want, r.HeartbeatDue(2e18), "one per report")
		r.CloseNode()
	}
	r.Commit()
	in(tb, 200, nodeA, func(r *Report) {
		assert.False(t, r.HeartbeatDue(2e18-1e9), "an overtaken report")
		assert.True(t, r.HeartbeatDue(2e18), "the same time again")
	})

	each := newTable(func(s *Settings) { s.MaxNodes = 1 })
	assert.True(t, beat(each, 0, nodeA, true))
	assert.True(t, beat(each, 0, nodeA, true))
	assert.True(t, beat(each, 0, nodeB, true), "no room for this node, its deadline is not known")
}

func TestSweep(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = 80 })
	push(tb, 0, nodeA, double(1, 1), double(2, 2), double(3, 3))
	push(tb, 0, nodeB, double(1, 1))
	push(tb, 80, nodeA, double(1, 1), double(3, 3))

	r := tb.Begin(80)
	observe(r, nodeB, double(1, 5))
	tb.Sweep(1000)
	assert.EqualValues(t, 1, tb.Stats().Nodes, "a node with a report under way stays")
	r.Commit()
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 1000, nodeB, double(1, 5)), "expired while under way, entered by the commit")
	tb.Sweep(1000)
	assert.Equal(t, Stats{Nodes: 1, Series: 1, EvictedNodes: 1}, tb.Stats())
}

func TestSweepDropsSeriesOfALivingNode(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = 80 })
	push(tb, 0, nodeA, double(1, 1), double(2, 2), double(3, 3), double(4, 4))
	push(tb, 80, nodeA, double(3, 3))
	tb.Sweep(81)
	assert.EqualValues(t, 4, tb.Stats().Series, "a series has up to 65/64 of the TTL")
	tb.Sweep(90)
	assert.EqualValues(t, 1, tb.Stats().Series)
	assert.Equal(t, []Verdict{Forward, Unchanged, Forward}, push(tb, 90, nodeA, double(1, 1), double(3, 3), double(4, 4)))
	assert.Equal(t, []Verdict{Unchanged, Unchanged, Unchanged}, push(tb, 90, nodeA, double(1, 1), double(3, 3), double(4, 4)))
}

// Two reports of one node under way at once that both forward a series.
func TestOverlap(t *testing.T) {
	for _, tt := range []struct {
		name   string
		finish func(first, second *Report)
		then   float64
		want   Verdict
	}{
		{"in order", func(a, b *Report) { a.Commit(); b.Commit() }, 8, Forward},
		{"in order, first value", func(a, b *Report) { a.Commit(); b.Commit() }, 7, Forward},
		{"crossed", func(a, b *Report) { b.Commit(); a.Commit() }, 8, Forward},
		{"first refused", func(a, b *Report) { a.Abort(); b.Commit() }, 8, Forward},
		{"second refused", func(a, b *Report) { a.Commit(); b.Abort() }, 7, Forward},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tb := newTable(nil)
			push(tb, 0, nodeA, double(1, 1), double(2, 2))
			a, b := tb.Begin(0), tb.Begin(0)
			assert.Equal(t, []Verdict{Forward, Unchanged}, observe(a, nodeA, double(1, 7), double(2, 2)))
			assert.Equal(t, []Verdict{Forward, Unchanged}, observe(b, nodeA, double(1, 8), double(2, 2)))
			tt.finish(a, b)
			assert.Equal(t, []Verdict{tt.want, Unchanged}, push(tb, 0, nodeA, double(1, tt.then), double(2, 2)))
			assert.Equal(t, []Verdict{Unchanged, Unchanged}, push(tb, 0, nodeA, double(1, tt.then), double(2, 2)))
		})
	}
}

func TestTimeWrapsAround(t *testing.T) {
	const wrap = uint64(1) << (32 + timeShift)
	tb := newTable(nil)
	p := Point{Key: 1, Time: 400*wrap - 1e9}
	push(tb, 0, nodeA, p)
	old := p
	p.Time, p.Value = 400*wrap+1e9, 1
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, p))
	assert.Equal(t, []Verdict{Stale}, push(tb, 0, nodeA, old))
}

// TestHashesAreThisProcesss: whoever runs the same program knows no hash of it.
func TestHashesAreThisProcesss(t *testing.T) {
	const asked = "STATETABLE_SAY_HASH"
	say := fmt.Sprintf("hash %016x.", HashString("hw.id"))
	if os.Getenv(asked) != "" {
		fmt.Println(say)
		return
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	other.Env = append(os.Environ(), asked+"=1")
	out, err := other.Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), "hash ")
	assert.NotContains(t, string(out), say)
}

// A point of a clock that was set back gets the time of receipt, but for where
// the clock here was set back as well.
func TestStamp(t *testing.T) {
	const state = uint64(1_800_000_000 * time.Second)
	before := func(d time.Duration) uint64 { return state - uint64(d) }
	for name, c := range map[string]struct{ at, received, want uint64 }{
		"an hour back":                  {before(time.Hour), state + 1e9, state + 1e9},
		"one that was overtaken":        {before(4 * time.Minute), state + 1e9, 0},
		"in order":                      {state + 1e9, state + 2e9, 0},
		"nobody knows when it came":     {before(time.Hour), 0, 0},
		"the clock here was set, too":   {before(time.Hour), before(time.Hour), 0},
		"one without a time":            {0, state + 1e9, 0},
		"the state is ahead of receipt": {before(time.Hour), before(30 * time.Second), state},
	} {
		t.Run(name, func(t *testing.T) {
			assert.True(t, older(coarse(state), coarse(before(4*time.Minute))))
			r := &Report{}
			at := coarse(c.at)
			if setBack(coarse(state), at) {
				at = r.restamp(coarse(state), at, c.received)
			}
			if c.want == state { // just after it
				assert.InDelta(t, float64(c.want), float64(r.Stamp()), float64(5*time.Millisecond))
				assert.Greater(t, r.Stamp(), state)
				assert.False(t, older(coarse(state), at))
				return
			}
			assert.Equal(t, c.want, r.Stamp())
			if c.want != 0 {
				assert.Equal(t, coarse(c.want), at)
			}
		})
	}
}

// A report may take its node back while a sweep goes through the nodes: the node is
// counted out once.
func TestASweepMeetsANodeThatIsGone(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = time.Hour })
	r := tb.Begin(0)
	r.OpenNode(nodeA)
	r.CloseNode()
	n := tb.lookup(nodeA)
	r.Discard()
	s := &tb.shards[nodeA.Lo%shardCount]
	s.nodes[nodeA] = n // as a sweep has it that began before
	tb.Sweep(1000 * time.Hour)
	assert.Zero(t, tb.Stats().Nodes)
	assert.Zero(t, tb.Stats().EvictedNodes)
}
