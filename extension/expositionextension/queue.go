// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"cmp"
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

const (
	// maxWaiting is how many scrapes wait for a place.
	maxWaiting = 64
	// maxWait ends before Prometheus gives up, after 10 s (scrape_timeout).
	maxWait = 8 * time.Second
	// slowGrace and leastRate are what a reader may take of the time of others: a second,
	// and one more for each megabyte that it read. Many who wait have it take less, so
	// that each gets its turn in roundTime; leastTurn is enough for some megabytes.
	slowGrace = time.Second
	leastRate = 1 << 20
	roundTime = 6 * time.Second
	leastTurn = 200 * time.Millisecond
	// writeBuffer lets 2 MB a second through at a round trip of 100 ms.
	writeBuffer = 256 << 10
	// lookInterval is how often one who waits looks for a reader that is too slow.
	lookInterval = 100 * time.Millisecond
	// maxKnown bounds the readers whose past is known.
	maxKnown = 256
	// slowMemory and readMemory are how long a reader's past counts.
	slowMemory = time.Minute
	readMemory = 15 * time.Minute
)

// standing is what a reader's past says; the least one is served first.
type standing int

const (
	reads    standing = iota // read a text to its end lately
	stranger                 // nothing is known
	slowly                   // held up others lately
)

// queue gives the places of scrapes. Many scrapes of one reader leave a place to the
// next reader, and readers who do not read are cut off as soon as others wait: so any
// number of idle readers delays a scrape, and cannot prevent it.
type queue struct {
	mu      sync.Mutex
	slots   *fairshare.Ledger[string] // by reader
	holding []*place
	waiting []*place // in the order of their turns
	arrived int
	known   map[string]past
}

// past is what is known of a reader.
type past struct{ read, slow time.Time }

// place is that of one scrape, held or waited for.
type place struct {
	q       *queue
	reader  string
	cut     func()        // ends its writes
	granted chan struct{} // closed with the place
	refused chan struct{} // closed when another one waits in its stead

	standing      standing
	turn, arrived int
	came          time.Time

	isCut   bool
	bytes   int64
	blocked time.Duration // of the writes that are over
	writing time.Time     // the beginning of the write under way
}

func newQueue(places int) *queue {
	return &queue{slots: fairshare.New[string](places, fairshare.Half), known: map[string]past{}}
}

// enter waits for a place; nil when there is none in time.
func (q *queue) enter(ctx context.Context, reader string, cut func()) *place {
	p := q.stand(reader, cut)
	over := time.NewTimer(maxWait)
	defer over.Stop()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		select {
		case <-p.granted:
			return p
		case <-p.refused:
			return nil
		case <-look.C:
			q.cutSlow(time.Now())
			continue
		case <-over.C:
		case <-ctx.Done():
		}
		if q.withdraw(p) {
			return nil
		}
		return p // given meanwhile
	}
}

// stand puts a scrape where its turn is. The turn of a reader's second scrape comes after
// the first of each other reader.
func (q *queue) stand(reader string, cut func()) *place {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived++
	now := time.Now()
	p := &place{
		q: q, reader: reader, cut: cut, granted: make(chan struct{}), refused: make(chan struct{}),
		standing: q.standing(reader, now), turn: q.slots.Held(reader), arrived: q.arrived, came: now,
	}
	for _, w := range q.waiting {
		if w.reader == reader {
			p.turn++
		}
	}
	at, _ := slices.BinarySearchFunc(q.waiting, p, (*place).compare)
	q.waiting = slices.Insert(q.waiting, at, p)
	q.grant()
	if n := len(q.waiting) - 1; n >= maxWaiting {
		close(q.waiting[n].refused)
		q.waiting = q.waiting[:n]
	}
	return p
}

func (p *place) compare(o *place) int {
	return cmp.Or(cmp.Compare(p.standing, o.standing), cmp.Compare(p.turn, o.turn), cmp.Compare(p.arrived, o.arrived))
}

func (q *queue) standing(reader string, now time.Time) standing {
	switch past, ok := q.known[reader]; {
	case !ok:
		return stranger
	case now.Sub(past.slow) < slowMemory:
		return slowly
	case now.Sub(past.read) < readMemory:
		return reads
	}
	return stranger
}

// grant gives the places that are free.
func (q *queue) grant() {
	q.waiting = slices.DeleteFunc(q.waiting, func(p *place) bool {
		if q.slots.Take(p.reader, 1) == 0 {
			return false
		}
		q.holding = append(q.holding, p)
		close(p.granted)
		return true
	})
}

// withdraw ends a wait; false when the place was given before.
func (q *queue) withdraw(p *place) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.waiting)
	q.waiting = slices.DeleteFunc(q.waiting, func(w *place) bool { return w == p })
	return len(q.waiting) < n || !slices.Contains(q.holding, p)
}

// cutSlow cuts off one slow reader for each scrape that waits from another address.
func (q *queue) cutSlow(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.slots.Full() {
		return // those who wait have their share
	}
	turn, firsts, ending := roundTime, 0, 0
	for _, w := range q.waiting {
		if w.turn == 0 { // the next ones of a reader wait for its first
			firsts++
			left := roundTime - now.Sub(w.came)
			turn = min(turn, left*time.Duration(q.slots.Taken())/time.Duration(firsts))
		}
	}
	turn = max(turn, leastTurn)
	for _, p := range q.holding {
		if p.isCut {
			ending++
		}
	}
	for _, w := range q.waiting {
		if q.slots.Held(w.reader) >= q.slots.Most() {
			continue
		}
		if ending > 0 { // which leaves its place at once
			ending--
			continue
		}
		var worst *place
		for _, p := range q.holding {
			if p.reader == w.reader || p.isCut || p.behind(now, turn) <= 0 {
				continue
			}
			if worst == nil || p.behind(now, turn) > worst.behind(now, turn) {
				worst = p
			}
		}
		if worst == nil {
			continue
		}
		worst.isCut = true
		worst.cut()
	}
}

// behind is how much longer a reader took than it may, which is a turn at most.
func (p *place) behind(now time.Time, turn time.Duration) time.Duration {
	took := p.blocked
	if !p.writing.IsZero() {
		took += now.Sub(p.writing)
	}
	return took - min(turn, slowGrace+time.Duration(float64(p.bytes)/leastRate*float64(time.Second)))
}

// leave gives a place back, keeps in mind how its reader read, and reports whether the
// reader was cut off.
func (p *place) leave(whole bool) bool {
	q, now := p.q, time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.holding = slices.DeleteFunc(q.holding, func(h *place) bool { return h == p })
	q.slots.Give(p.reader, 1)
	q.grant()
	past := q.known[p.reader]
	switch {
	case p.isCut || p.behind(now, math.MaxInt64) > 0:
		past.slow = now
	case whole:
		past.read = now
	default:
		return p.isCut
	}
	q.known[p.reader] = past
	if len(q.known) > maxKnown {
		q.forget()
	}
	return p.isCut
}

// forget forgets the reader whose past is the oldest; of those who read, last.
func (q *queue) forget() {
	var oldest string
	var least past
	for reader, past := range q.known {
		if oldest == "" || past.read.Before(least.read) || past.read.Equal(least.read) && past.slow.Before(least.slow) {
			oldest, least = reader, past
		}
	}
	delete(q.known, oldest)
}

// inTurn has scrapes answered in their turns.
func (q *queue) inTurn(next http.Handler, refuse http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := q.enter(r.Context(), webguard.Address(r), func() { cutOff(w, r) })
		if p == nil {
			refuse(w, r)
			return
		}
		answer, ended := &paced{ResponseWriter: w, place: p, code: http.StatusOK}, false
		defer func() {
			if p.leave(ended && answer.code == http.StatusOK && r.Method == http.MethodGet) && ended {
				panic(http.ErrAbortHandler) // its connection cannot be written to
			}
		}()
		next.ServeHTTP(answer, r)
		ended = true
	})
}

type connKey struct{}

// withConn has the handlers know the connection, and the kernel keep little of what is
// not read: up to 4 MB of each by default (tcp_wmem), which would count as read.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		c = secured.NetConn()
	}
	plain, ok := c.(*net.TCPConn)
	if !ok {
		return ctx
	}
	_ = plain.SetWriteBuffer(writeBuffer) // its own bound does without
	return context.WithValue(ctx, connKey{}, plain)
}

// cutOff ends an answer that is not read. The kernel would keep what is not read for
// minutes after the connection is closed, were the connection not reset.
func cutOff(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
}

// paced is an answer whose reader's pace is known.
type paced struct {
	http.ResponseWriter
	place *place
	code  int
}

// WriteHeader implements http.ResponseWriter.
func (w *paced) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *paced) Write(b []byte) (int, error) {
	p, began := w.place, time.Now()
	p.q.mu.Lock()
	p.writing = began
	p.q.mu.Unlock()
	n, err := w.ResponseWriter.Write(b)
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	p.writing = time.Time{}
	p.blocked += time.Since(began)
	p.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *paced) Unwrap() http.ResponseWriter { return w.ResponseWriter }
