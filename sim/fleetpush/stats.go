// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Why a push was not made.
const (
	skipLate = iota // the node's next one was due
	skipBusy        // the node's last one had not ended
	skipTold        // the other end had asked to wait
	numSkips
)

// maxCodes bounds the kinds of refusals that are told apart.
const maxCodes = 64

// stats counts what happens.
type stats struct {
	skipped [numSkips]atomic.Int64

	mu          sync.Mutex
	from, to    time.Time
	nodes       int
	pushes      int64
	accepted    int64
	rejected    int64
	bytes       int64
	refusals    map[string]int64
	lastError   error
	latency     *hdrhistogram.Histogram // microseconds
	longest     time.Duration
	longestAt   time.Time
	longestNode int
	withParams  int64
	news        int64
	badHeaders  int64
}

// The histogram's bounds: a push of less is a microsecond, of more ten minutes.
const (
	leastMicros = 1
	mostMicros  = int64(10 * time.Minute / time.Microsecond)
	digitsKept  = 3
)

func (s *stats) init(nodes int) {
	s.nodes = nodes
	s.refusals = map[string]int64{}
	s.latency = hdrhistogram.New(leastMicros, mostMicros, digitsKept)
}

// at notes when the run began or ended, which is the field.
func (s *stats) at(field *time.Time, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*field = now
}

func (s *stats) skip(why int) { s.skipped[why].Add(1) }

func (s *stats) fail(code string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse(code, err)
}

func (s *stats) refuse(code string, err error) {
	if _, known := s.refusals[code]; !known && len(s.refusals) >= maxCodes {
		code = "other"
	}
	s.refusals[code]++
	s.lastError = err
}

func (s *stats) push(node int, at time.Time, took time.Duration, size int, r *result, h *Heard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pushes++
	s.bytes += int64(size)
	if r.Accepted {
		s.accepted++
		s.rejected += r.rejected
	} else {
		s.refuse(r.code, r.err)
	}
	_ = s.latency.RecordValue(min(max(took.Microseconds(), leastMicros), mostMicros)) // within its bounds
	if took > s.longest {
		s.longest, s.longestAt, s.longestNode = took, at, node
	}
	if h.Threshold {
		s.withParams++
	}
	if h.New {
		s.news++
	}
	if h.Err != nil {
		s.badHeaders++
	}
}
