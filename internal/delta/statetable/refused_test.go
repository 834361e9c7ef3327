// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// pushed is a push as a test makes it up, in parts of one node each.
type pushed struct {
	at    time.Duration
	parts []pushedOf
}

type pushedOf struct {
	node    NodeKey
	points  []Point
	ends    []uint64
	relayed bool
	beat    uint64
}

func drawPush(t *rapid.T, at time.Duration) pushed {
	s := pushed{at: at}
	clock := uint64(1_800_000_000e9) + uint64(at)
	for range rapid.IntRange(1, 3).Draw(t, "parts") {
		of := pushedOf{
			node:    rapid.SampledFrom([]NodeKey{nodeA, nodeB}).Draw(t, "node"),
			relayed: rapid.Bool().Draw(t, "relayed"),
			ends:    rapid.SliceOfN(rapid.Uint64Range(0, maxKeys), 0, 1).Draw(t, "ends"),
			beat:    clock - rapid.Uint64Range(0, 9e9).Draw(t, "late"),
		}
		for _, key := range rapid.SliceOfN(rapid.Uint64Range(0, maxKeys), 0, maxKeys).Draw(t, "keys") {
			of.points = append(of.points, Point{
				Key: key, Value: rapid.Uint64Range(0, 2).Draw(t, "value"), Time: of.beat, Received: clock,
				Kind: Kind(rapid.Uint64Range(0, 2).Draw(t, "kind")),
			})
		}
		s.parts = append(s.parts, of)
	}
	return s
}

// judged takes the push through a table up to its verdict, and returns what it lets on.
func (s *pushed) judged(tb *Table) (r *Report, out []string) {
	r = tb.Begin(s.at)
	for _, of := range s.parts {
		r.OpenNode(of.node)
		if r.Undescribed() {
			r.DescribeNode([]Attr{{Key: "host.name", Text: strconv.FormatUint(of.node.Lo, 10)}})
		}
		for _, p := range of.points {
			verdict := r.Observe(&p)
			if r.Fresh() && p.Key%5 > 0 {
				r.Describe(&Metric{Name: strconv.FormatUint(p.Key%3, 10)}, []Attr{{Key: "k", Type: AttrInt, Num: p.Key}})
			}
			out = append(out, fmt.Sprint(p.Key, verdict))
		}
		for _, key := range of.ends {
			r.Forget(key)
		}
		if of.relayed {
			r.Relayed()
		}
		r.Said(of.beat, of.beat)
		for series := range r.Vanished {
			out = append(out, fmt.Sprint("gone ", series.Metric.Name, series.Attrs))
		}
		if of.relayed {
			for series := range r.Repeated(of.beat) {
				out = append(out, fmt.Sprint("again ", series.Metric.Name, series.Attrs, series.Value))
			}
		} else {
			out = append(out, fmt.Sprint("beat ", r.HeartbeatDue(of.beat)))
		}
		r.CloseNode()
	}
	return r, out
}

// state is all that a table knows, without the marks of reports under way.
func state(tb *Table) map[string]string {
	out := map[string]string{"totals": fmt.Sprintf("%+v places %d room %d", tb.Stats(), tb.places.Taken(), tb.room.Taken())}
	for n := range tb.all() {
		series := make([]string, 0, len(n.entries))
		for _, e := range n.entries {
			named := ""
			if e.metric != 0 {
				named = fmt.Sprint(tb.name(n, &e))
			}
			e.seen, e.metric, e.attrs = 0, 0, 0
			series = append(series, fmt.Sprintf("%+v %s", e, named))
		}
		out[fmt.Sprint(n.key)] = fmt.Sprint(
			series, tb.dict.attributes(nil, &n.names, n.attrs), n.described, n.kept, n.accepted, n.label, n.cluster,
			n.heard, n.said, n.beat, n.told, n.clock, n.usual, n.paced, n.paused, n.resyncAt, n.opaqueAt, n.epoch, n.since, n.relayedAt, n.relayed,
			n.scanned, n.lost, n.lacking, n.starts, n.heartbeatAt, n.heartbeatTime, n.inflight, n.evicted, n.owes,
			n.reserved, n.beats,
		)
	}
	return out
}

// readable is what others see of a table.
func readable(tb *Table, now time.Duration) map[string][]string {
	out := map[string][]string{"reporting": {strconv.FormatInt(tb.Reporting(now), 10)}}
	for n := range tb.Nodes() {
		var series []string
		for _, s := range tb.Series(n.Key) {
			series = append(series, fmt.Sprint(s))
		}
		out[fmt.Sprint(n)] = series
	}
	return out
}

// Any pushes, some of them refused before they went on: the table is what it is
// without those, whole, and says the same of each that is accepted.
func TestARefusedPushChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		set := Settings{
			MaxNodes: rapid.IntRange(1, 3).Draw(t, "max_nodes"), MaxSeries: rapid.IntRange(3, 40).Draw(t, "max_series"),
			TTL: 640 * time.Second, VanishedAfter: 60 * time.Second, ResyncInterval: 200 * time.Second, OpaqueInterval: 90 * time.Second,
			HeartbeatInterval: rapid.SampledFrom([]time.Duration{0, 25 * time.Second}).Draw(t, "heartbeat"),
			DropOver:          rapid.Bool().Draw(t, "drop"),
			Rand:              func(n int64) int64 { return n / 2 },
		}
		with, without := New(set), New(set)
		var now time.Duration
		for range rapid.IntRange(1, 25).Draw(t, "pushes") {
			now += time.Duration(rapid.SampledFrom([]int{0, 1, 10, 10, 10, 10, 70, 400, 700}).Draw(t, "passes")) * time.Second
			switch rapid.SampledFrom([]string{"accepted", "accepted", "refused", "refused", "lost", "sweep"}).Draw(t, "what") {
			case "refused":
				s := drawPush(t, now)
				before := readable(with, now)
				r, _ := s.judged(with)
				require.Equal(t, before, readable(with, now), "while it is under way")
				r.Discard()
			case "lost":
				with.Resync("", "")
				without.Resync("", "")
			case "sweep":
				with.Sweep(now)
				without.Sweep(now)
			default:
				s := drawPush(t, now)
				r, out := s.judged(with)
				other, want := s.judged(without)
				require.Equal(t, want, out)
				if rapid.IntRange(0, 4).Draw(t, "missed") == 0 {
					r.Miss(map[NodeKey]struct{}{nodeA: {}})
					other.Miss(map[NodeKey]struct{}{nodeA: {}})
				}
				r.Commit()
				other.Commit()
			}
			require.Equal(t, state(without), state(with))
		}
	})
}
