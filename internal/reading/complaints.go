// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

const (
	// maxComplaints bounds the nodes and clusters that are remembered. A cluster has no
	// more than half of what the others leave: its mistakes silence nobody else's.
	maxComplaints = 2048
	// memory is how long a complaint keeps its place from another one.
	memory = 24 * time.Hour
)

// Complaints decides what is said about senders' mistakes: each once per node,
// metric and reason, and of so many nodes. The zero value is ready.
type Complaints struct {
	mu     sync.Mutex
	told   map[about]*complaint
	places *fairshare.Ledger[string]
	swept  time.Time
}

// about is a node, or what is wrong with a whole cluster.
type about struct{ cluster, node, complaint string }

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
