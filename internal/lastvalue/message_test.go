// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Messages of one node that overlap in any way: the next hop takes them in any order, and
// their answers arrive in any order, or never although it took them. It may lose its state.
// Whatever is clean while no message is under way is what the next hop has.
func TestWhatIsCleanIsWhatTheNextHopHas(t *testing.T) {
	keys := []uint64{0, 1, 2, unnamed}
	rapid.Check(t, func(t *rapid.T) {
		set := Settings{
			MaxNodes: 1, MaxSeries: rapid.IntRange(1, 5).Draw(t, "max_series"), Collect: rapid.Bool().Draw(t, "collect"),
			VanishedAfter: 20 * second, TTL: 640 * second, ResyncInterval: 200 * second, OpaqueInterval: 90 * second, Rand: func(n int64) int64 { return n / 2 },
		}
		tb := New(set)
		now, hop := second, map[uint64]Series{}
		var flights []*message
		drawn := func(t *rapid.T) (points []Point) {
			for _, key := range rapid.SliceOfN(rapid.SampledFrom(keys), 0, 5).Draw(t, "reported") {
				p := Point{Key: key, Value: rapid.Uint64Range(0, 2).Draw(t, "value"), Kind: KindInt, Start: rapid.Uint64Range(0, 1).Draw(t, "start")}
				if key == 2 {
					p.Kind = KindHash
				}
				p.End = key != unnamed && rapid.IntRange(0, 5).Draw(t, "ends") == 0
				// Reports may overtake each other before they get here.
				p.Time = unix(now) - rapid.Uint64Range(0, 5e9).Draw(t, "late")
				points = append(points, p)
			}
			return points
		}
		deliver := func(m *message) {
			for key, s := range m.has {
				if hop[key] = s; s.Gone {
					delete(hop, key)
				}
			}
			m.has = nil
		}
		settle := func(i int, end func(*Report)) {
			end(flights[i].Report)
			flights = slices.Delete(flights, i, i+1)
		}
		drawFlight := func(t *rapid.T) int {
			if len(flights) == 0 {
				t.Skip()
			}
			return rapid.IntRange(0, len(flights)-1).Draw(t, "flight")
		}
		t.Repeat(map[string]func(*rapid.T){
			"report":    func(t *rapid.T) { flights = append(flights, push{Table: tb, at: now}.begin(drawn(t)...)) },
			"of table":  func(*rapid.T) { flights = append(flights, push{Table: tb, at: now}.held()) },
			"delivered": func(t *rapid.T) { deliver(flights[drawFlight(t)]) },
			"accepted": func(t *rapid.T) {
				i := drawFlight(t)
				deliver(flights[i])
				settle(i, (*Report).Accepted)
			},
			"refused": func(t *rapid.T) { settle(drawFlight(t), (*Report).Refused) },
			"gave up": func(t *rapid.T) {
				if rapid.IntRange(0, 3).Draw(t, "seldom") > 0 {
					t.Skip()
				}
				settle(drawFlight(t), (*Report).GaveUp)
			},
			"restarted": func(*rapid.T) {
				clear(hop)
				tb.Resync()
			},
			"time": func(t *rapid.T) {
				now += time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * second
				tb.Sweep(now)
			},
			"": func(t *rapid.T) {
				requireCounted(t, tb)
				n := tb.lookup(push{}.key())
				if n == nil || len(flights) > 0 || n.retryAt != never || tb.resyncDue(n, now) {
					return
				}
				require.Zero(t, n.inFlight)
				for _, e := range n.entries {
					require.False(t, e.is(sending))
					s, has := hop[e.key]
					if e.is(dirty) || e.seen == unseen || e.metric == 0 && e.is(gone) {
						continue
					}
					require.Equal(t, !e.is(gone), has, "series %d", e.key)
					if has {
						require.Equal(t, [2]uint64{e.value, n.startOf(&e)}, [2]uint64{s.Value, s.Start}, "series %d", e.key)
					}
				}
				if set.Collect && !n.pending {
					for _, e := range n.entries {
						require.False(t, e.is(dirty) && !e.opaque() && !e.is(repeated) && e.seen != unseen, "series %d waits for nothing", e.key)
					}
				}
			},
		})
		for len(flights) > 0 {
			deliver(flights[0])
			settle(0, (*Report).Refused)
		}
		now += 2 * time.Minute // more than retryAfter
		for range 2 {
			now += second
			for _, m := range []*message{
				push{Table: tb, at: now}.begin(integer(0, 7), integer(1, 8), Point{Key: 2, Value: 9, Kind: KindHash}, integer(unnamed, 10)),
				push{Table: tb, at: now}.held(),
			} {
				deliver(m)
				m.Accepted()
			}
		}
		for i, key := range keys {
			require.EqualValues(t, 7+i, hop[key].Value)
		}
		tb.Sweep(now + 100*time.Hour)
		requireEmpty(t, tb)
	})
}

// A resource that cannot be made of the table goes on with its reports, also with Collect.
func TestANodeWithMoreThanTheTableKnowsGoesInline(t *testing.T) {
	p := push{Table: newTable(collecting), part: true}
	m := p.begin(integer(1, 1))
	assert.Equal(t, []Verdict{Pass}, m.verdicts)
	assert.NotZero(t, m.heartbeat)
	m.Refused()
	assert.Empty(t, p.Pending())
	assert.Equal(t, []uint64{1}, p.send().keys())
	assert.Empty(t, p.send().has)
}

// A node goes in pieces, of which each goes on where the last one ended. What changes behind
// that waits.
func TestANodeInPieces(t *testing.T) {
	p := push{Table: newTable(collecting)}
	p.send(integer(1, 1), integer(2, 1), integer(3, 1))
	var got []uint64
	piece := func(from int) (next int, beat uint64) {
		r := p.Begin(0)
		_, ok := r.OpenPending(p.key())
		require.True(t, ok)
		count := 0
		next = r.Emit(from, func(s *Series) bool {
			got = append(got, s.Attrs[0].Num)
			count++
			return count < 2
		})
		beat, _ = r.Heartbeat(from)
		r.Done()
		r.Accepted()
		return next, beat
	}
	next, beat := piece(0)
	assert.Equal(t, 2, next)
	assert.Equal(t, unix(0), beat)
	p.at += second
	p.send(integer(1, 5))
	next, beat = piece(next)
	assert.Zero(t, next)
	assert.Zero(t, beat)
	assert.Equal(t, []uint64{1, 2, 3}, got)
	assert.Len(t, p.Pending(), 1)
	next, beat = piece(0)
	assert.Zero(t, next, "nothing is left")
	assert.Equal(t, unix(second), beat)
	assert.Equal(t, []uint64{1, 2, 3, 1}, got)
	assert.Empty(t, p.Pending())

	p.send(integer(1, 6), integer(2, 6), integer(3, 6))
	next, _ = piece(0)
	p.at += second
	p.send()
	piece(next)
	assert.Len(t, p.Pending(), 1, "the heartbeat alone")
}

// What was given up does not go on and on, and all of the node goes once more after a minute,
// ends as well.
func TestWhatWasGivenUpGoesAgainLater(t *testing.T) {
	p := push{Table: newTable()}
	p.send(integer(1, 1), integer(2, 1), integer(3, 1))
	p.begin(integer(1, 2), end(2)).GaveUp()
	p.at = retryAfter - 1
	assert.Empty(t, p.send(integer(1, 2)).has)
	p.at = retryAfter
	m := p.begin(integer(1, 2))
	assert.Equal(t, []uint64{1, 2, 3}, m.keys())
	assert.True(t, m.has[2].Gone)
	m.Refused()
	assert.Equal(t, []uint64{1, 2, 3}, p.send(integer(1, 2)).keys())
	p.at = 2 * retryAfter
	assert.Empty(t, p.send(integer(1, 2)).has)
}

func TestHeartbeats(t *testing.T) {
	tb := newTable(func(s *Settings) { s.HeartbeatInterval = 10 })
	beats := func(at time.Duration, end func(*Report)) bool {
		m := push{Table: tb, at: at}.begin()
		defer end(m.Report)
		assert.Equal(t, m.heartbeat, uint64(m.Heartbeats)*unix(at))
		return m.heartbeat != 0
	}
	assert.True(t, beats(0, (*Report).Refused))
	assert.True(t, beats(1, (*Report).Accepted), "the first one was refused")
	assert.False(t, beats(10, (*Report).Accepted))
	assert.True(t, beats(11, (*Report).Accepted))

	m := push{Table: tb, at: 100}.begin()
	m.take(push{Table: tb, at: 100})
	assert.EqualValues(t, 1, m.Heartbeats, "one per message")
	m.Accepted()
	assert.Zero(t, push{Table: tb, at: 200, dead: true}.begin().heartbeat, "a gateway's point is no sign of life")
	assert.Zero(t, push{Table: tb, at: 300, relayed: true}.begin().heartbeat, "the tier before has its own")
	r := tb.Begin(400)
	r.Open(NodeKey{9, 9}, func() ([]Attr, bool) { return []Attr{{Key: "service.name", Text: "x"}}, true })
	r.Close(Facts{Heartbeat: unix(400), Alive: true})
	_, dirty := r.Heartbeat(0)
	assert.False(t, dirty, "it is no node")
	r.Done()
	r.Accepted()
}

// What changes while a message has it goes with another, and so does the heartbeat.
func TestWhatChangedMeanwhileGoesAgain(t *testing.T) {
	p := push{Table: newTable(collecting)}
	p.send(integer(1, 1))
	m := p.held()
	p.at = second
	p.send(integer(1, 5))
	m.Accepted()
	m = p.flush()
	assert.EqualValues(t, 5, m.has[1].Value)
	assert.Equal(t, unix(second), m.heartbeat)

	p.send(integer(1, 6))
	m = p.held()
	p.Resync()
	p.relayed = true // without a heartbeat to wait for a message
	p.send()
	m.Accepted()
	require.Len(t, p.Pending(), 1)
	assert.Equal(t, []uint64{1}, p.flush().keys(), "the next hop may have lost what the message had")
}

// Clusters take turns, and in a cluster the node is first that waits longest. What the next
// hop has nothing of counts as one cluster.
func TestPendingTakesTurns(t *testing.T) {
	tb := newTable(collecting, func(s *Settings) { s.MaxNodes, s.MaxSeries = 100, 1000 })
	names := map[NodeKey]string{}
	at := second
	report := func(cluster string, node int, value int64) push {
		p := push{Table: tb, at: at, cluster: cluster, node: cluster + strconv.Itoa(node)}
		names[p.key()] = p.node
		p.send(integer(1, value))
		at++
		return p
	}
	for i := range 3 {
		report("east", i, 1).flush()
		report("west", i, 1).flush()
	}
	require.Empty(t, tb.Pending())
	for i := range 3 {
		report("made up "+strconv.Itoa(i), 0, 1)
	}
	for i := range 3 {
		report("east", i, 2)
	}
	report("west", 0, 2)
	var order []string
	for _, key := range tb.Pending() {
		order = append(order, names[key])
	}
	assert.Equal(t, []string{"made up 00", "east0", "west0", "made up 10", "east1", "made up 20", "east2"}, order)
	_, pending := tb.Counts(at)
	assert.EqualValues(t, len(order), pending)
}
