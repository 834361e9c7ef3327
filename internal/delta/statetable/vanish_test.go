// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func vanishing() *Table {
	return newTable(func(s *Settings) { s.TTL, s.VanishedAfter = 640*time.Second, 100*time.Second })
}

func named(r *Report, key uint64) {
	if r.Fresh() {
		r.Describe(&Metric{Name: "m", Unit: "1"}, []Attr{{Key: "hw.id", Text: fmt.Sprint("GPU-", key)}})
	}
}

// report pushes the named series and returns the ids of those declared gone.
func report(t *Table, second int, accepted bool, keys ...uint64) []string {
	r := t.Begin(time.Duration(second) * time.Second)
	r.OpenNode(nodeA)
	for _, key := range keys {
		if r.Observe(new(double(key, 1))) == Forward {
			named(r, key)
		}
	}
	var gone []string
	for s := range r.Vanished {
		gone = append(gone, s.Attrs[0].Text)
	}
	r.CloseNode()
	settle(r, accepted)
	return gone
}

func TestVanished(t *testing.T) {
	tb := vanishing()
	report(tb, 0, true, 1, 2, 3)
	for s := 10; s <= 100; s += 10 {
		require.Empty(t, report(tb, s, true, 1, 3))
	}
	for s := 110; s < 130; s += 10 { // a tick is 10 s
		if gone := report(tb, s, false, 1, 3); gone != nil {
			assert.Equal(t, []string{"GPU-2"}, gone)
		}
	}
	assert.Equal(t, []string{"GPU-2"}, report(tb, 130, true, 1, 3), "the marker was not accepted, so again")
	for s := 140; s <= 700; s += 10 {
		require.Empty(t, report(tb, s, true, 1, 3), "once")
	}
	require.Equal(t, []Verdict{Forward}, push(tb, 710*time.Second, nodeA, double(2, 1)), "back")
	require.Equal(t, []Verdict{Unchanged}, push(tb, 711*time.Second, nodeA, double(2, 1)))
	var gone []string
	for s := 720; s <= 900; s += 10 {
		gone = append(gone, report(tb, s, true, 1, 3)...)
	}
	assert.Equal(t, []string{"GPU-2"}, gone, "gone for a second time")
}

func TestSilenceIsNotHeldAgainstASeries(t *testing.T) {
	tb := vanishing()
	report(tb, 0, true, 1, 2)
	// The node pauses, and comes back in two parts.
	for s := 300; s <= 390; s += 10 {
		require.Empty(t, report(tb, s, true, 1))
		require.Empty(t, report(tb, s+1, true, 2))
	}
	// A source that is slower than the limit never declares anything gone.
	tb = vanishing()
	report(tb, 0, true, 1, 2)
	for s := 101; s < 600; s += 101 {
		require.Empty(t, report(tb, s, true, 1))
	}
}

func TestWhatAnotherTierReducedIsNotGone(t *testing.T) {
	tb := vanishing()
	relayed := func(s int, keys ...uint64) []string {
		in(tb, time.Duration(s)*time.Second, nodeA, func(r *Report) { r.Relayed() })
		return report(tb, s, true, keys...)
	}
	report(tb, 0, true, 1, 2)
	for s := 10; s <= 500; s += 10 {
		require.Empty(t, relayed(s, 1))
	}
	report(tb, 500, true, 1, 2)
	var gone []string
	for s := 510; s <= 1500; s += 10 {
		gone = append(gone, report(tb, s, true, 1)...)
		tb.Sweep(time.Duration(s) * time.Second)
	}
	assert.Empty(t, gone, "it is forgotten before the tier is")
}

// A node that pauses too long between any two reports to show what it lacks, and
// lives: what it did not report for a TTL is forgotten, but not in silence.
func TestASeriesThatExpiresIsDeclaredGone(t *testing.T) {
	tb := vanishing()
	report(tb, 0, true, 1, 2, 3)
	var gone []string
	at := map[string]int{}
	for s := 101; s < 3000; s += 101 {
		accepted := s < 700 || s > 900
		keys := []uint64{1}
		if s > 640 {
			keys = append(keys, 3) // reports again just before it is ended
		}
		for _, name := range report(tb, s, accepted, keys...) {
			if accepted {
				gone = append(gone, name)
			}
			at[name] = s
		}
		tb.Sweep(time.Duration(s) * time.Second)
	}
	assert.Equal(t, []string{"GPU-2"}, gone, "once, and until it is accepted")
	assert.InDelta(t, 900, at["GPU-2"], 101)
	assert.EqualValues(t, 2, tb.Stats().Series)
	t.Run("not where nothing is ever declared gone", func(t *testing.T) {
		tb := newTable(func(s *Settings) { s.TTL = 640 * time.Second })
		report(tb, 0, true, 1, 2)
		for s := 101; s < 3000; s += 101 {
			require.Empty(t, report(tb, s, true, 1))
			tb.Sweep(time.Duration(s) * time.Second)
		}
		assert.EqualValues(t, 1, tb.Stats().Series)
	})
}

func TestMarkerThatMeetsAValueOnItsWay(t *testing.T) {
	tb := met(t)
	assert.Equal(t, []Verdict{Forward}, push(tb, 126*time.Second, nodeA, double(2, 1)), "the marker may have come last")
	tb = met(t)
	var gone []string
	for s := 130; s <= 400; s += 10 {
		gone = append(gone, report(tb, s, true, 1)...)
	}
	assert.Equal(t, []string{"GPU-2"}, gone, "the value may have come last")
}

// met has a marker and a value of one series under way at once, both accepted.
func met(t *testing.T) *Table {
	tb := vanishing()
	report(tb, 0, true, 1, 2)
	for s := 10; s <= 100; s += 10 {
		report(tb, s, true, 1)
	}
	marker := tb.Begin(125 * time.Second)
	marker.OpenNode(nodeA)
	gone := 0
	for range marker.Vanished {
		gone++
	}
	marker.CloseNode()
	require.Equal(t, 1, gone)
	value := tb.Begin(125 * time.Second)
	require.Equal(t, []Verdict{Forward}, observe(value, nodeA, double(2, 1)), "in doubt while the marker is under way")
	value.Commit()
	marker.Commit()
	return tb
}

func TestAnEndedSeriesIsNotDeclaredGone(t *testing.T) {
	tb := vanishing()
	report(tb, 0, true, 1, 2)
	in(tb, time.Second, nodeA, func(r *Report) { r.Forget(2) })
	for s := 10; s <= 300; s += 10 {
		require.Empty(t, report(tb, s, true, 1))
	}
}

func TestResyncByRequest(t *testing.T) {
	node := func(tb *Table, name, cluster string, v float64) Verdict {
		r := tb.Begin(0)
		r.OpenNode(KeyOf([]byte(name)))
		if r.Undescribed() {
			attrs := []Attr{{Key: "host.id", Text: "id"}, {Key: "host.name", Text: "pod"}, {Key: "k8s.node.name", Text: name}}
			if cluster != "" {
				attrs = append(attrs, Attr{Key: "k8s.cluster.name", Text: cluster})
			}
			r.DescribeNode(attrs)
		}
		out := r.Observe(new(double(1, v)))
		r.CloseNode()
		r.Commit()
		return out
	}
	for _, tt := range []struct {
		cluster, name string
		want          [3]Verdict
	}{
		{"", "", [3]Verdict{Forward, Forward, Forward}},
		{"", "a", [3]Verdict{Forward, Unchanged, Unchanged}},
		{"east", "", [3]Verdict{Forward, Unchanged, Forward}},
		{"east", "a", [3]Verdict{Forward, Unchanged, Unchanged}},
		{"west", "a", [3]Verdict{Unchanged, Unchanged, Unchanged}},
		{"", "pod", [3]Verdict{Unchanged, Unchanged, Unchanged}},
	} {
		t.Run(tt.cluster+"/"+tt.name, func(t *testing.T) {
			tb := newTable(nil)
			for range 2 {
				node(tb, "a", "east", 1)
				node(tb, "b", "west", 1)
				node(tb, "c", "", 1)
			}
			tb.Resync(tt.cluster, tt.name)
			for i := range 2 {
				want := tt.want
				if i == 1 {
					want = [3]Verdict{Unchanged, Unchanged, Unchanged}
				}
				assert.Equal(t, want, [3]Verdict{node(tb, "a", "east", 1), node(tb, "b", "west", 1), node(tb, "c", "", 1)})
			}
		})
	}
}

// A push that is under way when the next hop changes does not make known what
// the new one never saw, nor does it hold the heartbeat back.
func TestResyncWhileUnderWay(t *testing.T) {
	for _, name := range []string{"", "n"} {
		tb := newTable(func(s *Settings) { s.HeartbeatInterval = time.Hour })
		r := tb.Begin(0)
		r.OpenNode(nodeA)
		r.DescribeNode([]Attr{{Key: "host.name", Text: "n"}})
		r.Observe(new(double(1, 1)))
		require.True(t, r.HeartbeatDue(1))
		r.CloseNode()
		tb.Resync("", name)
		r.Commit()

		in(tb, 0, nodeA, func(r *Report) {
			assert.Equal(t, Forward, r.Observe(new(double(1, 1))))
			assert.True(t, r.HeartbeatDue(1))
		})
		assert.Equal(t, []Verdict{Unchanged}, push(tb, 0, nodeA, double(1, 1)))
	}
}

// Neither does a report that commits after another report has seen the change.
func TestResyncBetweenTwoUnderWay(t *testing.T) {
	tb := newTable(nil)
	old, fresh := tb.Begin(0), tb.Begin(0)
	observe(old, nodeA, double(1, 1))
	tb.Resync("", "")
	observe(fresh, nodeA, double(2, 2))
	old.Commit()
	fresh.Commit()
	assert.Equal(t, Forward, push(tb, 0, nodeA, double(1, 1), double(2, 2))[0])
}

// TestAnEndThatWasGivenUpIsToldAgain: whoever accepted the marker could not
// deliver it.
func TestAnEndThatWasGivenUpIsToldAgain(t *testing.T) {
	for name, relayed := range map[string]bool{"by this tier": false, "by the tier below": true} {
		t.Run(name, func(t *testing.T) {
			tb := vanishing()
			report(tb, 0, true, 1, 2)
			if relayed {
				in(tb, 0, nodeA, func(r *Report) {
					r.Relayed()
					r.Forget(2)
				})
			} else {
				for s := 10; s < 110; s += 10 {
					require.Empty(t, report(tb, s, true, 1))
				}
				require.Equal(t, []string{"GPU-2"}, report(tb, 110, true, 1))
			}
			require.Empty(t, report(tb, 120, true, 1))
			tb.ResyncNode(nodeA)
			tb.Resync("", "")
			assert.Equal(t, []string{"GPU-2"}, report(tb, 121, false, 1))
			assert.Equal(t, []string{"GPU-2"}, report(tb, 122, true, 1), "not accepted, so again")
			assert.Empty(t, report(tb, 123, true, 1), "once")

			tb.ResyncNode(nodeA)
			assert.Equal(t, []Verdict{Forward}, push(tb, 124*time.Second, nodeA, double(2, 1)), "back before it is told")
			assert.Empty(t, report(tb, 124, true, 1), "which is not to be told any more")
			assert.Equal(t, []Verdict{Unchanged}, push(tb, 124*time.Second, nodeA, double(2, 1)))
		})
	}
}

// TestAnEndThatWasGivenUpAndAValueOnItsWay: the next report must not take the
// value of before for what the next hop has.
func TestAnEndThatWasGivenUpAndAValueOnItsWay(t *testing.T) {
	tb := vanishing()
	report(tb, 0, true, 1, 2)
	in(tb, 0, nodeA, func(r *Report) { r.Forget(2) })
	tb.ResyncNode(nodeA)
	a := tb.Begin(0)
	require.Equal(t, []Verdict{Forward}, observe(a, nodeA, double(2, 1)))
	assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, double(2, 1)))
	a.Abort()
}
