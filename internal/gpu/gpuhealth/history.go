// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"math/bits"
	"time"
)

// count is a counter whose growth the rubric looks at.
type count int

const (
	countPCIeReplays count = iota
	countPCIeRollovers
	countCorrected
	countLinkReplays
	countLinkFailures
	countLinkCRC
	// countSoftThermal is milliseconds.
	countSoftThermal
	numCounts
)

const (
	// Marks are some 10 s apart; the little less is for polls that are a little early.
	markEvery = 9500 * time.Millisecond
	// Enough marks for the longest window of 10 minutes.
	numMarks = 72
	// A longer gap is no sign that the state lasted through it.
	maxGap = time.Minute
)

// history is the growth of a GPU's counters over the last ten minutes.
type history struct {
	last  [numCounts]Opt[uint64]
	total [numCounts]uint64
	marks [numMarks]mark
	// next is the index of the next mark, n how many there are.
	next, n int
}

type mark struct {
	at    time.Time
	total [numCounts]uint64
	// known is false for a counter that was not read: its growth is unknown, not 0.
	known [numCounts]bool
}

// add takes a counter's value. A counter that went back starts anew.
func (h *history) add(c count, v Opt[uint64]) {
	if !v.OK {
		return
	}
	if last := h.last[c]; last.OK && v.V > last.V {
		h.total[c] += v.V - last.V
	}
	h.last[c] = v
}

// addTo grows a counter that is not the driver's.
func (h *history) addTo(c count, n uint64) {
	h.total[c] += n
	h.last[c] = Some[uint64](0)
}

// restart keeps what was, and takes the next value of each counter as its first.
func (h *history) restart() { h.last = [numCounts]Opt[uint64]{} }

// mark remembers the totals of now.
func (h *history) mark(now time.Time) {
	if h.n > 0 {
		if since := now.Sub(h.marks[(h.next+numMarks-1)%numMarks].at); since >= 0 && since < markEvery {
			return
		}
	}
	m := &h.marks[h.next]
	m.at, m.total = now, h.total
	for c := range numCounts {
		m.known[c] = h.last[c].OK
	}
	h.next = (h.next + 1) % numMarks
	h.n = min(h.n+1, numMarks)
}

// before is the newest mark that is at least so old, nil when there is none.
func (h *history) before(t time.Time) *mark {
	for i := 1; i <= h.n; i++ {
		if m := &h.marks[(h.next+numMarks-i)%numMarks]; !m.at.After(t) {
			return m
		}
	}
	return nil
}

// grew is the growth of a counter over the window that ends now. Between marks that
// are further apart the mean rate counts. Without marks that old the growth since the
// first mark counts.
func (h *history) grew(now time.Time, c count, window time.Duration) Opt[float64] {
	if !h.last[c].OK {
		return Opt[float64]{}
	}
	m := h.before(now.Add(-window))
	if m == nil || !m.known[c] {
		// The counter's total is 0 where its history begins, or was at a mark since.
		m = h.oldest(c)
		if m == nil {
			return Opt[float64]{}
		}
	}
	n := float64(h.total[c] - m.total[c])
	if span := now.Sub(m.at); span > window {
		n *= window.Seconds() / span.Seconds()
	}
	return Some(n)
}

// oldest is the oldest mark that knows the counter.
func (h *history) oldest(c count) *mark {
	for i := h.n; i >= 1; i-- {
		if m := &h.marks[(h.next+numMarks-i)%numMarks]; m.known[c] {
			return m
		}
	}
	return nil
}

// rising reports whether a counter grew by least or more in each of the last
// three minutes, and more in each than in the one before.
func (h *history) rising(now time.Time, c count, least float64) Opt[bool] {
	if !h.last[c].OK {
		return Opt[bool]{}
	}
	var rates [3]float64
	end, total := now, h.total[c]
	for i := range rates {
		m := h.before(now.Add(-time.Duration(i+1) * time.Minute))
		if m == nil || !m.known[c] || !m.at.Before(end) {
			return Some(false)
		}
		rates[i] = float64(total-m.total[c]) / end.Sub(m.at).Minutes()
		end, total = m.at, m.total[c]
	}
	return Some(rates[2] >= least && rates[1] > rates[2] && rates[0] > rates[1])
}

// slots remembers when something was, in the last 64 slots of time. Bit 0 is of slot At.
type slots struct {
	At   int64  `json:",omitempty"`
	Bits uint64 `json:",omitempty"`
}

func (s *slots) add(slot int64) {
	if slot > s.At {
		s.At, s.Bits = slot, s.last(slot, 64)
	}
	s.Bits |= 1 << (s.At - slot)
}

// last are the bits of the n slots that end with this one, which has bit 0.
func (s *slots) last(slot int64, n int) uint64 {
	return s.Bits << max(slot-s.At, 0) & (1<<n - 1)
}

// spells counts runs of slots: what is in neighbouring slots is one.
func spells(slots uint64) int { return bits.OnesCount64(slots &^ (slots << 1)) }

const secondsPerDay = 24 * 3600

// week is a count at the start of each of the last eight days.
type week struct {
	day   int64
	count [8]Opt[uint64]
}

func (w *week) add(now time.Time, n uint64) {
	day := now.Unix() / secondsPerDay
	// A clock that went back is not worth more than a wrong day.
	for w.day < day {
		if day-w.day > int64(len(w.count)) {
			w.day = day - int64(len(w.count))
		}
		w.day++
		w.count[w.day%int64(len(w.count))] = Opt[uint64]{}
	}
	if today := &w.count[w.day%int64(len(w.count))]; !today.OK {
		*today = Some(n)
	}
}

// grew is how much more n is than the least count of the days.
func (w *week) grew(n uint64) uint64 {
	least := n
	for _, c := range w.count {
		if c.OK {
			least = min(least, c.V)
		}
	}
	return n - least
}
