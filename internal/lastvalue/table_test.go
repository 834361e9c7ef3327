// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lookup returns a node, nil for none.
func (t *Table) lookup(key NodeKey) *node {
	found, _ := t.nodes.Load(key)
	n, _ := found.(*node)
	return n
}

func newTable(edit ...func(*Settings)) *Table {
	set := Settings{MaxNodes: 10, MaxSeries: 100, TTL: 24 * time.Hour, Rand: func(int64) int64 { return 0 }}
	for _, e := range edit {
		e(&set)
	}
	return New(set)
}

func collecting(s *Settings) { s.Collect = true }

const second = time.Second

// unix is the time of a report at a time of the table's.
func unix(at time.Duration) uint64 { return uint64(1_800_000_000*second + at) }

// timeless is the time of a point that has none.
const timeless = math.MaxUint64

func integer(key uint64, v int64) Point { return Point{Key: key, Value: uint64(v)} }

func double(v float64) Point {
	return Point{Key: 1, Value: math.Float64bits(v), Kind: KindDouble}
}

func sum(key, value, start uint64) Point { return Point{Key: key, Value: value, Start: start} }

func end(key uint64) Point { return Point{Key: key, End: true} }

// push is one node's part of a report. The zero node is "a".
type push struct {
	*Table
	at            time.Duration
	cluster, node string
	relayed, dead bool // see Facts
	part          bool // the resource does not fit the table's form
}

func (p push) name() string {
	if p.node == "" {
		return "a"
	}
	return p.node
}

func (p push) key() NodeKey { return NodeKey{HashString(p.cluster), HashString(p.name())} }

func (p push) attrs() []Attr {
	return []Attr{{Key: gpusemconv.AttrClusterName, Text: p.cluster}, {Key: gpusemconv.AttrHostName, Text: p.name()}}
}

// message is a report and what the next hop gets of it: the points that pass, those made of
// the table, by the keys of their series, and the heartbeat.
type message struct {
	*Report
	verdicts  []Verdict
	has       map[uint64]Series
	heartbeat uint64
}

// begin takes a report up to its answer.
func (p push) begin(points ...Point) *message {
	m := &message{Report: p.Begin(p.at), has: map[uint64]Series{}}
	m.take(p, points...)
	return m
}

// send is a report that is accepted.
func (p push) send(points ...Point) *message {
	m := p.begin(points...)
	m.Accepted()
	return m
}

// held is a message of the table.
func (p push) held() *message {
	m := &message{Report: p.Begin(p.at), has: map[uint64]Series{}}
	if _, ok := m.OpenPending(p.key()); ok {
		m.emit()
		m.Done()
	}
	return m
}

// flush is one that is accepted.
func (p push) flush() *message {
	m := p.held()
	m.Accepted()
	return m
}

func (m *message) take(p push, points ...Point) {
	m.Open(p.key(), func() ([]Attr, bool) { return p.attrs(), !p.part })
	for _, point := range points {
		switch point.Time {
		case 0:
			point.Time = unix(p.at)
		case timeless:
			point.Time = 0
		}
		verdict := m.Observe(&point)
		if verdict == Unknown {
			verdict = m.Add(&point, metricOf(&point), []Attr{{Key: "k", Type: AttrInt, Num: point.Key}})
		}
		if verdict == Pass {
			m.has[point.Key] = Series{Kind: point.Kind, Value: point.Value, Start: point.Start, Time: point.Time, Gone: point.End}
		}
		m.verdicts = append(m.verdicts, verdict)
	}
	m.Close(Facts{Time: unix(p.at), Heartbeat: unix(p.at), Relayed: p.relayed, Alive: !p.dead})
	if m.Inline() && !p.dead {
		m.emit()
	}
	m.Done()
}

func (m *message) emit() {
	m.Emit(0, func(s *Series) bool {
		m.has[s.Attrs[0].Num] = *s
		return true
	})
	m.heartbeat, _ = m.Heartbeat(0)
}

func (m *message) keys() []uint64 { return slices.Sorted(maps.Keys(m.has)) }

// unnamed is the first key of a series without a name.
const unnamed = 100

func metricOf(p *Point) *Metric {
	switch {
	case p.Key >= unnamed:
		return nil
	case p.Kind == KindHash:
		return &Metric{Name: "h", Type: TypeHistogram}
	}
	return &Metric{Name: "m", Unit: "1"}
}

func TestObserveComparesBits(t *testing.T) {
	nan, otherNaN := math.Float64frombits(0x7ff8000000000001), math.Float64frombits(0x7ff8000000000002)
	for name, tt := range map[string]struct {
		first, again Point
		want         Verdict
	}{
		"same double":              {double(0.5), double(0.5), Drop},
		"other double":             {double(0.5), double(math.Nextafter(0.5, 1)), Pass},
		"same NaN":                 {double(nan), double(nan), Drop},
		"NaN with another payload": {double(nan), double(otherNaN), Pass},
		"minus zero":               {double(0), double(math.Copysign(0, -1)), Pass},
		"int with a double's bits": {double(1), Point{Key: 1, Value: math.Float64bits(1)}, Pass},
		"other start time":         {sum(1, 7, 1), sum(1, 7, 2), Pass},
		"other flags":              {integer(1, 7), Point{Key: 1, Value: 7, Flags: 2}, Pass},
		"no time":                  {integer(1, 1), Point{Key: 1, Value: 1, Time: timeless}, Drop},
	} {
		t.Run(name, func(t *testing.T) {
			a := push{Table: newTable()}
			b := push{Table: a.Table, node: "b"}
			require.Equal(t, []Verdict{Pass}, a.send(tt.first).verdicts)
			require.Equal(t, []Verdict{Drop}, a.send(tt.first).verdicts)
			assert.Equal(t, []Verdict{tt.want}, a.send(tt.again).verdicts)
			assert.Equal(t, []Verdict{Drop}, a.send(tt.again).verdicts)
			assert.Equal(t, []Verdict{Pass}, b.send(tt.again).verdicts, "nodes are apart")
		})
	}
}

// Two series whose keys collide look like one that comes twice.
func TestASeriesThatComesTwiceGoesOnAsItComes(t *testing.T) {
	for name, edit := range map[string]func(*Settings){"at once": func(*Settings) {}, "collected": collecting} {
		t.Run(name, func(t *testing.T) {
			p := push{Table: newTable(edit)}
			p.send(integer(1, 1), integer(1, 2))
			assert.EqualValues(t, 1, p.Stats().Series)
			assert.Equal(t, []Verdict{Pass, Pass}, p.send(integer(1, 1), integer(1, 2)).verdicts)
			assert.Equal(t, []Verdict{Pass, Pass}, p.send(integer(1, 2), integer(1, 2)).verdicts)
			assert.Empty(t, p.flush().has, "it is not known which of them the table has")
			assert.Equal(t, []Verdict{Pass}, p.send(integer(1, 2)).verdicts, "it may be the first of two")
			assert.Equal(t, []Verdict{Drop}, p.send(integer(1, 2)).verdicts)
			assert.Equal(t, []Verdict{Drop, Pass}, p.send(integer(1, 2), integer(1, 3)).verdicts)
			assert.Equal(t, []Verdict{Pass, Pass}, p.send(integer(1, 3), integer(1, 2)).verdicts)
		})
	}
}

func TestStale(t *testing.T) {
	p := push{Table: newTable()}
	at := func(v int64, d time.Duration) Point { return Point{Key: 1, Value: uint64(v), Time: unix(d)} }
	p.send(at(1, 0))
	p.send(at(1, 20*second))
	assert.Equal(t, []Verdict{Drop}, p.send(at(2, 10*second)).verdicts, "older than an unchanged one")
	assert.EqualValues(t, 1, p.Stats().Stale)
	assert.Equal(t, []Verdict{Pass}, p.send(at(2, 20*second)).verdicts, "not older")

	p.begin(at(3, 40*second)).Refused()
	m := p.send(at(2, 30*second))
	assert.Equal(t, []Verdict{Drop}, m.verdicts)
	assert.EqualValues(t, 3, m.has[1].Value, "the next hop still gets the newer one, which was refused")

	assert.Equal(t, []Verdict{Pass}, p.send(at(4, -time.Hour)).verdicts, "a clock that was set back")
	assert.Equal(t, []Verdict{Drop}, p.send(at(4, -time.Hour+second)).verdicts)
	assert.Equal(t, []Verdict{Drop}, p.send(at(5, -time.Hour)).verdicts)
	assert.EqualValues(t, 3, p.Stats().Stale)
	assert.Equal(t, []Verdict{Pass}, p.send(at(6, 0), integer(2, 1)).verdicts[:1])
	assert.Equal(t, []Verdict{Pass}, p.send(Point{Key: 1, Value: 7, Time: timeless}).verdicts)
}

func TestTimeWrapsAround(t *testing.T) {
	const wrap = uint64(1) << (32 + timeShift)
	p := push{Table: newTable()}
	old := Point{Key: 1, Time: 400*wrap - 1e9}
	p.send(old)
	assert.Equal(t, []Verdict{Pass}, p.send(Point{Key: 1, Value: 1, Time: 400*wrap + 1e9}).verdicts)
	p.send(old)
	assert.EqualValues(t, 1, p.Stats().Stale)
}

// A point of a clock that was set back gets the time of receipt, but for where
// the clock here was set back as well.
func TestStamp(t *testing.T) {
	for name, tt := range map[string]struct{ at, received, want uint64 }{
		"an hour back":                  {unix(-time.Hour), unix(second), unix(second)},
		"one that was overtaken":        {unix(-4 * time.Minute), unix(second), 0},
		"no time of receipt":            {unix(-time.Hour), 0, 0},
		"the clock here was set, too":   {unix(-time.Hour), unix(-time.Hour), 0},
		"one without a time":            {timeless, unix(second), 0},
		"the state is ahead of receipt": {unix(-time.Hour), unix(-30 * second), unix(0)},
	} {
		t.Run(name, func(t *testing.T) {
			p := push{Table: newTable()}
			p.send(integer(1, 1))
			m := p.begin(Point{Key: 1, Value: 2, Time: tt.at, Received: tt.received})
			m.Accepted()
			if tt.want != 0 {
				assert.InDelta(t, tt.want, m.has[1].Time, float64(5*time.Millisecond))
				assert.Greater(t, m.has[1].Time, unix(-1))
				assert.Equal(t, []Verdict{Pass}, m.verdicts)
				assert.Zero(t, p.Stats().Stale)
			} else if sent, ok := m.has[1]; ok {
				assert.Contains(t, []uint64{tt.at, timeless - tt.at}, sent.Time)
			}
		})
	}
}

func TestResyncKeepsItsPhase(t *testing.T) {
	tb := newTable(func(s *Settings) {
		s.ResyncInterval = 100
		s.Rand = func(n int64) int64 { require.EqualValues(t, 100, n); return 29 }
	})
	at := func(now time.Duration, points ...Point) []Verdict {
		return push{Table: tb, at: now}.send(points...).verdicts
	}
	one, two := integer(1, 1), integer(2, 2)
	at(0, one, two)
	assert.Equal(t, []Verdict{Drop, Drop}, at(29, one, two))
	m := push{Table: tb, at: 30}.send(one)
	assert.Equal(t, []uint64{1, 2}, m.keys(), "what the report does not have is made of the table")
	assert.EqualValues(t, 1, m.table.Stats().Repeated)
	assert.Equal(t, []Verdict{Drop}, at(31, two))
	assert.Equal(t, []Verdict{Drop, Drop}, at(129, one, two))

	push{Table: tb, at: 130}.begin(one, two).Refused()
	assert.Equal(t, []Verdict{Pass, Pass}, at(131, one, two), "not accepted, so again")
	assert.EqualValues(t, 2, tb.Stats().Resyncs)

	// After a pause, one resync and not one for each interval missed.
	assert.Equal(t, []Verdict{Pass}, at(765, one))
	assert.Equal(t, []Verdict{Drop}, at(829, one))
	assert.Equal(t, []Verdict{Pass}, at(830, one))
	assert.EqualValues(t, 4, tb.Stats().Resyncs)
}

func TestSweepForgetsNodes(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = 80 })
	a, b := push{Table: tb}, push{Table: tb, node: "b"}
	a.send(integer(1, 1), integer(2, 2))
	m := b.begin(integer(1, 5))
	tb.Sweep(1000)
	assert.EqualValues(t, 1, tb.Stats().Nodes, "a node with a message under way stays")
	m.Accepted()
	assert.Equal(t, []Verdict{Drop}, b.send(integer(1, 5)).verdicts)
	assert.Equal(t, Stats{Nodes: 1, Series: 1, EvictedNodes: 1}, tb.Stats())
	tb.Sweep(1000)
	assert.Equal(t, Stats{EvictedNodes: 2}, tb.Stats())
	requireCounted(t, tb)
}

func TestSweepForgetsSeriesOfALivingNode(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = 80 })
	push{Table: tb}.send(integer(1, 1), integer(2, 2), integer(3, 3), integer(4, 4))
	push{Table: tb, at: 80}.send(integer(3, 3))
	tb.Sweep(81)
	assert.EqualValues(t, 4, tb.Stats().Series, "a series has up to 65/64 of the TTL")
	tb.Sweep(90)
	assert.EqualValues(t, 1, tb.Stats().Series)
}

func BenchmarkReport(b *testing.B) {
	for name, every := range map[string]int{"unchanged": 0, "tenth_changed": 10, "all_changed": 1} {
		b.Run(name, func(b *testing.B) {
			p := push{Table: newTable(func(s *Settings) { s.MaxSeries = 1000 })}
			points := make([]Point, 320)
			for i := range points {
				points[i] = Point{Key: Mix(uint64(i), 1), Value: uint64(i), Kind: KindDouble, Time: unix(0)}
			}
			p.send(points...)
			b.ReportAllocs()
			for b.Loop() {
				r := p.Begin(0)
				r.Open(p.key(), nil)
				for i := range points {
					if every > 0 && i%every == 0 {
						points[i].Value++
					}
					r.Observe(&points[i])
				}
				r.Done()
				r.Accepted()
			}
		})
	}
}
