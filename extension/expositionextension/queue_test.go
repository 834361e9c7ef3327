// SPDX-License-Identifier: Apache-2.0

package expositionextension

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pipe is a connection whose reader takes so many bytes a second, none when 0.
type pipe struct {
	*httptest.ResponseRecorder
	rate int
	ends chan struct{}
	end  func()
}

func newPipe(rate int) *pipe {
	p := &pipe{ResponseRecorder: httptest.NewRecorder(), rate: rate, ends: make(chan struct{})}
	p.end = sync.OnceFunc(func() { close(p.ends) })
	return p
}

// SetWriteDeadline is for http.ResponseController: the deadline is now.
func (p *pipe) SetWriteDeadline(time.Time) error {
	p.end()
	return nil
}

func (p *pipe) Write(b []byte) (int, error) {
	var taken <-chan time.Time
	if p.rate > 0 {
		taken = time.After(time.Duration(len(b)) * time.Second / time.Duration(p.rate))
	}
	select {
	case <-p.ends:
		return 0, http.ErrHandlerTimeout
	case <-taken:
		return len(b), nil
	}
}

const megabytes = 10

// text is of some megabytes, and aborts as a scrape does that is not read.
var text = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	piece := make([]byte, 1<<15)
	for range megabytes << 5 {
		if _, err := w.Write(piece); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
})

// ask has a reader of an address scrape, and returns the status; 0 when it was cut off.
func ask(ctx context.Context, h http.Handler, address string, rate int) (code int) {
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody).WithContext(ctx)
	r.RemoteAddr = address + ":1"
	p := newPipe(rate)
	defer func() {
		if recover() != nil {
			code = 0
		}
	}()
	h.ServeHTTP(p, r)
	return p.Code
}

func turns(places int) (*queue, http.Handler) {
	q := newQueue(places)
	return q, q.inTurn(text, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
}

// 80 readers of 20 addresses read nothing and come back as soon as they are cut off.
// A reader nobody knows gets its text before Prometheus gives up, and the next time at
// once.
func TestIdleReadersOfManyAddresses(t *testing.T) {
	for _, rate := range []int{0, 1 << 19} {
		t.Run(strconv.Itoa(rate), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q, h := turns(3)
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				var cut atomic.Int64
				for i := range 80 {
					all.Go(func() {
						for ctx.Err() == nil {
							if ask(ctx, h, fmt.Sprint("192.0.2.", i%20), rate) == 0 {
								cut.Add(1)
							} else {
								<-time.After(time.Second)
							}
						}
					})
				}
				<-time.After(time.Second / 2)
				for range 3 {
					began := time.Now()
					require.Equal(t, http.StatusOK, ask(ctx, h, "198.51.100.7", 1<<30))
					assert.Less(t, time.Since(began), 10*time.Second)
					<-time.After(16 * time.Second)
				}
				assert.Positive(t, cut.Load())
				q.mu.Lock()
				assert.LessOrEqual(t, len(q.waiting), maxWaiting)
				assert.LessOrEqual(t, len(q.holding), 3)
				assert.LessOrEqual(t, len(q.known), 21)
				q.mu.Unlock()
				cancel()
				for cut.Load() >= 0 { // ends what is under way
					q.mu.Lock()
					for _, p := range q.holding {
						p.cut()
					}
					left := len(q.holding) + len(q.waiting)
					q.mu.Unlock()
					if left == 0 {
						break
					}
					<-time.After(time.Second)
				}
				all.Wait()
			})
		})
	}
}

// A reader over a slow line is let read while nobody waits.
func TestSlowLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, h := turns(3)
		var all sync.WaitGroup
		for range 3 { // of one address, which waits for itself alone
			all.Go(func() { assert.Equal(t, http.StatusOK, ask(t.Context(), h, "192.0.2.1", 4<<20)) })
		}
		all.Go(func() { assert.Equal(t, http.StatusOK, ask(t.Context(), h, "192.0.2.2", 1<<19)) })
		all.Wait()
	})
}

// Among those who wait, readers who read come first, and each reader once before
// another one's second scrape.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2)
		q.enter(t.Context(), "reads", func() {}).leave(true)
		first, second := q.enter(t.Context(), "a", func() {}), q.enter(t.Context(), "b", func() {})
		require.NotNil(t, first)
		require.NotNil(t, second)
		var order []string
		var all sync.WaitGroup
		wait := func(reader string) {
			all.Go(func() {
				if p := q.enter(t.Context(), reader, func() {}); assert.NotNil(t, p, reader) {
					order = append(order, reader)
					p.leave(true)
				}
			})
			synctest.Wait()
		}
		for _, reader := range []string{"many", "many", "other", "reads"} {
			wait(reader)
		}
		first.leave(true)
		all.Wait()
		assert.Equal(t, []string{"reads", "many", "other", "many"}, order)
		second.leave(true)
		assert.Zero(t, q.slots.Taken())
	})
}

// Nobody waits for ever, and those without a place leave nothing.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, h := turns(1)
		p := q.enter(t.Context(), "a", func() {})
		began := time.Now()
		assert.Equal(t, http.StatusServiceUnavailable, ask(t.Context(), h, "b", 1))
		assert.Equal(t, maxWait, time.Since(began))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Equal(t, http.StatusServiceUnavailable, ask(ctx, h, "b", 1))
		assert.Empty(t, q.waiting)
		p.leave(true)
		assert.Empty(t, q.holding)
		assert.Zero(t, q.slots.Taken())
	})
}

// The readers that are kept in mind have a bound; the one that reads stays.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(3)
		q.enter(t.Context(), "reads", func() {}).leave(true)
		for i := range 3 * maxKnown {
			<-time.After(time.Millisecond)
			p := q.enter(t.Context(), strconv.Itoa(i), func() {})
			p.isCut = true
			p.leave(false)
		}
		assert.Len(t, q.known, maxKnown)
		assert.Equal(t, reads, q.standing("reads", time.Now()))
		<-time.After(readMemory)
		assert.Equal(t, stranger, q.standing("reads", time.Now()))
	})
}
