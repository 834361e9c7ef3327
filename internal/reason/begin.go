// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// beforeWatched is the beginning of a state that held already when its node was
// first heard of.
const beforeWatched = 1

// pause is how long something may be gone and still be the same when it comes
// back: a brake that comes and goes all day did not begin just now.
const pause = 120

// begin returns since when a state holds that was just seen to begin. A state
// that ended a short while ago goes on, so it holds since before. A state that a
// node reports in its first minutes was there already; watched denies that: the
// node had reported that the state did not hold.
func (n *Node) begin(before, ended uint32, watched bool) uint32 {
	switch {
	case before != 0 && ended != 0 && n.seen-ended <= pause:
		return before
	case !watched && n.seen-n.first < settled:
		return beforeWatched
	}
	return n.seen
}

// steps are the gauges that stay what they are until something breaks. Clocks,
// loads and the like change all the time: their beginning is unknown.
var steps = [...]reading.Field{reading.PCIeGeneration, reading.PCIeWidth, reading.NVLinksUp, reading.Processes, reading.PowerLimit}

// step notes when a gauge became worse, 0 when nobody saw it. An idle GPU lowers its
// link's generation by itself, and nobody saw the generation after that begin.
func (g *gpu) step(f reading.Field, v float32, now uint32) {
	i := slices.Index(steps[:], f)
	if i < 0 {
		return
	}
	was := g.gauges[f-firstGauge]
	if f == reading.Processes {
		was, v = v, was
	}
	switch {
	case v < was:
		g.worsened[i] = now
	case v > was:
		g.worsened[i] = 0 // what is left of it was there before
	}
}

// began returns since when a fact of the GPU or adapter is what it is, and
// whether that is known.
func (n *Node) began(f Fact, i int) (uint32, bool) {
	switch f {
	case GPULost, GPUSilent:
		return n.gpus[i].upAt, true
	}
	field := source[f]
	if at := slices.Index(steps[:], field); at >= 0 {
		return n.gpus[i].worsened[at], true
	}
	if h := n.history(f, i); h != nil {
		return h.began, true
	}
	if field >= firstFlag && field < firstGauge {
		return n.gpus[i].began[field-firstFlag], true
	}
	return 0, false
}

// standing reports whether a fact is known to have been what it is before the
// window. A node that was heard of shortly before it tells of nothing older.
func (n *Node) standing(f Fact, i int, w window) bool {
	at, known := n.began(f, i)
	return known && !w.open && at < w.start && w.start >= n.first+settled
}

// since is the beginning of a fact for people.
func (n *Node) since(f Fact, i int) time.Time {
	if facts[f].scope == ofNode {
		return time.Time{}
	}
	if at, known := n.began(f, i); known && at > beforeWatched {
		return time.Unix(int64(at), 0).UTC()
	}
	return time.Time{}
}

// bad reports whether a value of a fact has a beginning worth keeping; a flag
// that does not hold has none.
func (f Fact) bad(v float64) bool { return facts[f].low || v > 0 }
