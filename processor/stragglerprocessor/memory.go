// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/collective"
	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// The memory of a gateway's comparison, in percent. Nodes and groups are counted: their texts
// are bounded, and they have no lists that clients fill.
const (
	nodePercent  = 85
	groupPercent = 100 - nodePercent
)

// nodeBytes and groupBytes are what a node and a group take in the engine at most, with
// all of their signals: 1.6 kB of a node, and a third of a level, since three nodes make
// one. A test measures what all take.
const (
	nodeBytes  = 2200
	groupBytes = 4000
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

// bounded is the engine's configuration with no more nodes and groups than the memory
// has room for.
func (c *Config) bounded() straggler.Config {
	e, bytes := c.engine(), c.MemoryBytes()
	e.MaxNodes = min(e.MaxNodes, int(bytes*nodePercent/100/nodeBytes))
	e.MaxGroups = min(e.MaxGroups, int(bytes*groupPercent/100/groupBytes))
	return e
}

// noRoom are the errors that say that a bound is reached.
var noRoom = map[error]bool{
	fairshare.ErrTooManyClusters: true, fairshare.ErrTooManyGroups: true, fairshare.ErrTooManyNodes: true,
	fairshare.ErrClusterGroups: true, fairshare.ErrClusterNodes: true,
	collective.ErrTooMany: true,
}

// rejected counts n points of a cluster, and says once an hour that the cluster has no
// room left.
func (o *observer) rejected(ctx context.Context, cluster string, err error, n int64, now time.Time) {
	o.rejects.addN(ctx, err, n)
	if !noRoom[err] {
		return
	}
	if name, tell := o.short.Note(cluster, now); tell {
		o.log.Warn("Nodes of a cluster are not compared: there is no room for them.",
			zap.String("cluster", name), zap.String("reason", reasons[err]))
	}
}
