// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

const (
	// MaxClusters is how many have a name here.
	MaxClusters = 64
	// Other is the name of all others, and of those whose names cannot be printed.
	Other = pushheaders.Overflow
	// LogInterval is the time between two lines about one cluster.
	LogInterval = time.Hour
)

// Shortages choose the name by which points over a limit are counted, and when that is worth a
// line of the log. Clusters' names are easily made up, so both are bounded. The zero value
// is ready, and safe for concurrent use.
type Shortages struct {
	mu    sync.Mutex
	noted map[string]time.Time // by name, the last line about it
}

// Note returns the name in which points of a cluster are counted, and whether to log
// them now.
func (b *Shortages) Note(cluster string, now time.Time) (name string, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	name = cluster
	last, known := b.noted[name]
	if !known && (len(b.noted) >= MaxClusters || (name != "" && !pushheaders.ValidName(name))) {
		name = Other
		last, known = b.noted[name]
	}
	if known && now.Sub(last) < LogInterval {
		return name, false
	}
	if b.noted == nil {
		b.noted = map[string]time.Time{}
	}
	b.noted[strings.Clone(name)] = now
	return name, true
}
