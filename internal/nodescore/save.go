// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// SaveVersion is that of Pack. Version 2 has when the peers were confirmed: in version 1 the
// age of their threshold is unknown, so that nobody is judged by it.
const SaveVersion = 2

// Pack writes or reads what a node has learnt of itself and of its peers: with it a node
// whose process restarted is judged from its first evaluation on. Readings and sums come
// anew. A value that cannot be is a mistake of the Coder.
func (n *Node) Pack(c *packed.Coder) {
	for _, b := range [...]*baseline{&n.rate, &n.score} {
		c.Float(&b.value)
		packed.Count(c, &b.n)
		c.Check(b.value >= 0)
	}
	for s := range n.used {
		packed.Count(c, &n.used[s])
		c.Check(int(n.used[s]) <= len(n.plan.measures[s].sources))
	}
	p := &n.peers
	packed.Int(c, &p.Version)
	for _, x := range [...]*float64{&p.Threshold, &p.Median, &p.Scale, &p.K, &p.Ref} {
		c.Float(x)
	}
	packed.Count(c, &p.Nodes)
	c.Bool(&p.QuorumMet)
	packed.Count(c, &p.TTL)
	if c.Version >= 2 {
		c.Time(&n.peersAt)
	}
	if c.Reads() && p.TTL > 0 {
		c.Check(p.Validate() == nil)
	}
}

// Kept returns what the gateway said last, for a process that has not heard it yet. Of
// signals nothing is kept, and it is never fresh. It is not known past Config.CachedTTL, nor
// where the clock was set back to before it.
func (n *Node) Kept(now time.Time) (peers threshold.Received, known bool) {
	age := now.Sub(n.peersAt)
	if !n.peers.QuorumMet || n.peersAt.IsZero() || age < 0 || age > n.cfg.CachedTTL {
		return threshold.Received{}, false
	}
	peers = threshold.Received{Value: n.peers, At: n.peersAt}
	peers.TTL, peers.Signals = -1, nil
	return peers, true
}

// Unknown reports whether there is nothing to keep of a node.
func (n *Node) Unknown() bool {
	return n.rate.n == 0 && n.score.n == 0 && n.peers.TTL == time.Duration(0)
}

// Calibrated reports whether the node has a baseline to judge itself by.
func (n *Node) Calibrated() bool { return n.score.n >= n.cfg.CalibrationSamples }
