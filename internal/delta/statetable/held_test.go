// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// unix is the time of a report at a second of the table's.
func unix(second int) uint64 { return uint64(time.Duration(1_800_000_000+second) * time.Second) }

// said pushes points of the given second.
func said(tb *Table, second int, accepted bool, points ...Point) []Verdict {
	r := tb.Begin(time.Duration(second) * time.Second)
	r.OpenNode(nodeA)
	if r.Undescribed() {
		r.DescribeNode([]Attr{{Key: "host.name", Text: "a"}})
	}
	var out []Verdict
	for _, p := range points {
		p.Time = unix(second)
		out = append(out, r.Observe(&p))
		if p.Key < 100 {
			named(r, p.Key)
		}
	}
	r.Said(unix(second), unix(second))
	r.CloseNode()
	settle(r, accepted)
	return out
}

type held struct {
	Series
	at uint64
}

// holds sends what is held of a node, and returns it by attribute.
func holds(tb *Table, second int, accepted bool) map[string]held {
	r := tb.Begin(time.Duration(second) * time.Second)
	_, _, ok := r.OpenHeld(nodeA)
	if !ok {
		r.Abort()
		return nil
	}
	out := map[string]held{}
	for s, at := range r.Held {
		out[s.Attrs[0].Text] = held{s, at}
	}
	r.CloseNode()
	settle(r, accepted)
	return out
}

func TestHeld(t *testing.T) {
	tb := newTable(nil)
	flagged := double(5, 5)
	flagged.Origin = 99
	hash := Point{Key: 4, Value: 7, Kind: KindHash}
	said(tb, 0, true, double(1, 1), double(2, 2), sum(3, 3, 77), hash, flagged, double(100, 1))
	require.Nil(t, holds(tb, 1, true), "nothing is missing")
	said(tb, 10, true, double(1, 1))

	tb.Resync("", "")
	out := holds(tb, 11, true)
	require.Len(t, out, 3, "no hash, no flags, nothing without a name")
	assert.Equal(t, unix(10), out["GPU-1"].at)
	assert.InDelta(t, float64(unix(0)), float64(out["GPU-2"].at), float64(2*time.Millisecond), "it was not reported since")
	assert.EqualValues(t, 77, out["GPU-3"].Start)
	three := out["GPU-3"]
	assert.InDelta(t, 3, math.Float64frombits(three.Value), 0)
	require.Nil(t, holds(tb, 12, true), "once")

	verdicts := said(tb, 20, true, double(1, 1), double(2, 2), sum(3, 3, 77), hash, flagged, double(100, 1))
	assert.Equal(t, []Verdict{Unchanged, Unchanged, Unchanged, Forward, Forward, Forward}, verdicts)
}

func TestNothingIsHeldOf(t *testing.T) {
	for name, prepare := range map[string]func(tb *Table){
		"a node that is not known":                func(*Table) {},
		"a node that reported since":              func(tb *Table) { said(tb, 0, true, double(1, 1)); tb.Resync("", ""); said(tb, 10, true, double(1, 1)) },
		"a node whose report is of no time":       func(tb *Table) { push(tb, 0, nodeA, double(1, 1)); tb.Resync("", "") },
		"a node beside the one that is asked for": func(tb *Table) { said(tb, 0, true, double(1, 1)); tb.Resync("", "b") },
		"a node whose state is given up in part":  func(tb *Table) { said(tb, 0, true, double(1, 1)); tb.ResyncNode(nodeA) },
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTable(nil)
			prepare(tb)
			assert.Nil(t, holds(tb, 11, true))
		})
	}
}

func TestANodeThatIsAskedForIsHeld(t *testing.T) {
	tb := newTable(nil)
	said(tb, 0, true, double(1, 1))
	r := tb.Begin(10 * time.Second)
	observe(r, nodeA, double(1, 2))
	tb.Resync("", "a")
	out := holds(tb, 11, true)
	require.Len(t, out, 1)
	r.Commit()
	assert.Equal(t, []Verdict{Forward}, said(tb, 20, true, double(1, 2)), "it was under way meanwhile")
	tb.Resync("", "a")
	require.Len(t, holds(tb, 21, true), 1)
	require.Nil(t, holds(tb, 22, true), "once")
	assert.Equal(t, []Verdict{Unchanged}, said(tb, 30, true, double(1, 2)))
	tb.Resync("", "a")
	assert.Equal(t, []Verdict{Forward}, said(tb, 40, true, double(1, 2)))
	assert.EqualValues(t, 3, tb.Stats().Resyncs)
}

func TestWhatEndedOrCameTwiceIsNotHeld(t *testing.T) {
	tb := newTable(nil)
	said(tb, 0, true, double(1, 1), double(2, 2), double(3, 3), double(2, 4))
	in(tb, time.Second, nodeA, func(r *Report) { r.Forget(3) })
	tb.Resync("", "")
	out := holds(tb, 11, true)
	assert.Len(t, out, 1)
	assert.Contains(t, out, "GPU-1")
}

// The next hop may have taken a report that it refused. It may then drop the same points
// as too old.
func TestWhatIsHeldInDoubtStaysInDoubt(t *testing.T) {
	tb := newTable(nil)
	said(tb, 0, true, double(1, 1), double(2, 2))
	said(tb, 10, false, double(1, 9), double(2, 2))
	tb.Resync("", "")
	out := holds(tb, 11, true)
	require.Len(t, out, 2)
	assert.Equal(t, []Verdict{Forward, Unchanged}, said(tb, 20, true, double(1, 1), double(2, 2)))
}

func TestWhatIsHeldAndRefusedIsUnknown(t *testing.T) {
	tb := newTable(nil)
	said(tb, 0, true, double(1, 1))
	tb.Resync("", "")
	require.Len(t, holds(tb, 11, false), 1)
	assert.Equal(t, []Verdict{Forward}, said(tb, 20, true, double(1, 1)))
}

// Until the last word of a tier that reports changes, what it did not mention held.
func TestWhatAnotherTierReportsIsOfItsLastWord(t *testing.T) {
	tb := repeating(func(s *Settings) { s.ResyncInterval = 0 })
	relay(tb, 0, true, double(1, 1))
	for s := 10; s <= 50; s += 10 {
		in(tb, time.Duration(s)*time.Second, nodeA, func(r *Report) {
			r.Relayed()
			r.Said(unix(s), unix(s))
		})
	}
	tb.Resync("", "")
	assert.Equal(t, unix(50), holds(tb, 51, true)["GPU-1"].at)
}

// The table's word of a series may come after the word of a report beside it.
func TestARepetitionThatMeetsAReportLeavesDoubt(t *testing.T) {
	tb := repeating()
	relay(tb, 0, true, double(1, 1))
	tb.Resync("", "")
	r := tb.Begin(10 * time.Second)
	r.OpenNode(nodeA)
	r.Relayed()
	count := 0
	for range r.Repeated(unix(10)) {
		count++
	}
	require.Equal(t, 1, count)
	r.CloseNode()
	require.Equal(t, []Verdict{Forward}, push(tb, 11*time.Second, nodeA, double(1, 5)))
	r.Commit()
	assert.Equal(t, []Verdict{Forward}, push(tb, 12*time.Second, nodeA, double(1, 5)))
	assert.Equal(t, []Verdict{Unchanged}, push(tb, 13*time.Second, nodeA, double(1, 5)))
}
