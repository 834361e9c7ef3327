// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxAsks bounds the peer groups that a middle tier asks for.
	maxAsks = 4096
	// askTTL forgets a group nobody asked for any more.
	askTTL = 10 * time.Minute
)

// Asks remembers for which clusters and peer groups the clients of a middle
// tier asked, so that it can ask the tier above for them, a request's worth
// at a time. The zero value is ready.
type Asks struct {
	mu      sync.Mutex
	seen    map[inboxKey]time.Time
	windows []Claim
	next    int
	swept   time.Time
}

// Add notes what a client asked for.
func (a *Asks) Add(cluster string, groups []string, now time.Time) {
	if cluster == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = make(map[inboxKey]time.Time)
	}
	// The empty group stands for the cluster itself.
	a.note(inboxKey{cluster, ""}, now)
	for _, g := range groups {
		a.note(inboxKey{cluster, g}, now)
	}
}

func (a *Asks) note(key inboxKey, now time.Time) {
	if _, ok := a.seen[key]; !ok {
		if len(a.seen) >= maxAsks {
			return
		}
		key = inboxKey{strings.Clone(key.cluster), strings.Clone(key.group)}
		a.windows = nil
	}
	a.seen[key] = now
}

// Next returns the claim of the next request upwards: each cluster in turn,
// its groups MaxGroups at a time. The zero Claim when nobody asked.
func (a *Asks) Next(now time.Time) Claim {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.swept) > askTTL {
		a.swept = now
		maps.DeleteFunc(a.seen, func(_ inboxKey, at time.Time) bool { return now.Sub(at) > askTTL })
		a.windows = nil
	}
	if a.windows == nil {
		a.windows = a.build()
	}
	if len(a.windows) == 0 {
		return Claim{}
	}
	a.next = (a.next + 1) % len(a.windows)
	return a.windows[a.next]
}

func (a *Asks) build() []Claim {
	keys := slices.SortedFunc(maps.Keys(a.seen), func(x, y inboxKey) int {
		if c := strings.Compare(x.cluster, y.cluster); c != 0 {
			return c
		}
		return strings.Compare(x.group, y.group)
	})
	var claims []Claim
	for _, k := range keys {
		// The empty group sorts first and opens the cluster.
		if last := len(claims) - 1; k.group == "" || len(claims[last].Groups) == MaxGroups {
			claims = append(claims, Claim{Cluster: k.cluster})
		}
		if k.group != "" {
			last := &claims[len(claims)-1]
			last.Groups = append(last.Groups, k.group)
		}
	}
	return claims
}
