// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func fill(tb *Table, node int, points ...Point) {
	in(tb, 0, KeyOf(fmt.Append(nil, node)), func(r *Report) {
		if r.Undescribed() {
			r.DescribeNode([]Attr{{Key: "host.name", Text: fmt.Sprint("node-", node)}, {Key: "k8s.cluster.name", Text: "east"}})
		}
		for _, p := range points {
			r.Observe(&p)
			if r.Fresh() {
				name := "hw.gpu.utilization"
				attrs := []Attr{{Key: "hw.id", Text: fmt.Sprintf("GPU-%d-%d", node, p.Key%8)}, {Key: "gpu.index", Num: p.Key % 8, Type: AttrInt}}
				if p.Kind == KindInt {
					name = "hw.gpu.health.state"
					attrs = append(attrs, Attr{Key: "hw.state", Text: "Unhealthy"})
				}
				r.Describe(&Metric{Name: name}, attrs)
			}
		}
	})
}

func called(tb *Table) []string {
	var out []string
	for n := range tb.Nodes() {
		names := Identify(n.Attrs)
		out = append(out, names.Node()+"@"+names.Cluster("", ""))
	}
	slices.Sort(out)
	return out
}

func TestReader(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = 64 })
	fill(tb, 1, double(1, 0.9), Point{Key: 11, Value: 0, Kind: KindInt})
	fill(tb, 2, double(1, 0.1), double(2, math.NaN()), Point{Key: 11, Value: 1, Kind: KindInt})
	fill(tb, 3, Point{Key: 1, Value: 1, Kind: KindHash})

	assert.Equal(t, []string{"node-1@east", "node-2@east", "node-3@east"}, called(tb))

	assert.Equal(t, []Series{
		{
			Metric: Metric{Name: "hw.gpu.utilization"}, Kind: KindDouble, Value: math.Float64bits(0.9),
			Attrs: []Attr{{Key: "hw.id", Text: "GPU-1-1"}, {Key: "gpu.index", Num: 1, Type: AttrInt}},
		},
		{
			Metric: Metric{Name: "hw.gpu.health.state"}, Kind: KindInt,
			Attrs: []Attr{{Key: "hw.id", Text: "GPU-1-3"}, {Key: "gpu.index", Num: 3, Type: AttrInt}, {Key: "hw.state", Text: "Unhealthy"}},
		},
	}, tb.Series(KeyOf([]byte("1"))))
	assert.Empty(t, tb.Series(KeyOf([]byte("none"))), "a node that is not there has no series")

	push(tb, 60, KeyOf([]byte("1")), double(1, 1))
	tb.Sweep(100)
	require.EqualValues(t, 1, tb.Stats().Series)
	assert.Equal(t, []string{"node-1@east"}, called(tb), "a node keeps its name when series expire")
}

// Names come back as they were given, whatever is shared, full, dropped and
// rebuilt in between.
func TestNamesComeBack(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 3, -1)
	rapid.Check(t, func(t *rapid.T) {
		tb := newTable(func(s *Settings) { s.TTL, s.MaxSeries = 64, 1000 })
		want := map[string]bool{}
		write := func(s *Series) string { return fmt.Sprintf("%+v %+v", s.Metric, s.Attrs) }
		key := uint64(0)
		live := map[uint64]string{}
		for round := range 3 {
			in(tb, time.Duration(round*64), nodeA, func(r *Report) {
				for old := range live {
					if rapid.Bool().Draw(t, "lives on") {
						r.Observe(&Point{Key: old})
					} else {
						delete(live, old)
					}
				}
				for range rapid.IntRange(0, 100).Draw(t, "series") {
					key++
					s := Series{Metric: Metric{Name: text.Draw(t, "name"), Unit: text.Draw(t, "unit"), Type: MetricType(rapid.IntRange(0, 4).Draw(t, "type"))}}
					s.Attrs = []Attr{{Key: "serial", Text: strconv.FormatUint(key, 10)}} // runs out of shared room
					for k := range rapid.MapOfN(text, rapid.Bool(), 0, 3).Draw(t, "attributes") {
						if rapid.Bool().Draw(t, "string") {
							s.Attrs = append(s.Attrs, Attr{Key: k, Text: text.Draw(t, "value")})
						} else {
							s.Attrs = append(s.Attrs, Attr{Key: k, Num: rapid.Uint64().Draw(t, "number"), Type: AttrType(rapid.IntRange(1, 3).Draw(t, "kind"))})
						}
					}
					r.Observe(&Point{Key: key})
					r.Describe(&s.Metric, s.Attrs)
					live[key] = write(&s)
				}
			})
			tb.Sweep(time.Duration(round*64 + 63))
			clear(want)
			for _, s := range live {
				want[s] = true
			}
			got := map[string]bool{}
			for _, s := range tb.Series(nodeA) {
				got[write(&s)] = true
			}
			require.Equal(t, want, got)
		}
	})
}

// The promise is 40 bytes per series beyond a million, names and all.
func TestBytesPerSeries(t *testing.T) {
	before, tb := heap(), filled(800, 320, 2, "", false)
	perSeries := float64(heap()-before) / float64(tb.Stats().Series)
	t.Logf("%.1f bytes per series", perSeries)
	assert.LessOrEqual(t, perSeries, 40.0)
}
