// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
)

// Bounds of what is remembered of senders' mistakes.
const (
	maxNodes = 1024
	maxNames = 1024
)

// Complaints decides what is said about senders' mistakes: each once per node,
// metric and reason, and of so many nodes. The zero value is ready.
type Complaints struct {
	mu    sync.Mutex
	nodes map[nodeName]*[]uint8 // a bit per refusal, by metric
	names map[string]struct{}
	// seen are hashes of names that were looked at, for want of a lock: they come
	// with each report.
	seen [maxNames]atomic.Uint64
}

var seed = maphash.MakeSeed()

type nodeName struct{ cluster, node string }

// First reports whether a refusal is news.
func (c *Complaints) First(cluster, node string, m *Metric, why Refusal) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.nodes[nodeName{cluster, node}]
	if told == nil {
		if len(c.nodes) >= maxNodes {
			return false
		}
		if c.nodes == nil {
			c.nodes = make(map[nodeName]*[]uint8)
		}
		list := make([]uint8, len(catalogue))
		told = &list
		c.nodes[nodeName{strings.Clone(cluster), strings.Clone(node)}] = told
	}
	bit := uint8(1) << why
	first := (*told)[m.index]&bit == 0
	(*told)[m.index] |= bit
	return first
}

// Almost returns the name that a foreign metric's name is likely to be a mistake
// for, empty where there is none. It looks at each name once.
func (c *Complaints) Almost(name string) string {
	if !ours(name) {
		return ""
	}
	h := maphash.String(seed, name)
	seen := &c.seen[h%maxNames]
	if seen.Load() == h {
		return ""
	}
	seen.Store(h)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.names[name]; known || len(c.names) >= maxNames {
		return ""
	}
	if c.names == nil {
		c.names = make(map[string]struct{})
	}
	c.names[strings.Clone(name)] = struct{}{}
	return Almost(name)
}

// ours reports whether a name is in a namespace of the catalogue. Metrics of
// others are none of its business.
func ours(name string) bool {
	return len(name) <= maxName && (strings.HasPrefix(name, "hw.") || strings.HasPrefix(name, "gpu.") || strings.HasPrefix(name, "system."))
}

// maxName bounds what is compared, maxEdits how far a mistake may go: a letter
// that is missing and another one too much.
const maxName, maxEdits = 64, 2

// Almost returns the metric's name that is nearest to a foreign one, empty
// where none is near enough for a mistake.
func Almost(name string) string {
	if len(name) > maxName || ByName(name) != nil {
		return ""
	}
	best, edits := "", maxEdits+1
	for i := range catalogue {
		known := catalogue[i].Name
		if d := len(known) - len(name); d > maxEdits || -d > maxEdits {
			continue
		}
		if n := distance(known, name); n < edits {
			best, edits = known, n
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
