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
	// more than half of what the others leave: its mistakes hide no others.
	maxComplaints = 2048
	// memory is how long a complaint keeps its slot.
	memory = 24 * time.Hour
)

// Complaints decides what is logged about senders' mistakes: each once per node,
// metric and reason, and of so many nodes. The zero value is ready.
type Complaints struct {
	mu    sync.Mutex
	noted map[about]*complaint
	slots *fairshare.Ledger[string]
	swept time.Time
}

// about is a node, or what is wrong with a whole cluster.
type about struct{ cluster, node, complaint string }

type complaint struct {
	cluster string
	at      time.Time
	reasons []uint8 // a bit per refusal, by metric; of a node
}

// First reports whether a refusal is new.
func (c *Complaints) First(cluster, node string, m *Metric, why Refusal, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.noted[about{cluster, node, ""}]
	if known == nil {
		if known = c.begin(cluster, now); known == nil {
			return false
		}
		known.reasons = make([]uint8, len(catalogue))
		c.noted[about{known.cluster, strings.Clone(node), ""}] = known
	}
	bit := uint8(1) << why
	first := known.reasons[m.index]&bit == 0
	known.reasons[m.index] |= bit
	return first
}

// begin takes a slot for a complaint of a cluster, nil where there is none.
func (c *Complaints) begin(cluster string, now time.Time) *complaint {
	if c.slots == nil {
		c.noted = make(map[about]*complaint)
		c.slots = fairshare.New[string](maxComplaints, fairshare.Half)
	}
	cluster = strings.Clone(cluster)
	for c.slots.Take(cluster, 1) == 0 {
		if now.Sub(c.swept) < memory/24 { // it was swept for nothing
			return nil
		}
		c.swept = now
		maps.DeleteFunc(c.noted, func(_ about, known *complaint) bool {
			old := now.Sub(known.at) >= memory
			if old {
				c.slots.Give(known.cluster, 1)
			}
			return old
		})
	}
	return &complaint{cluster: cluster, at: now}
}

// Once reports whether a complaint about a whole cluster is new.
func (c *Complaints) Once(cluster, complaint string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.noted[about{cluster, "", complaint}] != nil {
		return false
	}
	known := c.begin(cluster, now)
	if known == nil {
		return false
	}
	c.noted[about{known.cluster, "", complaint}] = known
	return true
}
