// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// vanishing is a table whose tick is 10 s.
func vanishing(edit ...func(*Settings)) push {
	set := func(s *Settings) { s.TTL, s.VanishedAfter = 640*second, 100*second }
	return push{Table: newTable(append([]func(*Settings){set}, edit...)...)}
}

func TestAPauseOfTheNodeEndsNoSeries(t *testing.T) {
	p := vanishing()
	p.send(integer(1, 1), integer(2, 1))
	p.at = 300 * second // the node comes back in two parts
	p.send(integer(1, 1))
	for range 9 {
		p.at += 10 * second
		require.Empty(t, p.send(integer(1, 1)).has)
	}
	require.False(t, p.send(integer(2, 1)).has[2].Gone)
	// A source that is slower than the limit never declares anything gone.
	p = vanishing()
	p.send(integer(1, 1), integer(2, 1))
	for p.at < 600*second {
		p.at += 101 * second
		require.Empty(t, p.send(integer(1, 1)).has)
	}
}

// A series that its node goes on without is declared gone, in a message of its own.
func TestASeriesThatVanishes(t *testing.T) {
	p := vanishing(collecting, func(s *Settings) { s.HeartbeatInterval = time.Hour })
	p.send(integer(1, 1), integer(2, 1))
	p.flush()
	for p.at = 10 * second; p.at <= 100*second; p.at += 10 * second {
		p.send(integer(1, 1))
		require.Empty(t, p.Pending())
	}
	p.send(integer(1, 1))
	require.Len(t, p.Pending(), 1)
	assert.True(t, p.flush().has[2].Gone)
}

// What a node did not report for a TTL is forgotten, and its end is sent.
func TestASeriesThatExpiresIsDeclaredGone(t *testing.T) {
	for vanished, want := range map[time.Duration]int{100 * second: 1, 0: 0} {
		p := vanishing(func(s *Settings) { s.VanishedAfter = vanished })
		p.send(integer(1, 1), integer(2, 1), integer(unnamed, 1))
		var ends int
		for p.at < 3000*second {
			p.at += 101 * second
			if p.send(integer(1, 1)).has[2].Gone {
				ends++
			}
			p.Sweep(p.at)
		}
		assert.Equal(t, want, ends)
		assert.EqualValues(t, 1, p.Stats().Series)
	}
}

func TestTheEndOfASeries(t *testing.T) {
	p := push{Table: newTable()}
	p.send(integer(1, 1), integer(unnamed, 1))
	m := p.begin(end(1), end(unnamed))
	assert.Equal(t, []Verdict{Drop, Pass}, m.verdicts, "what has a name is made of the table")
	assert.Equal(t, []uint64{1, unnamed}, m.keys())
	m.Refused()
	m = p.send(end(1), end(unnamed))
	assert.Equal(t, []uint64{1, unnamed}, m.keys(), "not accepted, so again")
	assert.Equal(t, []uint64{2}, p.send(end(1), end(2)).keys(), "the first one is known, and the other was not")
	assert.Equal(t, []Verdict{Pass, Pass}, p.send(integer(1, 1), integer(2, 1)).verdicts, "they are back, and one as it was")
	assert.Equal(t, []Verdict{Drop}, p.send(integer(2, 1)).verdicts)

	// A value and an end on their way at once.
	value, ended := p.begin(integer(2, 5)), p.begin(end(2))
	ended.Accepted()
	value.Accepted()
	assert.True(t, p.send().has[2].Gone, "it is not known which came last")

	// A value that is back before its end was sent.
	p.begin(end(2)).Refused()
	m = p.send(integer(2, 5))
	assert.False(t, m.has[2].Gone)
	assert.Empty(t, p.send(integer(2, 5)).has)

	// An end while a message has the value, and none has a heartbeat.
	p = push{Table: newTable(collecting), relayed: true}
	p.send(integer(1, 1))
	m = p.held()
	p.send(end(1))
	m.Accepted()
	assert.True(t, p.flush().has[1].Gone)
}
