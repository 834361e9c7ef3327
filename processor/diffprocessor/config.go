// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
)

const (
	// maxSeriesLimit keeps positions in the state table within 32 bits.
	maxSeriesLimit = 1_000_000_000
	// minTTL keeps the sweep, which runs four times per ttl, from being busy.
	minTTL = time.Second
)

// Config of the diff processor.
type Config struct {
	// ResyncInterval is the period after which all series of a node are
	// forwarded again, changed or not. Zero means never.
	ResyncInterval time.Duration `mapstructure:"resync_interval"`
	// HeartbeatInterval is the least time between two heartbeats of a node.
	// Zero means one with each report.
	HeartbeatInterval time.Duration `mapstructure:"heartbeat_interval"`
	// TTL is how long a node or a series that is not reported is remembered.
	TTL time.Duration `mapstructure:"ttl"`
	// MaxNodes and MaxSeries bound what is remembered. What goes over is
	// forwarded in full, and counted.
	MaxNodes  int `mapstructure:"max_nodes"`
	MaxSeries int `mapstructure:"max_series"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		// Below the 5 m after which Prometheus takes a series for gone
		// (query.lookback-delta), and below half of prometheusexporter's
		// metric_expiration (5 m), so that one lost resync is no gap.
		ResyncInterval: 2 * time.Minute,
		TTL:            10 * time.Minute,
		MaxNodes:       100_000,
		MaxSeries:      4_000_000,
	}
}

// Validate reports every mistake.
func (c *Config) Validate() error {
	var errs []error
	if c.ResyncInterval < 0 {
		errs = append(errs, fmt.Errorf("`resync_interval` is %v: must be positive, or 0 for never", c.ResyncInterval))
	}
	if c.HeartbeatInterval < 0 {
		errs = append(errs, fmt.Errorf("`heartbeat_interval` is %v: must be positive, or 0 for one with each report", c.HeartbeatInterval))
	}
	if c.TTL < minTTL {
		errs = append(errs, fmt.Errorf("`ttl` is %v: must be at least %v, and several times the interval of the reports", c.TTL, minTTL))
	}
	if c.MaxNodes < 1 {
		errs = append(errs, fmt.Errorf("`max_nodes` is %d: must be at least 1", c.MaxNodes))
	}
	if c.MaxSeries < 1 || c.MaxSeries > maxSeriesLimit {
		errs = append(errs, fmt.Errorf("`max_series` is %d: must be between 1 and %d", c.MaxSeries, maxSeriesLimit))
	}
	return errors.Join(errs...)
}
