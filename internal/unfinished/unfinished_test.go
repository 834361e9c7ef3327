// SPDX-License-Identifier: Apache-2.0

package unfinished

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// purse is a budget of so many bytes.
type purse struct {
	all, left, more int64 // more for messages that are there
	refused         int
}

func newPurse(all int64) *purse { return &purse{all: all, left: all} }

func (p *purse) Take(n int64) bool {
	if p.left < n {
		return false
	}
	p.left -= n
	return true
}
func (p *purse) Most() int64 { return p.all }
func (p *purse) Rest(n int64) int64 {
	n = min(n, max(p.left+p.more, 0))
	p.left -= n
	return n
}
func (p *purse) Give(n int64) { p.left += n }
func (p *purse) Refused()     { p.refused++ }

// peer writes the frames of one side of a connection.
type peer struct {
	bytes.Buffer
	*http2.Framer
}

func newPeer(preface string) *peer {
	p := &peer{}
	p.WriteString(preface)
	p.Framer = http2.NewFramer(&p.Buffer, nil)
	p.AllowIllegalWrites = true
	return p
}

func (p *peer) take() []byte {
	defer p.Reset()
	return bytes.Clone(p.Bytes())
}

// begin opens a stream with so many bytes of its message.
func (p *peer) begin(t *testing.T, id uint32, size int, end bool) {
	t.Helper()
	require.NoError(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("head"), EndHeaders: true}))
	require.NoError(t, p.WriteData(id, end, make([]byte, size)))
}

func (p *peer) answer(t *testing.T, id uint32) {
	t.Helper()
	require.NoError(t, p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("tail"), EndHeaders: true, EndStream: true}))
}

// TestAMessageHoldsWhatHasCome, until the server has answered, however the bytes are cut.
func TestAMessageHoldsWhatHasCome(t *testing.T) {
	client, server := newPeer(http2.ClientPreface), newPeer("")
	require.NoError(t, client.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 14}))
	client.begin(t, 1, 1000, false)
	require.NoError(t, client.WriteDataPadded(1, true, make([]byte, 100), make([]byte, 50)))
	require.NoError(t, client.WritePing(false, [8]byte{}))
	client.begin(t, 3, 10, true)
	client.begin(t, 5, 10, false)
	client.begin(t, 7, 10, false)
	require.NoError(t, client.WriteRSTStream(7, http2.ErrCodeCancel))
	require.NoError(t, server.WriteSettings())
	require.NoError(t, server.WriteWindowUpdate(0, 100))
	server.answer(t, 1)
	require.NoError(t, server.WriteRSTStream(5, http2.ErrCodeCancel))
	in, out := client.take(), server.take()
	for _, cut := range []int{1, 2, 7, 9, 10, 1000, 1 << 20} {
		budget := newPurse(1 << 20)
		c := New(budget).Open(func() { t.Error("ended") })
		feed := func(p []byte, to func([]byte)) {
			for len(p) > 0 {
				n := min(cut, len(p))
				to(p[:n])
				p = p[n:]
			}
		}
		feed(in, func(p []byte) { require.True(t, c.Received(p)) })
		held := int64(1000+151+10+10) + 4*perFrame
		assert.Equal(t, int64(1<<20)-held, budget.left, "cut to %d", cut)
		assert.Equal(t, 1, c.awaited, "stream 5 alone")
		assert.Equal(t, int64(10+perFrame), c.coming.bytes)
		assert.Equal(t, 1, c.ledger.coming.Len())
		feed(out, c.Sent)
		assert.Equal(t, int64(1<<20-10-perFrame), budget.left, "stream 3 has no answer yet")
		// What comes after the answer is dropped by the server, and free.
		require.NoError(t, client.WriteData(5, false, make([]byte, 500)))
		require.NoError(t, client.WriteData(99, false, make([]byte, 500)))
		require.True(t, c.Received(client.take()))
		assert.Equal(t, int64(1<<20-10-perFrame), budget.left)
		c.Close()
		assert.Equal(t, int64(1<<20), budget.left)
		assert.Zero(t, c.ledger.coming.Len())
	}
}

// TestTheOldestOfEqualsMakesRoom, and not who comes last.
func TestTheOldestOfEqualsMakesRoom(t *testing.T) {
	const each = 1000 + perFrame
	budget := newPurse(4 * each)
	l := New(budget)
	l.now = func() int64 { return 0 }
	var ended []int
	open := func(i int) (*Conn, *peer) {
		return l.Open(func() { ended = append(ended, i) }), newPeer(http2.ClientPreface)
	}
	for i := range 6 {
		c, p := open(i)
		p.begin(t, 1, 1000, false)
		require.True(t, c.Received(p.take()))
	}
	assert.Equal(t, []int{0, 1}, ended)
	assert.Equal(t, 2, budget.refused)
	c, p := open(6)
	p.begin(t, 1, 1000, true)
	require.True(t, c.Received(p.take()), "it is whole at once")
	assert.Equal(t, []int{0, 1, 2}, ended)
	assert.GreaterOrEqual(t, budget.left, int64(0))
	// Larger than all that there is: it becomes the largest, and the rest is left alone.
	c, p = open(7)
	p.begin(t, 1, 1000, false)
	for range 10 {
		require.NoError(t, p.WriteData(1, false, make([]byte, 1000)))
	}
	require.False(t, c.Received(p.take()))
	assert.Equal(t, []int{0, 1, 2, 3, 4, 7}, ended)
	p.begin(t, 3, 1, true)
	assert.False(t, c.Received(p.take()), "it stays ended")
	assert.Equal(t, int64(2*each), budget.left, "the whole one and 5 hold theirs")
	// In one frame it ends nobody else.
	c, p = open(8)
	p.begin(t, 1, 4*each, false)
	require.False(t, c.Received(p.take()))
	assert.Equal(t, []int{0, 1, 2, 3, 4, 7, 8}, ended)
	// A message that is there at once is let in where all others are there as well.
	budget.more = each + 1
	for i := 9; i < 14; i++ {
		c, p = open(i)
		p.begin(t, 1, 1000, true)
		require.True(t, c.Received(p.take()))
	}
	assert.Equal(t, []int{0, 1, 2, 3, 4, 7, 8, 5}, ended, "the last that was not there")
	assert.Equal(t, -budget.more, budget.left, "no more than there is")
	c.Close()
	assert.Equal(t, -budget.more+1, budget.left, "the last one gives back what it got")
}

// TestHonestBesideGreedy: a message of many frames comes through beside those that hold
// more, hold it for longer, or come anew again and again.
func TestHonestBesideGreedy(t *testing.T) {
	const frame = 1000
	const each = frame + perFrame
	for name, tt := range map[string]struct {
		streams, frames int   // of each greedy connection
		stay            int64 // milliseconds
		every           int   // so many honest frames there is another one
	}{
		"large":      {1, 40, 0, 4},
		"slow":       {1, 1, 1000, 1},
		"streams":    {40, 1, 0, 4},
		"fast again": {1, 25, 0, 3}, // four of them, and the honest one is not halfway
	} {
		now := int64(0)
		budget := newPurse(100 * each)
		l := New(budget)
		l.now = func() int64 { return now }
		ended := 0
		greedy := func() {
			c, p := l.Open(func() { ended++ }), newPeer(http2.ClientPreface)
			for i := range tt.streams {
				p.begin(t, uint32(2*i+1), frame, false)
			}
			for range tt.frames - 1 {
				require.NoError(t, p.WriteData(1, false, make([]byte, frame)))
			}
			c.Received(p.take())
		}
		for range 100 {
			greedy()
		}
		now += tt.stay
		c, p := l.Open(func() { t.Errorf("%s: the honest one is ended", name) }), newPeer(http2.ClientPreface)
		p.begin(t, 1, frame, false)
		for i := range 20 {
			require.True(t, c.Received(p.take()), name)
			if i%tt.every == 0 {
				greedy()
			}
			now++
			require.NoError(t, p.WriteData(1, i == 19, make([]byte, frame)))
		}
		require.True(t, c.Received(p.take()), name)
		assert.Positive(t, ended, name)
		assert.GreaterOrEqual(t, budget.left, int64(0), name)
	}
}

// TestALongFrameEndsItsOwn: nine bytes say that 16 MB will come, which gRPC does not let in.
func TestALongFrameEndsItsOwn(t *testing.T) {
	budget := newPurse(1 << 20)
	l := New(budget)
	honest := l.Open(func() { t.Error("ended") })
	p := newPeer(http2.ClientPreface)
	p.begin(t, 1, 1<<14, false)
	require.True(t, honest.Received(p.take()))
	left := budget.left
	for _, kind := range []byte{typeData, typeHeaders, typeReset, 9, 100} {
		ended := 0
		c := l.Open(func() { ended++ })
		p = newPeer(http2.ClientPreface)
		p.begin(t, 1, 1000, false)
		p.Write([]byte{0xff, 0xff, 0xff, kind, 0, 0, 0, 0, 1})
		assert.False(t, c.Received(p.take()))
		assert.Equal(t, 1, ended)
		assert.Equal(t, left, budget.left)
	}
	assert.Zero(t, budget.refused, "nothing was lacking")
}

// TestAnAnswerThatNobodyTakes: a client may leave no room for an answer, and keep its message
// for as long as it likes. It makes room like one whose message does not end.
func TestAnAnswerThatNobodyTakes(t *testing.T) {
	const each = 1000 + perFrame
	budget := newPurse(4 * each)
	l := New(budget)
	ended := 0
	taken, held := l.Open(func() { t.Error("ended") }), l.Open(func() { ended++ })
	for _, c := range []*Conn{taken, held} {
		client, server := newPeer(http2.ClientPreface), newPeer("")
		client.begin(t, 1, 1000, true)
		client.begin(t, 3, 1000, true)
		require.True(t, c.Received(client.take()))
		// The headers go out whatever the client's window is.
		for _, id := range []uint32{1, 3} {
			require.NoError(t, server.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("head"), EndHeaders: true}))
			if c == taken && id == 1 {
				require.NoError(t, server.WriteData(id, false, make([]byte, 5)))
				server.answer(t, id)
			}
		}
		c.Sent(server.take())
	}
	assert.Equal(t, int64(each), budget.left)
	assert.Equal(t, int64(each), taken.coming.bytes)
	assert.Equal(t, int64(2*each), held.coming.bytes)
	c, p := l.Open(func() { t.Error("ended") }), newPeer(http2.ClientPreface)
	p.begin(t, 1, 1000, false)
	require.NoError(t, p.WriteData(1, true, make([]byte, 1000)))
	require.True(t, c.Received(p.take()))
	assert.Equal(t, 1, ended)
	assert.GreaterOrEqual(t, budget.left, int64(0))
}

// TestNothingFollowsTheEnd of a message.
func TestNothingFollowsTheEnd(t *testing.T) {
	budget := newPurse(1 << 20)
	ended := 0
	c, p := New(budget).Open(func() { ended++ }), newPeer(http2.ClientPreface)
	p.begin(t, 1, 1000, true)
	require.NoError(t, p.WriteData(1, false, make([]byte, 1000)))
	require.False(t, c.Received(p.take()))
	assert.Equal(t, 1, ended)
	assert.Equal(t, int64(1<<20), budget.left)
}

// TestTinyFramesPayForThemselves: each byte in a frame of its own takes a hundred.
func TestTinyFramesPayForThemselves(t *testing.T) {
	budget := newPurse(1 << 20)
	c := New(budget).Open(func() {})
	p := newPeer(http2.ClientPreface)
	p.begin(t, 1, 1, false)
	for range 999 {
		require.NoError(t, p.WriteData(1, false, []byte{0}))
	}
	require.True(t, c.Received(p.take()))
	assert.Equal(t, int64(1<<20-1000*(1+perFrame)), budget.left)
	for range 1000 {
		require.NoError(t, p.WriteData(1, false, nil))
	}
	require.True(t, c.Received(p.take()))
	assert.Equal(t, int64(1<<20-1000*(1+perFrame)), budget.left, "gRPC keeps nothing of an empty frame")
	require.NoError(t, p.WriteDataPadded(1, false, nil, make([]byte, 10)))
	require.True(t, c.Received(p.take()))
	assert.Equal(t, int64(1<<20-1001*(1+perFrame)-10), budget.left)
}

// TestNothingIsLost plays connections at random: the bytes come back in the end, and never
// more is held than there is.
func TestNothingIsLost(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const all = 100_000
	budget := newPurse(all)
	budget.more = 1000
	l := New(budget)
	type side struct {
		c              *Conn
		client, server *peer
		next           uint32
		ended          bool
	}
	conns := map[*side]bool{}
	for range 20_000 {
		if len(conns) < 20 {
			s := &side{client: newPeer(http2.ClientPreface), server: newPeer(""), next: 1}
			s.c = l.Open(func() { s.ended = true })
			conns[s] = true
		}
		for s := range conns {
			id := uint32(2*rnd.IntN(int(s.next)) + 1)
			switch rnd.IntN(6) {
			case 0, 1:
				s.client.begin(t, 2*s.next+1, rnd.IntN(3000), rnd.IntN(3) == 0)
				s.next++
			case 2:
				require.NoError(t, s.client.WriteData(id, rnd.IntN(2) == 0, make([]byte, rnd.IntN(5000))))
			case 3:
				require.NoError(t, s.client.WriteRSTStream(id, http2.ErrCodeCancel))
			case 4:
				require.NoError(t, s.server.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("head"), EndHeaders: true, EndStream: rnd.IntN(2) == 0}))
				s.c.Sent(s.server.take())
			case 5:
				if rnd.IntN(50) == 0 {
					s.ended = true
				}
			}
			if !s.ended {
				alive := s.c.Received(s.client.take())
				require.Equal(t, !s.ended, alive)
			}
			if s.ended {
				s.c.Close()
				delete(conns, s)
			}
			break
		}
		require.LessOrEqual(t, budget.left, int64(all))
		require.GreaterOrEqual(t, budget.left, int64(-1000))
	}
	require.Positive(t, budget.refused)
	for s := range conns {
		s.c.Close()
	}
	assert.Equal(t, int64(all), budget.left)
	assert.Zero(t, l.coming.Len())
}

func BenchmarkReceived(b *testing.B) {
	p := newPeer(http2.ClientPreface)
	_ = p.WriteSettings()
	c := New(newPurse(1 << 40)).Open(func() {})
	c.Received(p.take())
	for i := range b.N {
		id := uint32(2*i + 1)
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("head"), EndHeaders: true})
		_ = p.WriteData(id, true, make([]byte, 10_000))
		c.Received(p.Bytes())
		p.Reset()
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte("tail"), EndHeaders: true, EndStream: true})
		c.Sent(p.Bytes())
		p.Reset()
	}
}
