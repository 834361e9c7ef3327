// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/fairshare"
)

const (
	// maxSeriesLimit keeps positions in the state table within 32 bits.
	maxSeriesLimit = 1_000_000_000
	// minTTL keeps the sweep, which runs four times per ttl, from being busy.
	minTTL = time.Second
	// minFlush keeps the flusher from being busy.
	minFlush = 10 * time.Millisecond
	// minBatchBytes keeps the batches from being as many as the points.
	minBatchBytes = 16 << 10
)

// What is forwarded of a report in which something changed.
const (
	GranularityPoint = "point" // what changed
	GranularityNode  = "node"  // all of the node's points in the report
)

// Config of the diff processor.
type Config struct {
	// FlushInterval is the period at which what changed is forwarded, last values
	// of all nodes together. Zero means with each report, whose sender then waits
	// for the next component.
	FlushInterval time.Duration `mapstructure:"flush_interval"`
	// MaxBatchBytes bounds what is forwarded at once with FlushInterval, as
	// uncompressed OTLP.
	MaxBatchBytes int `mapstructure:"max_batch_bytes"`
	// MaxPendingPoints bounds what waits with FlushInterval, or is being sent.
	MaxPendingPoints int `mapstructure:"max_pending_points"`
	// ResyncInterval is the period after which all series of a node are
	// forwarded again, changed or not. Zero means never.
	ResyncInterval time.Duration `mapstructure:"resync_interval"`
	// HeartbeatInterval is the least time between two heartbeats of a node.
	// Zero means one with each report.
	HeartbeatInterval time.Duration `mapstructure:"heartbeat_interval"`
	// TTL is how long a node or a series that is not reported is remembered.
	TTL time.Duration `mapstructure:"ttl"`
	// VanishedAfter is how long a node goes on reporting without a series until
	// a point without a value is forwarded for it. Zero means never.
	VanishedAfter time.Duration `mapstructure:"vanished_after"`
	// MaxNodes, MaxSeries and MaxSeriesPerNode bound what is remembered. What
	// goes over is forwarded in full, and counted.
	MaxNodes         int `mapstructure:"max_nodes"`
	MaxSeries        int `mapstructure:"max_series"`
	MaxSeriesPerNode int `mapstructure:"max_series_per_node"`
	// ClusterShare is the part of the nodes, series and pending points that the
	// other clusters leave which one may hold.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// Deadbands say by a metric's name how far a forwarded value may be from the
	// true one. The first that matches counts.
	Deadbands []deadband.Rule `mapstructure:"deadbands"`
	// Granularity is what is forwarded when a point changed: GranularityPoint or
	// GranularityNode.
	Granularity string `mapstructure:"granularity"`
	// ThresholdExtension is the extension that hears when the next hop lacks
	// state. Without it, ResyncInterval alone brings that back.
	ThresholdExtension *component.ID `mapstructure:"threshold_extension"`
	// FrontDoor is the wire_diff extension that compares pushes with this processor's
	// table before they are decoded.
	FrontDoor *component.ID `mapstructure:"front_door"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		// Below the 5 m after which Prometheus takes a series for gone
		// (query.lookback-delta), and below half of prometheusexporter's
		// metric_expiration (5 m), so that one lost resync is no gap.
		ResyncInterval: 2 * time.Minute,
		TTL:            10 * time.Minute,
		// Several intervals of the slowest usual source (1 m), and well before
		// Prometheus would give the series up by itself.
		VanishedAfter: 3 * time.Minute,
		// A lone cluster holds half of the nodes and series.
		MaxNodes:     200_000,
		MaxSeries:    8_000_000,
		ClusterShare: fairshare.Half,
		// 16 GPUs of 7 MIG slices with 100 series each, and half as much again.
		MaxSeriesPerNode: 16_384,
		// Below the 4 MiB that a gRPC server takes by default, and of which more is
		// refused for good.
		MaxBatchBytes: 3 << 20,
		// Up to 2 GB at 0.6 to 1 kB a point, of which one cluster has half.
		MaxPendingPoints: 2_000_000,
		Granularity:      GranularityPoint,
	}
}

// Validate reports every mistake.
func (c *Config) Validate() error {
	var errs []error
	if c.FlushInterval != 0 && c.FlushInterval < minFlush {
		errs = append(errs, fmt.Errorf("`flush_interval` is %v: must be at least %v, or 0 for none", c.FlushInterval, minFlush))
	}
	if c.MaxBatchBytes < minBatchBytes {
		errs = append(errs, fmt.Errorf("`max_batch_bytes` is %d: must be at least %d, the size of a report of a few GPUs", c.MaxBatchBytes, minBatchBytes))
	}
	if c.MaxPendingPoints < 1 {
		errs = append(errs, fmt.Errorf("`max_pending_points` is %d: must be at least 1", c.MaxPendingPoints))
	}
	if c.ResyncInterval < 0 {
		errs = append(errs, fmt.Errorf("`resync_interval` is %v: must be positive, or 0 for never", c.ResyncInterval))
	}
	if c.HeartbeatInterval < 0 {
		errs = append(errs, fmt.Errorf("`heartbeat_interval` is %v: must be positive, or 0 for one with each report", c.HeartbeatInterval))
	}
	if c.TTL < minTTL {
		errs = append(errs, fmt.Errorf("`ttl` is %v: must be at least %v, and several times the interval of the reports", c.TTL, minTTL))
	}
	if c.VanishedAfter < 0 || c.VanishedAfter >= max(c.TTL, minTTL) {
		errs = append(errs, fmt.Errorf("`vanished_after` is %v: must be below `ttl` (%v), or 0 for never", c.VanishedAfter, c.TTL))
	}
	if c.MaxNodes < 1 {
		errs = append(errs, fmt.Errorf("`max_nodes` is %d: must be at least 1", c.MaxNodes))
	}
	if c.MaxSeries < 1 || c.MaxSeries > maxSeriesLimit {
		errs = append(errs, fmt.Errorf("`max_series` is %d: must be between 1 and %d", c.MaxSeries, maxSeriesLimit))
	}
	if !(c.ClusterShare > 0 && c.ClusterShare <= 1) { // also NaN
		errs = append(errs, fmt.Errorf("`cluster_share` is %v: must be in (0,1]", c.ClusterShare))
	}
	if c.MaxSeriesPerNode < 1 || c.MaxSeriesPerNode > statetable.MaxNodeSeries {
		errs = append(errs, fmt.Errorf("`max_series_per_node` is %d: must be between 1 and %d", c.MaxSeriesPerNode, statetable.MaxNodeSeries))
	}
	if c.Granularity != GranularityPoint && c.Granularity != GranularityNode {
		errs = append(errs, fmt.Errorf("`granularity` is %q: must be %q or %q", c.Granularity, GranularityPoint, GranularityNode))
	}
	for i := range c.Deadbands {
		if err := c.Deadbands[i].Check(); err != nil {
			errs = append(errs, fmt.Errorf("`deadbands[%d]`: %w", i, err))
		}
	}
	return errors.Join(errs...)
}
