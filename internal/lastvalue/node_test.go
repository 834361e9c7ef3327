// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOnlyAPauseIsAPause(t *testing.T) {
	for name, tt := range map[string]struct {
		between []float64
		resyncs int64
	}{
		"late, and then in time":          {[]float64{10, 10, 17, 3, 10}, 0},
		"one is missing":                  {[]float64{10, 10, 20, 10}, 1},
		"the first of all is late":        {[]float64{3, 10, 10}, 0}, // the pace is not known
		"the second at whatever distance": {[]float64{100, 10, 10}, 0},
		"two pushes a round":              {[]float64{0.01, 9.99, 0.01, 9.99, 0.01, 9.99, 0.01, 9.99}, 0},
		"a hundred a second, some late":   {[]float64{0.01, 0.01, 0.4, 0.01, 0.4}, 0},
		"a slower pace is learned":        {[]float64{10, 10, 60, 60, 60, 60, 60, 60}, 2},
		"one gap is no pace":              {[]float64{10, 10, 3600, 10, 30}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			p := push{Table: newTable()}
			p.send(integer(1, 1))
			for _, d := range tt.between {
				p.at += time.Duration(d * float64(second))
				p.send(integer(1, 1))
			}
			assert.Equal(t, tt.resyncs, p.Stats().Resyncs)
		})
	}
}

// paused is a node of three series that made a pause.
func paused(edit ...func(*Settings)) push {
	p := push{Table: newTable(edit...)}
	for range 3 {
		p.at += 10 * second
		p.send(integer(1, 1), integer(2, 1), integer(3, 1))
	}
	p.at += 30 * second
	return p
}

// A node that paused may have reported elsewhere: the next hop may have something newer than what is
// known here, until the series is reported again.
func TestAfterAPauseAllIsInDoubt(t *testing.T) {
	p := paused(func(s *Settings) { s.HeartbeatInterval = time.Hour })
	m := p.send(integer(1, 1))
	assert.Equal(t, []uint64{1}, m.keys())
	assert.NotZero(t, m.heartbeat, "a reader with the value of elsewhere may take the node for missing")
	p.at += 10 * second
	assert.Equal(t, []Verdict{Drop, Pass}, p.send(integer(1, 1), integer(2, 1)).verdicts)
	p.Resync()
	p.at += 10 * second
	assert.Equal(t, []uint64{1, 2, 3}, p.send(integer(1, 1)).keys(), "all of the node is requested")
	p.at += 10 * second
	assert.Empty(t, p.send(integer(3, 1)).has)
}

// A visit's number comes back after 32,768 pushes of either kind. Nothing known is sent for it.
func TestVisitsWrapAround(t *testing.T) {
	p := push{Table: newTable()}
	point := integer(1, 1)
	point.Time = unix(0)
	p.send(point)
	for range 1<<15 + 10 {
		s := p.Skim(p.at)
		require.True(t, s.Open(p.key()))
		require.True(t, s.Known(&point, true))
		s.Close()
		require.Empty(t, p.send().has)
		require.EqualValues(t, 1, p.lookup(p.key()).visit%2, "a report's mark is 2n+1")
	}
}

func TestReportingIsWithinAFewIntervals(t *testing.T) {
	for name, tt := range map[string]struct {
		reports    int
		every, gap time.Duration
		want       int64
	}{
		"a little late":    {3, 10 * second, 30*second + pauseSlack, 1},
		"longer ago":       {3, 10 * second, 31 * second, 0},
		"once":             {1, 0, time.Minute, 1},
		"once, longer ago": {1, 0, 61 * second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := push{Table: newTable(), at: time.Hour}
			push{Table: p.Table, node: "b"}.send(integer(1, 1))
			for range tt.reports {
				p.at += tt.every
				p.send(integer(1, 1))
			}
			reporting, _ := p.Counts(p.at + tt.gap)
			assert.Equal(t, tt.want, reporting)
		})
	}
}

// The starts that are remembered are no more than about the series, however often a sum
// begins anew, and each sum keeps its own.
func TestStartsAreBounded(t *testing.T) {
	for _, series := range []uint64{1, 3, 40} {
		t.Run(strconv.FormatUint(series, 10), func(t *testing.T) {
			p := push{Table: newTable(func(s *Settings) { s.TTL = time.Hour })}
			points := make([]Point, series)
			for round := range uint64(200) {
				for i := range points {
					points[i] = sum(uint64(i), 1, 1+uint64(i)+1000*round*uint64(i%2))
					points[i].Flags = 2
				}
				p.at += second
				p.send(points...)
				require.LessOrEqual(t, len(p.lookup(p.key()).starts), int(2*series)+lookBack)
			}
			assert.Empty(t, p.send(points...).has)
			p.Resync()
			m := p.send()
			for i := range points {
				assert.Equal(t, points[i].Start, m.has[uint64(i)].Start)
				assert.EqualValues(t, 2, m.has[uint64(i)].Flags)
			}
			p.at += 2 * time.Hour
			p.send(points[0])
			p.Sweep(p.at)
			assert.Len(t, p.lookup(p.key()).starts, 1, "those that no series has are gone with the others")
			assert.Empty(t, p.send(points[0]).has)
		})
	}
}

// relaying is a table behind another tier.
func relaying(edit ...func(*Settings)) push {
	set := func(s *Settings) { s.TTL = 640 * second }
	return push{Table: newTable(append([]func(*Settings){set}, edit...)...), relayed: true}
}

// until goes on with reports each 10 s.
func (p *push) until(at time.Duration, points ...Point) {
	for p.at += 10 * second; p.at < at; p.at += 10 * second {
		p.send(points...)
		p.Sweep(p.at)
	}
}

// The table forgets a series that the other tier does not report. It keeps a series that the
// other tier reports now and then.
func TestAnUnreportedSeriesBehindAnotherTierExpires(t *testing.T) {
	p := relaying()
	p.send(integer(1, 1), integer(2, 2))
	for at := time.Hour; at < 8*640*second; at += time.Hour {
		p.until(at)
		p.send(integer(2, 2))
		require.EqualValues(t, 2, p.Stats().Series)
	}
	p.until(2 * time.Hour)
	assert.EqualValues(t, 1, p.Stats().Series)
	p.send(end(2))
	p.until(p.at + 600*second)
	assert.EqualValues(t, 1, p.Stats().Series, "its end may have to be sent again")
	p.until(p.at + 100*second)
	assert.Zero(t, p.Stats().Series)
}

// A tier that was missing for long sends everything when it is back; what it does
// not send then is not there any more.
func TestWhatWasBeforeALongGapIsNotRepeated(t *testing.T) {
	for gap, want := range map[time.Duration][]uint64{310 * second: {1, 2}, 320 * second: {2}} {
		p := relaying()
		p.send(integer(1, 1), integer(2, 2))
		p.until(310 * second)
		// The gateway itself goes on with points about the node.
		p.relayed = false
		p.at -= 10 * second
		p.until(300*second+gap, integer(3, 1))
		p.relayed = true
		p.send(integer(2, 3))
		p.Resync()
		p.at += second
		m := p.send(integer(3, 1))
		delete(m.has, 3)
		assert.Equal(t, want, m.keys(), "after %s", gap)
	}
}

func TestOpaqueSeriesAreDueMoreOften(t *testing.T) {
	for resync, want := range map[time.Duration][3]int{time.Hour: {10, 1, 10}, 0: {1, 1, 1}} {
		p := push{Table: newTable(func(s *Settings) {
			s.ResyncInterval, s.OpaqueInterval = resync, time.Minute
			s.Rand = func(n int64) int64 { return n - 1 }
		})}
		got := [3]int{}
		for ; p.at < 10*time.Minute; p.at += 10 * second {
			for i, v := range p.send(Point{Key: 1, Value: 7, Kind: KindHash}, integer(2, 1), integer(unnamed, 1)).verdicts {
				if v == Pass {
					got[i]++
				}
			}
		}
		assert.Equal(t, want, got, "a hash, a named number, one without a name")
		assert.Zero(t, p.Stats().Resyncs)
		p.send(Point{Key: 1, End: true})
		p.at += time.Hour / 2
		assert.Empty(t, p.send().has, "an end is sent once")
	}
}
