// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/test/heap"
)

// Whatever nodes report, end and forget, each series has the name that it was given. A metric
// is there once while a node has it, and the ledger holds what the table does.
func TestNamesComeBack(t *testing.T) {
	text := rapid.StringOfN(rapid.RuneFrom([]rune("ab")), 0, 3, -1)
	named := rapid.Custom(func(t *rapid.T) Series {
		s := Series{Metric: Metric{Name: text.Draw(t, "name"), Unit: text.Draw(t, "unit"), Type: MetricType(rapid.IntRange(0, 4).Draw(t, "type"))}}
		for _, key := range rapid.SliceOfNDistinct(text, 0, 3, rapid.ID).Draw(t, "keys") {
			a := Attr{Key: key, Type: AttrType(rapid.IntRange(0, 3).Draw(t, "kind"))}
			if a.Type == AttrString {
				a.Text = text.Draw(t, "value")
			} else {
				a.Num = rapid.Uint64().Draw(t, "number")
			}
			s.Attrs = append(s.Attrs, a)
		}
		return s
	})
	rapid.Check(t, func(t *rapid.T) {
		tb := New(Settings{MaxNodes: 9, MaxSeries: 1000, MaxBytes: rapid.SampledFrom([]int{0, 20_000}).Draw(t, "max_bytes"), TTL: 64})
		now, key := time.Duration(0), uint64(0)
		given := map[uint64]string{}
		write := func(m Metric, attrs []Attr) string { return fmt.Sprintf("%+v %+v", m, slices.Clip(attrs)) }
		t.Repeat(map[string]func(*rapid.T){
			"report": func(t *rapid.T) {
				now += 8
				r := tb.Begin(now)
				node := push{node: strconv.Itoa(rapid.IntRange(0, 2).Draw(t, "node"))}
				r.Open(node.key(), func() ([]Attr, bool) { return node.attrs(), true })
				if r.node != nil {
					for _, e := range slices.Clone(r.node.entries) {
						if rapid.Bool().Draw(t, "lives on") {
							r.Observe(&Point{Key: e.key})
						}
					}
				}
				for range rapid.IntRange(0, 8).Draw(t, "series") {
					s := named.Draw(t, "series")
					key++
					if r.Observe(&Point{Key: key}) == Unknown {
						r.Add(&Point{Key: key}, &s.Metric, s.Attrs)
					}
					given[key] = write(s.Metric, s.Attrs)
				}
				r.Close(Facts{Alive: true})
				r.Done()
				r.Accepted()
			},
			"sweep": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(1, 70).Draw(t, "time"))
				tb.Sweep(now)
			},
			"": func(t *rapid.T) {
				had := map[*metric]int{}
				for n := range tb.all() {
					for _, m := range n.names.metrics {
						had[m]++
					}
					for i := range n.entries {
						s := n.series(&n.entries[i])
						require.Equal(t, given[n.entries[i].key], write(s.Metric, s.Attrs))
					}
				}
				require.Len(t, tb.metrics.all, len(had))
				for m, nodes := range had {
					require.Same(t, m, tb.metrics.all[m.Metric])
					require.Equal(t, nodes, m.nodes)
				}
				requireCounted(t, tb)
			},
		})
		tb.Sweep(now + time.Hour)
		requireEmpty(t, tb)
	})
}

// A series beyond the bounds of names has none, and takes no room of those that have.
func TestBoundsOfNames(t *testing.T) {
	var many []Attr
	for i := range maxPairsPerSet + 1 {
		many = append(many, Attr{Key: "k", Num: uint64(i), Type: AttrInt})
	}
	long := strings.Repeat("x", maxPairText)
	for name, tt := range map[string]struct {
		metric Metric
		attrs  []Attr
		named  bool
	}{
		"as many attributes as there can be": {Metric{Name: "m"}, many[1:], true},
		"one more":                           {Metric{Name: "m"}, many, false},
		"a long attribute":                   {Metric{Name: "m"}, []Attr{{Text: long}}, true},
		"one that is longer":                 {Metric{Name: "m"}, []Attr{{Key: "k", Text: long}}, false},
		"a long metric":                      {Metric{Name: "m", Description: long[1:]}, nil, true},
		"one that is longer still":           {Metric{Name: "m", Description: long}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			tb := newTable()
			r := tb.Begin(0)
			r.Open(push{}.key(), func() ([]Attr, bool) { return nil, true })
			assert.Equal(t, Pass, r.Add(&Point{Key: 1}, &tt.metric, tt.attrs))
			assert.Equal(t, tt.named, r.node.entries[0].metric != 0)
			r.Done()
			r.Accepted()
			requireCounted(t, tb)
		})
	}
}

// A node's names are bounded by their number and by their bytes.
func TestNamesOfANodeAreBounded(t *testing.T) {
	for text, want := range map[string]int{"": maxNodeNames / 2, strings.Repeat("x", 1000): maxNodeNameBytes / 1010} {
		tb, n := newTable(), &node{}
		var w namer
		named := 0
		for i := range maxNodeNames + 10 {
			if _, set := w.name(&tb.metrics, n, &Metric{Name: "m"}, []Attr{{Text: fmt.Sprintf("%05d", i) + text}}); set != 0 {
				named++
			}
		}
		assert.Equal(t, want, named)
	}
}

// filled is a table of so many nodes, each with so many series, of so many attributes.
func filled(nodes, series, pairs int, text string, starts bool) *Table {
	tb := New(Settings{MaxNodes: nodes, MaxSeries: nodes * series, MaxBytes: 1 << 40, TTL: time.Hour})
	for n := range nodes {
		name := fmt.Sprint("gpu-node-", n)
		r := tb.Begin(0)
		r.Open(KeyOf([]byte(name)), func() ([]Attr, bool) {
			return []Attr{{Key: "k8s.cluster.name", Text: "c"}, {Key: "k8s.node.name", Text: name}, {Key: "host.name", Text: name}, {Key: "host.id", Text: fmt.Sprintf("%032x", n)}}, true
		})
		for i := range series {
			p := Point{Key: Mix(uint64(i), 1), Value: uint64(i), Time: unix(0)}
			if starts {
				p.Start = uint64(i + 1)
			}
			attrs := []Attr{
				{Key: "hw.id", Text: fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%08d%04d", n, i%8)},
				{Key: "gpu.index", Num: uint64(i % 8), Type: AttrInt},
				{Key: "own", Text: fmt.Sprint(n, "-", i, text)},
			}
			if r.Observe(&p) == Unknown {
				r.Add(&p, &Metric{ScopeName: "nvml", Name: fmt.Sprint("hw.gpu.metric.", i/8%55), Unit: "1", Description: "A metric of a GPU."}, attrs[:pairs])
			}
		}
		r.Close(Facts{Time: unix(0), Heartbeat: unix(0), Alive: true})
		r.Done()
		r.Accepted()
	}
	return tb
}

// Whatever a table is full of, its bytes are those that it holds within 15 %. The promise
// is 42 bytes for each series of usual nodes, names and all.
func TestBytesAreThoseHeld(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes, series, pairs int
		text                 string // in an attribute of each series
		starts               bool
	}{
		"nodes of eight GPUs":      {400, 320, 2, "", false},
		"one series each":          {20_000, 1, 1, "", false},
		"many series each":         {20, 10_000, 2, "", false},
		"long names of their own":  {200, 200, 3, strings.Repeat("z", 200), false},
		"a start for each sum":     {200, 320, 1, "", true},
		"attributes of each alone": {100, 1000, 3, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			before := heap.Live()
			tb := filled(tt.nodes, tt.series, tt.pairs, tt.text, tt.starts)
			took := heap.Live() - before
			each := float64(took) / float64(tb.Stats().Series)
			t.Logf("%.1f bytes for each series", each)
			assert.EqualValues(t, tt.nodes*tt.series, tb.Stats().Series)
			assert.InEpsilon(t, took, tb.Bytes(), 0.15)
			if tt.series == 320 && !tt.starts {
				assert.LessOrEqual(t, each, 42.0)
			}
		})
	}
}

// A first report of a node costs the same for each series, however many there are.
func BenchmarkFirstReport(b *testing.B) {
	for _, series := range []int{320, 3200} {
		b.Run(strconv.Itoa(series), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				filled(1, series, 2, "", false)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*series), "ns/series")
		})
	}
}
