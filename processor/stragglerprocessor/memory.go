// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"context"
	"errors"
	"time"
	"unsafe"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/collective"
	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
)

// slotBytes are what a slot of the engine takes at most. A node has 1.6 kB with all of its
// signals, and a third of a level, since three nodes make one; a group has less than two
// slots. Their texts are bounded. A test measures what all take.
const (
	slotBytes = 2200
	// minBytes has room for some hundred nodes.
	minBytes = 1 << 20
)

// memoryPercent is of the process' memory.
func (c *Config) memoryPercent() int64 {
	if c.Mode == modeGateway {
		return 4
	}
	return 8
}

// MemoryBytes implements memorybudget.Holder.
func (c *Config) MemoryBytes() int64 {
	return cmp.Or(c.MaxBytes, memorybudget.Percent(c.memoryPercent()))
}

// bounded is the engine's configuration with no more slots than the memory has room for.
func (c *Config) bounded() straggler.Config {
	e := c.engine()
	e.MaxNodes = min(e.MaxNodes, int(c.MemoryBytes()/slotBytes))
	return e
}

// rejected counts a point of a cluster, and logs once an hour that the cluster has no
// room left.
func (o *observer) rejected(ctx context.Context, cluster string, err error, now time.Time) {
	o.rejects.add(ctx, err)
	if !errors.Is(err, fairshare.ErrFull) && !errors.Is(err, collective.ErrTooMany) {
		return
	}
	if name, due := o.short.Note(cluster, now); due {
		o.log.Warn("Nodes of a cluster are not compared: there is no room for them.",
			zap.String("cluster", name), zap.String("reason", reasons[err]))
	}
}

var errAgentBytes = errors.New("no memory left for nodes, or for more GPUs of a node")

// nodeOverhead is of the map, and of what the runtime rounds up. emptyBytes are those of a
// node without a reading.
const (
	nodeOverhead = 256
	emptyBytes   = int(unsafe.Sizeof(agentNode{})+unsafe.Sizeof(nodescore.Node{})) + nodeOverhead
)

// size is what a node takes.
func (n *agentNode) size() int {
	sum := int(unsafe.Sizeof(*n)) + nodeOverhead + len(n.cluster) + len(n.node) + len(n.group) + len(n.models.name) + n.score.Bytes()
	for i := range n.models.seen {
		sum += int(unsafe.Sizeof(n.models.seen[i])) + len(n.models.seen[i].product)
	}
	for _, of := range [][]string{n.named, n.labels} {
		for _, s := range of {
			sum += int(unsafe.Sizeof(s)) + len(s)
		}
	}
	return sum
}

// keep counts a node as it is now; a node that is gone has nothing.
func (a *agent) keep(n *agentNode, size int) {
	if more := size - n.bytes; more > 0 {
		a.bytes.Hold(n.cluster, more)
	} else {
		a.bytes.Give(n.cluster, -more)
	}
	n.bytes = size
}

// names is at most what the texts of a report take that name a node, its peers and models.
func (a *agent) names(id nodeKey, labels []string) int {
	sum := len(id.cluster) + len(id.node)
	for _, s := range labels {
		sum += 3 * len(s) // of named, peers and the group
	}
	for _, s := range a.models {
		sum += 2 * len(s)
	}
	return sum
}

// rejectForMemory counts readings that found no room, and logs their cluster once an hour.
func (a *agent) rejectForMemory(ctx context.Context, cluster string, readings int, now time.Time) {
	a.rejects.addN(ctx, errAgentBytes, int64(readings))
	if name, due := a.short.Note(cluster, now); due {
		a.logger.Warn("Nodes or GPUs of a cluster are not scored: there is no room for them in `max_bytes`.", zap.String("cluster", name))
	}
}
