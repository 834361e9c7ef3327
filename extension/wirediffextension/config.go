// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"errors"
	"fmt"
	"strings"
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
)

// What is forwarded of a report in which something changed.
const (
	GranularityPoint = "point" // what changed
	GranularityNode  = "node"  // all of the node's points in the report
)

// Config of the wire_diff extension. The keys that the diff processor has too
// mean the same.
type Config struct {
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
	// ClusterShare is the part of the nodes and series that the other clusters
	// leave which one may hold.
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
	// FlushInterval is here to be refused: a push is answered for itself.
	FlushInterval time.Duration `mapstructure:"flush_interval"`
	// MetricsURLPath is the receiver's `metrics_url_path`.
	MetricsURLPath string `mapstructure:"metrics_url_path"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		// As of the diff processor, see there.
		ResyncInterval:   2 * time.Minute,
		TTL:              10 * time.Minute,
		VanishedAfter:    3 * time.Minute,
		MaxNodes:         200_000,
		MaxSeries:        8_000_000,
		MaxSeriesPerNode: 16_384,
		ClusterShare:     fairshare.Half,
		Granularity:      GranularityPoint,
		MetricsURLPath:   "/v1/metrics",
	}
}

// Validate reports every mistake.
func (c *Config) Validate() error {
	var errs []error
	if c.FlushInterval != 0 {
		errs = append(errs, fmt.Errorf("`flush_interval` is %v: must be 0, for a push is answered for itself; use the diff processor for batches", c.FlushInterval))
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
	if !strings.HasPrefix(c.MetricsURLPath, "/") {
		errs = append(errs, fmt.Errorf("`metrics_url_path` is %q: must begin with / and be what the receiver's `metrics_url_path` is", c.MetricsURLPath))
	}
	return errors.Join(errs...)
}
