// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// recounted is what a table without reports under way holds for each cluster.
func recounted(t require.TestingT, tb *Table) (bytes, series map[uint64]int) {
	bytes, series = map[uint64]int{}, map[uint64]int{}
	for n := range tb.all() {
		require.Zero(t, n.reserved)
		bytes[n.cluster] += n.size()
		series[n.cluster] += len(n.entries)
	}
	countSlots(&tb.dict.metrics, bytes)
	countSlots(&tb.dict.pairs, bytes)
	countSlots(&tb.dict.sets, bytes)
	return bytes, series
}

func countSlots[K comparable](s *numbered[K], bytes map[uint64]int) {
	for i := range s.slots {
		if at := &s.slots[i]; at.used {
			bytes[at.cluster] += s.bytes(at.name)
		}
	}
}

func requireCounted(t require.TestingT, tb *Table) {
	bytes, series := recounted(t, tb)
	var allBytes, allSeries int
	for _, held := range bytes {
		allBytes += held
	}
	for _, held := range series {
		allSeries += held
	}
	require.Equal(t, allBytes, tb.bytes.Taken())
	require.Equal(t, allSeries, tb.room.Taken())
	require.EqualValues(t, allSeries, tb.Stats().Series)
	for cluster, held := range bytes {
		require.Equal(t, held, tb.bytes.Held(cluster))
	}
	for cluster, held := range series {
		require.Equal(t, held, tb.room.Held(cluster))
	}
}

// Any reports, at once, with any names and starts and any end, and sweeps: the ledgers
// hold what the table does, and no less while reports are under way.
func TestLedgersAgreeWithTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tb := New(Settings{
			MaxNodes: rapid.IntRange(1, 8).Draw(t, "max_nodes"), MaxSeries: rapid.IntRange(1, 200).Draw(t, "max_series"),
			MaxSeriesPerNode: rapid.IntRange(1, 60).Draw(t, "max_series_per_node"),
			MaxBytes:         rapid.SampledFrom([]int{0, 2_000, 10_000, 50_000}).Draw(t, "max_bytes"),
			DropOver:         rapid.Bool().Draw(t, "drop"), ClusterShare: rapid.SampledFrom([]float64{0.5, 1}).Draw(t, "share"),
			TTL: 640 * time.Second, VanishedAfter: time.Minute, ResyncInterval: 100 * time.Second,
			Rand: func(n int64) int64 { return n / 2 },
		})
		now, clock := time.Second, uint64(1_800_000_000e9)
		var flights []*Report
		report := func(t *rapid.T) {
			if len(flights) == 4 {
				t.Skip()
			}
			r := tb.Begin(now)
			clock += 1e9
			for range rapid.IntRange(1, 2).Draw(t, "nodes") {
				cluster, name := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "cluster"), rapid.SampledFrom([]string{"1", "2", "3"}).Draw(t, "node")
				r.OpenNode(NodeKey{HashString(cluster), HashString(name)})
				if r.Undescribed() {
					r.DescribeNode([]Attr{
						{Key: gpusemconv.AttrClusterName, Text: cluster},
						{Key: gpusemconv.AttrHostName, Text: name},
						{Key: "more", Text: strings.Repeat("x", rapid.IntRange(0, 900).Draw(t, "more"))},
					})
				}
				first, count := rapid.Uint64Range(0, 40).Draw(t, "first"), rapid.Uint64Range(0, 30).Draw(t, "count")
				start := rapid.Uint64Range(0, 3).Draw(t, "start")
				for key := first; key < first+count; key++ {
					p := Point{Key: key, Value: clock, Time: clock, Heartbeat: key%17 == 0}
					if key%3 == 0 {
						p.Start, p.Origin = start*key, start*key
					}
					if rapid.IntRange(0, 9).Draw(t, "ends") == 0 {
						r.Forget(key)
					} else {
						r.Observe(&p)
					}
					if r.Fresh() && key%5 > 0 {
						r.Describe(&Metric{Name: "m" + strconv.FormatUint(key%4, 10)}, []Attr{
							{Key: "k", Num: key, Type: AttrInt}, {Key: "long", Text: strings.Repeat("y", rapid.IntRange(0, 900).Draw(t, "long"))},
						})
					}
				}
				if rapid.Bool().Draw(t, "relayed") {
					r.Relayed()
				}
				for range r.Vanished {
				}
				for range r.Repeated(clock) {
				}
				r.CloseNode()
			}
			flights = append(flights, r)
		}
		t.Repeat(map[string]func(*rapid.T){
			"report": report, "report2": report,
			"end": func(t *rapid.T) {
				if len(flights) == 0 {
					t.Skip()
				}
				i := rapid.IntRange(0, len(flights)-1).Draw(t, "flight")
				r := flights[i]
				flights = append(flights[:i], flights[i+1:]...)
				switch rapid.SampledFrom([]string{"commit", "commit", "commit", "miss", "abort", "discard"}).Draw(t, "how") {
				case "commit":
					r.Commit()
				case "miss":
					r.Miss(map[NodeKey]struct{}{{HashString("a"), HashString("1")}: {}})
					r.Commit()
				case "abort":
					r.Abort()
				case "discard":
					r.Discard()
				}
			},
			"time": func(t *rapid.T) {
				now += time.Duration(rapid.Int64Range(1, 700).Draw(t, "seconds")) * time.Second
				tb.Sweep(now)
			},
			"": func(t *rapid.T) {
				if len(flights) == 0 {
					requireCounted(t, tb)
					return
				}
				var series int
				for n := range tb.all() {
					series += len(n.entries)
				}
				require.LessOrEqual(t, series, tb.room.Taken())
			},
		})
		for _, r := range flights {
			r.Discard()
		}
		requireCounted(t, tb)
		tb.Sweep(now + 100*time.Hour)
		tb.Sweep(now + 200*time.Hour) // names are freed by the sweep after that of their nodes
		require.Zero(t, tb.bytes.Taken())
		require.Zero(t, tb.room.Taken())
		require.Zero(t, tb.places.Taken())
	})
}

// shapes are tables whose memory lies in different parts of them.
var shapes = []struct {
	name                 string
	nodes, series, pairs int
	text                 string // in an attribute of each series
	starts               bool
}{
	{"nodes of eight GPUs", 400, 320, 2, "", false},
	{"one series each", 20_000, 1, 1, "", false},
	{"many series each", 20, 10_000, 2, "", false},
	{"long names of their own", 200, 200, 3, strings.Repeat("z", 200), false},
	{"a start for each sum", 200, 320, 1, "", true},
}

// filled is a table of that shape.
func filled(nodes, series, pairs int, text string, starts bool) *Table {
	tb := New(Settings{MaxNodes: nodes, MaxSeries: nodes * series, MaxBytes: 1 << 40, TTL: time.Hour})
	for n := range nodes {
		name := fmt.Sprint("gpu-node-", n)
		in(tb, 0, KeyOf([]byte(name)), func(r *Report) {
			r.DescribeNode([]Attr{{Key: "k8s.cluster.name", Text: "c"}, {Key: "k8s.node.name", Text: name}, {Key: "host.name", Text: name}, {Key: "host.id", Text: fmt.Sprintf("%032x", n)}})
			r.Relayed()
			for i := range series {
				p := Point{Key: Mix(uint64(i), 1), Value: uint64(i), Kind: KindInt, Time: 1_800_000_000e9}
				if starts {
					p.Start, p.Origin = uint64(i+1), uint64(i+1)
				}
				r.Observe(&p)
				attrs := []Attr{
					{Key: "hw.id", Text: fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%08d%04d", n, i%8)},
					{Key: "gpu.index", Num: uint64(i % 8), Type: AttrInt},
					{Key: "own", Text: fmt.Sprint(n, "-", i, text)},
				}
				r.Describe(&Metric{ScopeName: "nvml", Name: fmt.Sprint("hw.gpu.metric.", i/8%55), Unit: "1", Description: "A metric of a GPU."}, attrs[:pairs])
			}
		})
	}
	return tb
}

// Whatever a table is full of, its bytes are those that it holds within 15 %. The promise
// is 40 bytes per series of usual nodes, names and all.
func TestBytesAreThoseHeld(t *testing.T) {
	for _, tt := range shapes {
		t.Run(tt.name, func(t *testing.T) {
			before := heap()
			tb := filled(tt.nodes, tt.series, tt.pairs, tt.text, tt.starts)
			took := heap() - before
			assert.EqualValues(t, tt.nodes*tt.series, tb.Stats().Series)
			assert.InEpsilon(t, took, tb.bytes.Taken(), 0.15)
			if tt.series == 320 && !tt.starts {
				assert.LessOrEqual(t, float64(took)/float64(tb.Stats().Series), 40.0)
			}
			t.Logf("counted %d, held %d: %.2f", tb.bytes.Taken(), took, float64(tb.bytes.Taken())/float64(took))
		})
	}
}

// Names that nodes could share count for the cluster that brings them. A cluster over its
// bytes brings none: its nodes keep the names themselves, in the room reserved for that.
func TestSharedNamesAreOfWhoBringsThem(t *testing.T) {
	const maxBytes = 400 << 10
	tb := New(Settings{MaxNodes: 1000, MaxSeries: 1 << 20, MaxBytes: maxBytes, DropOver: true, TTL: time.Hour})
	for n := range 200 {
		in(tb, 0, NodeKey{7, uint64(n)}, func(r *Report) {
			r.DescribeNode([]Attr{{Key: gpusemconv.AttrClusterName, Text: "east"}})
			for i := range 200 {
				if r.Observe(new(double(Mix(uint64(i), 1), 1))) == Forward {
					r.Describe(&Metric{Name: "m"}, []Attr{
						{Key: "a", Num: uint64(i % 15), Type: AttrInt}, {Key: "b", Num: uint64(i / 15), Type: AttrInt}, {Key: fmt.Sprint("node", n%50), Num: uint64(i % 32), Type: AttrInt},
					})
				}
			}
		})
	}
	requireCounted(t, tb)
	assert.Greater(t, len(tb.dict.pairs.ids), 100)
	assert.LessOrEqual(t, tb.bytes.Taken(), maxBytes)
	assert.Greater(t, tb.bytes.Taken(), maxBytes*3/4)
}

// dropping is a table that drops what is over a limit.
func dropping(edit func(*Settings)) *Table {
	return newTable(func(s *Settings) {
		s.DropOver, s.TTL, s.ResyncInterval = true, 640*time.Second, 100*time.Second
		if edit != nil {
			edit(s)
		}
	})
}

func TestOverIsDropped(t *testing.T) {
	three := []Point{double(1, 1), double(2, 2), double(3, 3)}
	t.Run("series", func(t *testing.T) {
		tb := dropping(func(s *Settings) { s.MaxSeries = 2 })
		r := tb.Begin(0)
		assert.Equal(t, []Verdict{Forward, Forward, Over}, observe(r, nodeA, three...))
		assert.Equal(t, LimitSeries, r.Limit())
		r.Commit()
		assert.Equal(t, []Verdict{Forward, Forward, Over}, push(tb, 0, nodeA, double(1, 7), double(2, 7), double(3, 7)), "known series go on")
		assert.Equal(t, Stats{Nodes: 1, Series: 2}, tb.Stats())
	})
	t.Run("series of a node", func(t *testing.T) {
		tb := dropping(func(s *Settings) { s.MaxSeriesPerNode = 1 })
		r := tb.Begin(0)
		assert.Equal(t, []Verdict{Forward, Over, Over}, observe(r, nodeA, three...))
		assert.Equal(t, LimitNodeSeries, r.Limit())
		r.Commit()
		assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeB, three[:1]...), "others have room")
	})
	t.Run("a node", func(t *testing.T) {
		tb := dropping(func(s *Settings) { s.MaxNodes = 1 })
		push(tb, 0, nodeA, three...)
		in(tb, 0, nodeB, func(r *Report) {
			assert.Equal(t, Over, r.Observe(&three[0]))
			assert.Equal(t, Over, r.Forget(2))
			assert.Equal(t, LimitNodes, r.Limit())
			assert.True(t, r.Drops())
			assert.False(t, r.HeartbeatDue(1))
		})
		assert.Equal(t, Stats{Nodes: 1, Series: 3}, tb.Stats())
	})
	t.Run("a node's bytes", func(t *testing.T) {
		tb := dropping(func(s *Settings) { s.MaxBytes = nodeBytes })
		in(tb, 0, nodeA, func(r *Report) {
			r.DescribeNode([]Attr{{Key: "host.name", Text: "a"}})
			assert.True(t, r.Drops())
			assert.Equal(t, LimitBytes, r.Limit())
		})
		assert.Zero(t, tb.places.Taken())
		assert.Zero(t, tb.bytes.Taken())
		assert.Zero(t, tb.Stats().Nodes)
	})
	t.Run("bytes, and a name's", func(t *testing.T) {
		tb := dropping(func(s *Settings) { s.MaxBytes = nodeBytes + 1300 })
		describe := func(key uint64, size int) (Verdict, bool) {
			r := tb.Begin(0)
			r.OpenNode(nodeA)
			if r.Undescribed() {
				r.DescribeNode([]Attr{{Key: "host.name", Text: "a"}})
			}
			v := r.Observe(new(double(key, 1)))
			named := r.Describe(&Metric{Name: "m"}, []Attr{{Key: "k", Text: strings.Repeat("x", size)}})
			r.CloseNode()
			r.Commit()
			return v, named
		}
		v, named := describe(1, 1000)
		assert.Equal(t, Forward, v)
		assert.False(t, named, "there is room for the series, and none for its name")
		assert.Zero(t, tb.Stats().Series)
		v, named = describe(1, 1)
		assert.Equal(t, Forward, v)
		assert.True(t, named, "a later name fits")
		for key := uint64(2); v == Forward && named && key < 100; key++ {
			v, named = describe(key, 1)
		}
		assert.False(t, v == Forward && named, "it is full")
		assert.Less(t, tb.Stats().Series, int64(20))
		requireCounted(t, tb)
	})
	t.Run("the end of a series that is not known", func(t *testing.T) {
		tb := dropping(func(s *Settings) { s.MaxSeries = 2 })
		end := func(key uint64) Verdict {
			r := tb.Begin(0)
			r.OpenNode(nodeA)
			v := r.Forget(key)
			named(r, key)
			r.CloseNode()
			r.Commit()
			return v
		}
		push(tb, 0, nodeA, double(1, 1))
		assert.Equal(t, Forward, end(2))
		assert.Equal(t, Over, end(3))
		assert.Equal(t, Forward, end(1), "a known one ends")
		assert.Equal(t, Forward, end(2))
		assert.Empty(t, tb.Series(nodeA), "neither has a value")
		assert.Equal(t, []Verdict{Forward}, push(tb, 0, nodeA, double(2, 1)), "and is back")
		assert.Len(t, tb.Series(nodeA), 1)
		requireCounted(t, tb)
	})
}

// Without DropOver, what is over a bound is forwarded each time, and not remembered. A full
// table is pressed, but not by a node that is at its own bound.
func TestOverIsForwarded(t *testing.T) {
	for name, tt := range map[string]struct {
		set   Settings
		known int64
	}{
		"series":           {Settings{MaxNodes: 9, MaxSeries: 2}, 2},
		"series of a node": {Settings{MaxNodes: 9, MaxSeries: 100, MaxSeriesPerNode: 2}, 3},
		"nodes":            {Settings{MaxNodes: 1, MaxSeries: 100}, 3},
		"bytes":            {Settings{MaxNodes: 9, MaxSeries: 100, MaxBytes: 3*seriesBytes - 1}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			tb := New(tt.set)
			for round := range int64(3) {
				var forwarded int64
				for _, v := range append(push(tb, 0, nodeA, double(1, 1), double(2, 2), double(3, 3)), push(tb, 0, nodeB, double(1, 1))...) {
					if v == Forward {
						forwarded++
					}
				}
				if round > 0 {
					assert.Equal(t, 4-tt.known, forwarded)
				}
				assert.Equal(t, tt.known, tb.Stats().Series)
				assert.Equal(t, (round+1)*(4-tt.known), tb.Stats().Untracked)
				assert.Equal(t, tt.set.MaxSeriesPerNode == 0, tb.Pressed())
			}
		})
	}
}

// Room is taken when a report is compared, not when it is accepted: of many reports
// under way at once no more goes on than is remembered afterwards.
func TestReportsUnderWayHoldTheirRoom(t *testing.T) {
	for name, end := range map[string]func(*Report){"abort": (*Report).Abort, "discard": (*Report).Discard} {
		t.Run(name, func(t *testing.T) {
			tb := dropping(func(s *Settings) { s.MaxSeries = 3 })
			a, b := tb.Begin(0), tb.Begin(0)
			assert.Equal(t, []Verdict{Forward, Forward}, observe(a, nodeA, double(1, 1), double(2, 1)))
			assert.Equal(t, []Verdict{Forward, Over}, observe(b, nodeB, double(1, 1), double(2, 1)))
			end(a)
			assert.Equal(t, 1, tb.room.Taken())
			c := tb.Begin(0)
			assert.Equal(t, []Verdict{Forward, Forward, Over}, observe(c, nodeA, double(1, 1), double(2, 1), double(3, 1)))
			b.Commit()
			c.Commit()
			assert.EqualValues(t, 3, tb.Stats().Series)
			requireCounted(t, tb)
		})
	}
}

// A node without room for a further series goes on to say that it lives.
func TestAHeartbeatFindsRoom(t *testing.T) {
	tb := dropping(func(s *Settings) { s.MaxSeries = 1 })
	beat := func(key, at uint64) Verdict {
		p := double(key, float64(at))
		p.Heartbeat = true
		return push(tb, 0, nodeA, double(1, 1), p)[1]
	}
	assert.Equal(t, Forward, beat(2, 1))
	assert.Equal(t, Forward, beat(2, 2))
	assert.Equal(t, Over, beat(3, 1), "one of each node, or made-up ones would pass")
	assert.EqualValues(t, 2, tb.Stats().Series)
	requireCounted(t, tb)

	tb = dropping(func(s *Settings) { s.MaxSeries = 1 })
	push(tb, 0, nodeA, double(1, 1))
	for _, end := range []func(*Report){(*Report).Abort, (*Report).Discard, func(r *Report) {
		r.Miss(map[NodeKey]struct{}{nodeA: {}})
		r.Commit()
	}} {
		r := tb.Begin(0)
		require.Equal(t, Forward, observe(r, nodeA, double(1, 1), Point{Key: 2, Heartbeat: true})[1])
		end(r)
	}
	assert.Equal(t, Forward, beat(2, 1), "the first ones were refused")
}

// One cluster with ten times its share of series, of nodes, of names and of values, in
// one go: it holds no more than its share, and the other one loses nothing.
func TestAGreedyClusterLeavesTheOthersWhole(t *testing.T) {
	const maxBytes = 4 << 20
	type greed struct{ nodes, series, text int }
	for name, g := range map[string]greed{
		"series": {5, 100_000, 0}, "nodes": {50_000, 1, 0}, "names": {20, 1000, 900}, "text of nodes": {25_000, 1, 900},
	} {
		t.Run(name, func(t *testing.T) {
			tb := New(Settings{MaxNodes: 1 << 20, MaxSeries: 1 << 24, MaxBytes: maxBytes, DropOver: true, ClusterShare: 0.5, TTL: time.Hour})
			push := func(cluster string, node, series, text int) (over, forwarded int) {
				in(tb, time.Second, NodeKey{HashString(cluster), uint64(node)}, func(r *Report) {
					if r.Undescribed() {
						r.DescribeNode([]Attr{
							{Key: gpusemconv.AttrClusterName, Text: cluster},
							{Key: gpusemconv.AttrHostName, Text: strconv.Itoa(node)},
							{Key: "more", Text: strings.Repeat("x", text)},
						})
					}
					long := strings.Repeat("y", text)
					for i := range series {
						v := r.Observe(&Point{Key: Mix(uint64(i), 7), Value: 7, Time: 1})
						if v == Forward && r.Fresh() && !r.Describe(&Metric{Name: "m" + strconv.Itoa(i%3000)}, []Attr{{Key: "k", Text: strconv.Itoa(i) + long}}) {
							v = Over
						}
						switch v {
						case Over:
							over++
						case Forward:
							forwarded++
						case Unchanged, Stale:
						}
					}
				})
				return over, forwarded
			}
			for i := range 10 {
				over, forwarded := push("honest", i, 400, 0)
				require.Zero(t, over)
				require.Equal(t, 400, forwarded)
			}
			var over, forwarded, wanted int
			for i := range g.nodes {
				o, f := push("greedy", i, g.series, g.text)
				over, forwarded, wanted = over+o, forwarded+f, wanted+g.series*(seriesBytes+g.text)
			}
			assert.Equal(t, g.nodes*g.series, over+forwarded)
			assert.Greater(t, over, forwarded)
			honest, greedy := tb.bytes.Held(HashString("honest")), tb.bytes.Held(HashString("greedy"))
			assert.LessOrEqual(t, greedy, (maxBytes-honest)/2)
			assert.Greater(t, greedy, (maxBytes-honest)/4, "its share is used")
			for i := range 20 {
				over, _ := push("honest", i, 400, 0)
				require.Zero(t, over)
			}
			_, forwarded = push("honest", 3, 400, 0)
			assert.Zero(t, forwarded, "it is known")
			requireCounted(t, tb)
		})
	}
}
