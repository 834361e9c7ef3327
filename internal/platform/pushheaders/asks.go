// SPDX-License-Identifier: Apache-2.0

package pushheaders

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

const (
	// maxAsks bounds the clusters and peer groups that a middle tier asks for,
	// each cluster to its share.
	maxAsks = 4096
	// askTTL forgets a group that is no longer asked for.
	askTTL = 10 * time.Minute
	// unansweredTurn is which request upwards is for a cluster that the tier above never
	// answered: made-up names must not delay those that exist.
	unansweredTurn = 4
	// maxInsistence bounds the requests that count until the next turn: a client that
	// asks in a loop has no more turns than one that asks with each push.
	maxInsistence = 3
)

// Asks remembers the clusters and peer groups that the clients of a middle tier
// asked for. So the tier can ask the tier above, a request's worth at a time. The
// clusters take turns, whatever each of them asks for. The zero value is ready.
type Asks struct {
	mu       sync.Mutex
	clusters map[string]*asked
	order    []*asked // the same, the oldest first
	slots    *fairshare.Ledger[string]
	count    int // of the requests
	swept    time.Time
}

// asked is what is asked for of one cluster: itself, and its groups in windows
// of MaxGroups. A window is the start of names, which are sorted when needed.
type asked struct {
	name     string
	at       time.Time
	answered bool
	again    bool // it was asked for more than once
	asks     int  // since it last had its turn
	turn     int  // its last, by Asks.count
	groups   map[string]time.Time
	names    []string // nil when groups have changed
	next     int
}

// Add notes what a client asked for.
func (a *Asks) Add(cluster string, groups []string, now time.Time) {
	if cluster == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.clusters == nil {
		a.clusters, a.slots = map[string]*asked{}, fairshare.New[string](maxAsks, fairshare.Half)
	}
	c := a.clusters[cluster]
	again := c != nil
	if !again {
		if !a.takeSlot(cluster, true) {
			return
		}
		c = &asked{name: strings.Clone(cluster), groups: map[string]time.Time{}}
		a.clusters[c.name] = c
		a.order = append(a.order, c)
	}
	c.at, c.again = now, again
	c.asks = min(c.asks+1, maxInsistence)
	for _, g := range groups {
		if _, ok := c.groups[g]; !ok {
			if !a.takeSlot(c.name, again) {
				again = false // no room is made for the others either
				continue
			}
			g, c.names = strings.Clone(g), nil
		}
		c.groups[g] = now
	}
}

// takeSlot takes a slot for a cluster. When none is left and the cluster has few, it makes
// room if wished: a cluster that clients asked for only once goes.
func (a *Asks) takeSlot(cluster string, make bool) bool {
	if a.slots.TakeAll(cluster, 1) {
		return true
	}
	if !make || a.slots.Held(cluster) > MaxGroups {
		return false
	}
	// A cluster may take half of the free slots, so a second eviction may be needed.
	return a.evict(cluster) && (a.slots.TakeAll(cluster, 1) || a.evict(cluster) && a.slots.TakeAll(cluster, 1))
}

// evict takes the slots of the oldest cluster that clients asked for only once.
func (a *Asks) evict(but string) bool {
	i := slices.IndexFunc(a.order, func(c *asked) bool { return !c.answered && !c.again && c.name != but })
	if i < 0 {
		return false
	}
	c := a.order[i]
	a.order = slices.Delete(a.order, i, i+1)
	delete(a.clusters, c.name)
	a.slots.Give(c.name, 1+len(c.groups))
	return true
}

// Answered notes that the tier above knows a cluster.
func (a *Asks) Answered(cluster string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clusters[cluster]; c != nil {
		c.answered = true
	}
}

// Next returns the claim of the next request upwards: each cluster in turn,
// its groups MaxGroups at a time. The zero Claim without a request.
func (a *Asks) Next(now time.Time) Claim {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.swept) > askTTL {
		a.swept = now
		a.sweep(now)
	}
	a.count++
	answered := a.count%unansweredTurn != 0
	c := a.due(answered)
	if c == nil {
		c = a.due(!answered)
	}
	if c == nil {
		return Claim{}
	}
	c.asks, c.turn = 0, a.count
	return c.claim()
}

// due is the cluster that was asked for since its turn, and among equals the one that
// waits longest. A made-up cluster with an answer is asked for once: it does not take
// turns from those whose nodes ask on. Of those without an answer the most asked for is
// first: a sender of made-up names would have to repeat each.
func (a *Asks) due(answered bool) *asked {
	var first *asked
	for _, c := range a.order {
		if c.answered == answered && (first == nil || c.weight() > first.weight() || (c.weight() == first.weight() && c.turn < first.turn)) {
			first = c
		}
	}
	return first
}

func (c *asked) weight() int {
	if c.answered {
		return min(c.asks, 1)
	}
	return c.asks
}

func (a *Asks) sweep(now time.Time) {
	old := func(at time.Time) bool { return now.Sub(at) > askTTL }
	for _, c := range a.clusters {
		before := len(c.groups)
		maps.DeleteFunc(c.groups, func(_ string, at time.Time) bool { return old(at) })
		a.slots.Give(c.name, before-len(c.groups))
		c.names = nil
	}
	a.order = slices.DeleteFunc(a.order, func(c *asked) bool {
		if old(c.at) {
			a.slots.Give(c.name, 1)
			delete(a.clusters, c.name)
		}
		return old(c.at)
	})
}

func (c *asked) claim() Claim {
	if len(c.groups) == 0 {
		return Claim{Cluster: c.name}
	}
	if c.names == nil {
		c.names = slices.Sorted(maps.Keys(c.groups))
	}
	if c.next >= len(c.names) {
		c.next = 0
	}
	from := c.next
	c.next = min(from+MaxGroups, len(c.names))
	return Claim{Cluster: c.name, Groups: c.names[from:c.next:c.next]}
}
