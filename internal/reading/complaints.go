// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

const (
	// maxComplaints bounds the nodes and names that are remembered. A cluster has no
	// more than half of what the others leave: its mistakes silence nobody else's.
	maxComplaints = 2048
	// memory is how long a complaint keeps its place from another one.
	memory = 24 * time.Hour
	// maxSeen bounds the names that cost no lock.
	maxSeen = 1024
)

// Complaints decides what is said about senders' mistakes: each once per node,
// metric and reason, and of so many nodes. The zero value is ready.
type Complaints struct {
	mu     sync.Mutex
	told   map[about]*complaint
	places *fairshare.Ledger[string]
	swept  time.Time
	// seen are hashes of names that were looked at, for want of a lock: they come
	// with each report.
	seen [maxSeen]atomic.Uint64
}

var seed = maphash.MakeSeed()

// about is a node, or a foreign metric's name.
type about struct{ cluster, node, name string }

type complaint struct {
	cluster string
	at      time.Time
	reasons []uint8 // a bit per refusal, by metric; of a node
}

// First reports whether a refusal is news.
func (c *Complaints) First(cluster, node string, m *Metric, why Refusal, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.told[about{cluster, node, ""}]
	if known == nil {
		if known = c.begin(cluster, now); known == nil {
			return false
		}
		known.reasons = make([]uint8, len(catalogue))
		c.told[about{known.cluster, strings.Clone(node), ""}] = known
	}
	bit := uint8(1) << why
	first := known.reasons[m.index]&bit == 0
	known.reasons[m.index] |= bit
	return first
}

// begin takes a place for a complaint of a cluster, nil where there is none.
func (c *Complaints) begin(cluster string, now time.Time) *complaint {
	if c.places == nil {
		c.told = make(map[about]*complaint)
		c.places = fairshare.New[string](maxComplaints, fairshare.Half)
	}
	cluster = strings.Clone(cluster)
	if c.places.Take(cluster, 1) == 0 {
		if now.Sub(c.swept) < memory/24 {
			return nil
		}
		c.swept = now
		maps.DeleteFunc(c.told, func(_ about, known *complaint) bool {
			old := now.Sub(known.at) >= memory
			if old {
				c.places.Give(known.cluster, 1)
			}
			return old
		})
		if c.places.Take(cluster, 1) == 0 {
			return nil
		}
	}
	return &complaint{cluster: cluster, at: now}
}

// Seen reports whether a foreign metric's name need not be looked at: it was, or
// it is in nobody's namespace here.
func (c *Complaints) Seen(name string) bool {
	if !ours(name) {
		return true
	}
	seen, h := c.mark(name)
	if seen.Load() == h {
		return true
	}
	seen.Store(h)
	return false
}

// mark is where a name is marked as seen, and its mark.
func (c *Complaints) mark(name string) (at *atomic.Uint64, hash uint64) {
	h := maphash.String(seed, name)
	return &c.seen[h%maxSeen], h
}

// Once reports whether a complaint about a whole cluster is news.
func (c *Complaints) Once(cluster, complaint string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[about{cluster, "", complaint}] != nil {
		return false
	}
	known := c.begin(cluster, now)
	if known == nil {
		return false
	}
	c.told[about{known.cluster, "", complaint}] = known
	return true
}

// Almost returns the name that a foreign metric's sender is likely to have meant,
// empty where there is none. It looks at each name once.
func (c *Complaints) Almost(cluster, name string, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[about{name: name}] != nil {
		return ""
	}
	known := c.begin(cluster, now)
	if known == nil {
		seen, h := c.mark(name)
		seen.CompareAndSwap(h, 0) // it is told once there is a place
		return ""
	}
	c.told[about{name: strings.Clone(name)}] = known
	return Almost(name)
}

// ours reports whether a name is in a namespace of the catalogue. Metrics of
// others are none of its business.
func ours(name string) bool {
	return len(name) <= maxName && (begins(name, "hw.") || begins(name, "gpu.") || begins(name, "system."))
}

// begins is strings.HasPrefix in plain spelling.
func begins(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if spelled(rune(name[i])) != rune(prefix[i]) {
			return false
		}
	}
	return true
}

// spelled is a letter of a name in plain spelling: small, and a point where Prometheus
// has an underscore.
func spelled(r rune) rune {
	if r == '_' {
		return '.'
	}
	return unicode.ToLower(r)
}

// maxName bounds what is compared, maxEdits how far a mistake may go: a letter
// that is missing and another one too much.
const maxName, maxEdits = 64, 2

// Almost returns the known name that is nearest to a foreign one, in plain spelling: by
// letters, else by words. It is empty where none is near enough for a mistake.
func Almost(name string) string {
	if len(name) > maxName || ByName(name) != nil {
		return ""
	}
	prometheus := !strings.Contains(name, ".")
	name = strings.Map(spelled, name)
	best, edits, longest := "", maxEdits+1, 0
	for i, known := range plainNames() {
		d := len(known) - len(name)
		n := edits
		switch {
		case prometheus && len(known) > longest && strings.HasPrefix(name+".", known+"."): // what follows is the unit
			longest, n = len(known), -1
		case d <= maxEdits && -d <= maxEdits:
			n = distance(known, name)
		}
		if n < edits {
			best, edits = catalogue[i].Name, max(n, 0)
		}
	}
	if best != "" {
		return best
	}
	words := strings.Split(name, ".")
	likely := differs
	for i, known := range plainNames() {
		switch as := meant(words, strings.Split(known, "."), prometheus); {
		case as > likely:
			best, likely = catalogue[i].Name, as
		case as == likely:
			best = "" // it may be either
		}
	}
	return best
}

// How likely a name is meant: a word for each of its words goes before one that is missing.
const (
	differs = iota
	lacksWord
	wordForWord
)

// meant returns how well the words of a name may stand for those of a known one. Between
// them one of four or more may be missing. A gpu too much in hw is none, nor is the unit
// that Prometheus has behind a name.
func meant(name, known []string, prometheus bool) int {
	same := func(name []string) int {
		if prometheus && len(name) > len(known) {
			name = name[:len(known)]
		}
		if slices.EqualFunc(name, known, alike) {
			return wordForWord
		}
		for i := 1; i < len(known)-1 && len(known) >= 4; i++ {
			if slices.EqualFunc(name, slices.Concat(known[:i], known[i+1:]), alike) {
				return lacksWord
			}
		}
		return differs
	}
	likely := same(name)
	if len(name) > 2 && name[0] == "hw" && name[1] == "gpu" {
		likely = max(likely, same(slices.Concat(name[:1], name[2:])))
	}
	return likely
}

// synonyms are words that senders have for others.
var synonyms = map[string]string{"time": "duration", "latency": "duration", "iteration": "step", "used": "usage"}

// alike reports whether a word may stand for a known one: it is written slightly
// otherwise, cut short, or means the same.
func alike(word, known string) bool {
	if meaning := synonyms[word]; meaning != "" && meaning == known || synonyms[known] == word {
		return true
	}
	return distance(word, known) <= min(len(known)/4, maxEdits) || len(word) >= 3 && strings.HasPrefix(known, word)
}

// plainNames are the catalogue's names in plain spelling, in its order.
var plainNames = sync.OnceValue(func() []string {
	names := make([]string, len(catalogue))
	for i := range catalogue {
		names[i] = strings.Map(spelled, catalogue[i].Name)
	}
	return names
})

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
