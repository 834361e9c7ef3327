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
	at      time.Time
	reasons []uint8 // a bit per refusal, by metric; of a node
}

// First reports whether a refusal is new.
func (c *Complaints) First(cluster, node string, m *Metric, why Refusal, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, begins := c.note(about{cluster, node, ""}, now)
	if known == nil {
		return false
	}
	if begins {
		known.reasons = make([]uint8, len(catalogue))
	}
	bit := uint8(1) << why
	first := known.reasons[m.index]&bit == 0
	known.reasons[m.index] |= bit
	return first
}

// Once reports whether a complaint about a whole cluster is new.
func (c *Complaints) Once(cluster, complaint string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, begins := c.note(about{cluster, "", complaint}, now)
	return begins
}

// note returns the complaint, nil where a new one finds no slot.
func (c *Complaints) note(of about, now time.Time) (known *complaint, begins bool) {
	if known = c.noted[of]; known != nil {
		return known, false
	}
	if c.slots == nil {
		c.noted = make(map[about]*complaint)
		c.slots = fairshare.New[string](maxComplaints, fairshare.Half)
	}
	of.cluster, of.node = strings.Clone(of.cluster), strings.Clone(of.node)
	for !c.slots.TakeAll(of.cluster, 1) {
		if now.Sub(c.swept) < memory/24 { // it was swept for nothing
			return nil, false
		}
		c.swept = now
		maps.DeleteFunc(c.noted, func(of about, known *complaint) bool {
			old := now.Sub(known.at) >= memory
			if old {
				c.slots.Give(of.cluster, 1)
			}
			return old
		})
	}
	known = &complaint{at: now}
	c.noted[of] = known
	return known, true
}
