// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"time"
	"unsafe"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/nodescore"
)

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
	for i := range n.models.told {
		sum += int(unsafe.Sizeof(n.models.told[i])) + len(n.models.told[i].product)
	}
	for _, of := range [][]string{n.named, n.peers} {
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
func (a *agent) names(id nodeKey, peers []string) int {
	sum := len(id.cluster) + len(id.node)
	for _, s := range peers {
		sum += 3 * len(s) // of named, peers and the group
	}
	for _, s := range a.models {
		sum += 2 * len(s)
	}
	return sum
}

// lacking counts readings that found no room, and says once an hour in whose name.
func (a *agent) lacking(ctx context.Context, cluster string, readings int, now time.Time) {
	a.rejects.addN(ctx, errAgentBytes, int64(readings))
	if name, tell := a.short.Note(cluster, now); tell {
		a.logger.Warn("Nodes or GPUs of a cluster are not scored: there is no room for them in `max_bytes`.", zap.String("cluster", name))
	}
}
