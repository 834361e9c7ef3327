// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/wire"
)

const (
	// MaxClusters is how many have a name here.
	MaxClusters = 64
	// Other is the name of all others, and of those whose names cannot be printed.
	Other = wire.Overflow
	// Silence is the time between two lines about one cluster.
	Silence = time.Hour
)

// Shortages say in whose name points over a limit are counted, and when that is worth a
// line of the log. Clusters' names are easily made up, so both are bounded. The zero value
// is ready, and safe for concurrent use.
type Shortages struct {
	mu   sync.Mutex
	told map[string]time.Time // by name, the last line about it
}

// Note returns the name in which points of a cluster are counted, and whether to tell of
// them now.
func (b *Shortages) Note(cluster string, now time.Time) (name string, tell bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name = cluster
	last, known := b.told[name]
	if !known && (len(b.told) >= MaxClusters || (name != "" && !wire.ValidName(name))) {
		name = Other
		last, known = b.told[name]
	}
	if known && now.Sub(last) < Silence {
		return name, false
	}
	if b.told == nil {
		b.told = map[string]time.Time{}
	}
	b.told[strings.Clone(name)] = now
	return name, true
}
