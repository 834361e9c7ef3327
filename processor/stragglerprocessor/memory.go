// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/slowlink"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// The memory of a gateway's comparison, in percent. Facts, communicators, jobs and labels are
// counted in bytes, nodes and groups by number: their texts are bounded, and they have no
// lists that clients fill.
const (
	factPercent  = 43
	linkPercent  = 7
	hangPercent  = 3
	nodePercent  = 31
	labelPercent = 3
	groupPercent = 100 - factPercent - linkPercent - hangPercent - nodePercent - labelPercent
)

// nodeBytes and groupBytes are what a node and a group take in the engine at most, with
// all of their signals. A test measures both.
const (
	nodeBytes  = 1800
	groupBytes = 11_000
	// minBytes has room for some hundred nodes.
	minBytes = 1 << 20
)

func (c *Config) bytes() int64 { return cmp.Or(c.MaxBytes, c.part().Bytes()) }

// bounded is the engine's configuration with no more nodes and groups than the memory
// has room for.
func (c *Config) bounded() straggler.Config {
	e, bytes := c.engine(), c.bytes()
	e.MaxNodes = min(e.MaxNodes, int(bytes*nodePercent/100/nodeBytes))
	e.MaxGroups = min(e.MaxGroups, int(bytes*groupPercent/100/groupBytes))
	e.MaxLabelBytes = int(bytes * labelPercent / 100)
	return e
}

// facts are the bounds of what explains a node.
func (c *Config) facts() reason.Config {
	return reason.Config{MaxNodes: c.Gateway.MaxNodes, MaxBytes: int(c.bytes() * factPercent / 100), Retention: c.Gateway.Retention}
}

// links is what is known of communicators.
func (c *Config) links() *slowlink.Book {
	return slowlink.New(c.PushInterval, int(c.bytes()*linkPercent/100))
}

// hangs is what is known of jobs that may stand still.
func (c *Config) hangs() *hang.Book { return hang.New(c.Hang, int(c.bytes()*hangPercent/100)) }

// noRoom are the errors that say that a bound is reached.
var noRoom = map[error]bool{
	straggler.ErrTooManyClusters: true, straggler.ErrTooManyGroups: true, straggler.ErrTooManyNodes: true,
	straggler.ErrClusterGroups: true, straggler.ErrClusterNodes: true, straggler.ErrTooManyLabels: true,
	reason.ErrTooManyNodes: true, reason.ErrClusterNodes: true, reason.ErrTooManyBytes: true,
	slowlink.ErrTooManyRanks: true, hang.ErrTooMany: true,
}

// rejected counts n points of a cluster, and says once an hour that the cluster has no
// room left.
func (o *observer) rejected(ctx context.Context, cluster string, err error, n int64, now time.Time) {
	o.rejects.addN(ctx, err, n)
	if !noRoom[err] {
		return
	}
	if name, tell := o.short.Note(cluster, now); tell {
		o.log.Warn("Nodes of a cluster are not compared or explained: there is no room for them.",
			zap.String("cluster", name), zap.String("reason", reasons[err]))
	}
}
