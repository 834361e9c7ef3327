// SPDX-License-Identifier: Apache-2.0

package reason

import "time"

const (
	// historyMinutes is how far back growth is kept: a loss of 5 % is found
	// within 10 minutes, and the window begins a minute before it began.
	historyMinutes = 16
	// maxMoved bounds the counters of a node whose growth is kept: 8 for each
	// of 8 GPUs and 4 for each of 16 ports. Of more, those are lost that have not grown
	// for longest.
	maxMoved = 128
)

// history is how much a fact that counts has grown, by minute. It exists only
// once it has grown: nearly all of these counters never do.
type history struct {
	of      uint8
	fact    Fact
	kind    uint8  // of errors of a port
	began   uint32 // since when it grows without a pause
	last    uint32 // when it grew last, seconds
	minutes [historyMinutes]float32
}

// add notes growth at the time of the report.
func (n *Node) add(of uint8, fact Fact, kind uint8, d float64) {
	if !tellsAlways(fact) {
		n.note()
	}
	h := n.history(fact, int(of), kind)
	if h == nil {
		switch {
		case len(n.moved) < maxMoved && push(n, &n.moved, history{}, 0):
			h = &n.moved[len(n.moved)-1]
		case len(n.moved) == 0:
			return
		default:
			h = &n.moved[0]
			for i := range n.moved {
				if n.moved[i].last < h.last {
					h = &n.moved[i]
				}
			}
		}
		*h = history{of: of, fact: fact, kind: kind, last: n.seen, began: n.begin(0, 0, false)}
	} else {
		h.began = n.begin(h.began, h.last, true)
	}
	h.grow(n.seen, d)
}

func (h *history) grow(at uint32, d float64) {
	was, is := h.last/60, at/60
	for m := was + 1; m <= is && m <= was+historyMinutes; m++ {
		h.minutes[m%historyMinutes] = 0
	}
	h.minutes[is%historyMinutes] += float32(d)
	h.last = at
}

// since returns the growth in the window that begins at start. A growth of 0 is
// exact. The amount takes the whole minute of start, and no more than the 16 minutes
// that end with the last growth.
func (h *history) since(start uint32) float64 {
	if h.last < start {
		return 0
	}
	last := h.last / 60
	sum := 0.0
	for m := max(start/60, last-min(last, historyMinutes-1)); m <= last; m++ {
		sum += float64(h.minutes[m%historyMinutes])
	}
	return sum
}

// window is the time that facts are asked for.
type window struct {
	start, end uint32
	// open says that the time at which the node became slow is unknown.
	open bool
}

// lead is how long before the accusation's beginning evidence counts: a cause
// comes before its effect, and both are seen at a tick.
const lead = time.Minute

func newWindow(since, now time.Time) window {
	open := since.Unix() <= 0
	if open {
		since = now
	}
	w := window{seconds(since.Add(-lead)), seconds(now), open}
	w.end = max(w.end, w.start)
	return w
}

// minutes is the time that history.since takes growth from.
func (w window) minutes() float64 {
	return max(1, min(float64(w.end-w.start/60*60)/60, historyMinutes))
}
