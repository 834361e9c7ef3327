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
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
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
	// minBytes has room for the names of some nodes.
	minBytes = 1 << 20
	// tablePercent and pendingPercent are of the process' memory, and pendingPoint is
	// about what a point takes that waits for a flush.
	tablePercent   = 25
	pendingPercent = 25
	pendingPoint   = 1 << 10
)

// The fates of points over a limit.
const (
	OverLimitDrop    = "drop"
	OverLimitForward = "forward"
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
	// MaxPendingPoints bounds what waits with FlushInterval, or is being sent. 0 is a
	// part of the memory, see memorybudget.
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
	// MaxNodes, MaxSeries, MaxSeriesPerNode and MaxBytes bound what is remembered. Of
	// MaxBytes 0 is a part of the memory.
	MaxNodes         int   `mapstructure:"max_nodes"`
	MaxSeries        int   `mapstructure:"max_series"`
	MaxSeriesPerNode int   `mapstructure:"max_series_per_node"`
	MaxBytes         int64 `mapstructure:"max_bytes"`
	// OverLimit is what becomes of points that find no room, which are counted:
	// OverLimitDrop or OverLimitForward.
	OverLimit string `mapstructure:"over_limit"`
	// ClusterShare is the part of the nodes, series, bytes and pending points that
	// the other clusters leave which one may hold.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// Deadbands say by a metric's name how far a forwarded value may be from the
	// true one. The first that matches counts.
	Deadbands []deadband.Rule `mapstructure:"deadbands"`
	// ThresholdExtension is the extension that hears when the next hop lacks
	// state. Without it, ResyncInterval alone brings that back.
	ThresholdExtension *component.ID `mapstructure:"threshold_extension"`
	// Exposition is the exposition extension that serves this processor's table to
	// Prometheus, and has receivers compare pushes with it.
	Exposition *component.ID `mapstructure:"exposition"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		// Prometheus takes a series for gone after 5 m (query.lookback-delta), and
		// prometheusexporter too (metric_expiration). Below half of that, one lost
		// resync is no gap.
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
		// A gRPC server takes 4 MiB by default, and refuses more for good.
		MaxBatchBytes: 1 << 20,
		// An exporter has no bound of its own.
		OverLimit: OverLimitDrop,
	}
}

// Validate implements xconfmap.Validator: it reports every mistake but those of `deadbands`.
func (c *Config) Validate() error {
	var errs []error
	if c.FlushInterval != 0 && c.FlushInterval < minFlush {
		errs = append(errs, fmt.Errorf("`flush_interval` is %v: must be at least %v, or 0 for none", c.FlushInterval, minFlush))
	}
	if c.MaxBatchBytes < minBatchBytes {
		errs = append(errs, fmt.Errorf("`max_batch_bytes` is %d: must be at least %d, the size of a report of a few GPUs", c.MaxBatchBytes, minBatchBytes))
	}
	if c.MaxPendingPoints < 0 {
		errs = append(errs, fmt.Errorf("`max_pending_points` is %d: must be positive, or 0 for %d %% of the memory", c.MaxPendingPoints, pendingPercent))
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
	if c.MaxBytes != 0 && c.MaxBytes < minBytes {
		errs = append(errs, fmt.Errorf("`max_bytes` is %d: must be at least %d, or 0 for %d %% of the memory", c.MaxBytes, minBytes, tablePercent))
	}
	if c.OverLimit != OverLimitDrop && c.OverLimit != OverLimitForward {
		errs = append(errs, fmt.Errorf("`over_limit` is %q: must be %q or %q", c.OverLimit, OverLimitDrop, OverLimitForward))
	}
	return errors.Join(errs...)
}

// MemoryBytes implements memorybudget.Holder: the table, and what waits for a flush.
func (c *Config) MemoryBytes() int64 {
	if c.FlushInterval == 0 {
		return c.bytes()
	}
	return c.bytes() + int64(c.pendingPoints())*pendingPoint
}

// bytes are those of the table.
func (c *Config) bytes() int64 {
	if c.MaxBytes != 0 {
		return c.MaxBytes
	}
	return memorybudget.Percent(tablePercent)
}

// pendingPoints are those of the buffer.
func (c *Config) pendingPoints() int {
	if c.MaxPendingPoints != 0 {
		return c.MaxPendingPoints
	}
	return int(memorybudget.Percent(pendingPercent) / pendingPoint)
}

// limit is the value of a bound of the table.
func (c *Config) limit(l statetable.Limit) int64 {
	switch l {
	case statetable.LimitNodes:
		return int64(c.MaxNodes)
	case statetable.LimitSeries:
		return int64(c.MaxSeries)
	case statetable.LimitNodeSeries:
		return int64(c.MaxSeriesPerNode)
	case statetable.LimitBytes:
	}
	return c.bytes()
}
