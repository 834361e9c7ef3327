// SPDX-License-Identifier: Apache-2.0

package diffprocessor // import "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

import (
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
)

const (
	// minFlush keeps the flusher from being busy.
	minFlush = 10 * time.Millisecond
	// minBatchBytes keeps the batches from being as many as the points.
	minBatchBytes = 16 << 10
)

// What is forwarded of a report.
const (
	ForwardChanges = "changes"
	ForwardAll     = "all"
)

// The fates of points over a limit.
const (
	OverLimitDrop    = "drop"
	OverLimitForward = "forward"
)

// Config of the diff processor.
type Config struct {
	// Table is the exposition extension that keeps the last values, and has the bounds.
	Table component.ID `mapstructure:"table"`
	// Forward is ForwardChanges, or ForwardAll: reports go on as they are, and the table
	// only remembers them.
	Forward string `mapstructure:"forward"`
	// FlushInterval is the period at which what changed is forwarded, last values
	// of all nodes together. What has none, such as deltas and histograms, does not wait.
	// Zero means with each report, whose sender then waits for the next component.
	FlushInterval time.Duration `mapstructure:"flush_interval"`
	// MaxBatchBytes bounds what is forwarded at once with FlushInterval, as
	// uncompressed OTLP.
	MaxBatchBytes int `mapstructure:"max_batch_bytes"`
	// ResyncInterval is the period after which all series of a node are
	// forwarded again, changed or not. Zero means never.
	ResyncInterval time.Duration `mapstructure:"resync_interval"`
	// HeartbeatInterval is the least time between two heartbeats of a node.
	// Zero means one with each report.
	HeartbeatInterval time.Duration `mapstructure:"heartbeat_interval"`
	// VanishedAfter is how long a node goes on reporting without a series until
	// a point without a value is forwarded for it. Zero means never.
	VanishedAfter time.Duration `mapstructure:"vanished_after"`
	// OverLimit is what becomes of points that find no room, which are counted:
	// OverLimitDrop or OverLimitForward.
	OverLimit string `mapstructure:"over_limit"`
	// Deadbands set by a metric's name how far a forwarded value may be from the
	// true one. The first that matches counts.
	Deadbands []lastvalue.Band `mapstructure:"deadbands"`
	// ThresholdExtension is the extension that is notified when the next hop lost
	// state. Without it, ResyncInterval alone brings that back.
	ThresholdExtension *component.ID `mapstructure:"threshold_extension"`
	_                  struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		Forward: ForwardChanges,
		// Prometheus takes a series for gone after 5 m (query.lookback-delta), and
		// prometheusexporter too (metric_expiration). Below half of that, one lost
		// resync is no gap.
		ResyncInterval: 2 * time.Minute,
		// Several intervals of the slowest usual source (1 m), and well before
		// Prometheus would give the series up by itself.
		VanishedAfter: 3 * time.Minute,
		// A gRPC server takes 4 MiB by default, and refuses more for good.
		MaxBatchBytes: 1 << 20,
		// An exporter has no bound of its own.
		OverLimit: OverLimitDrop,
	}
}

// Validate implements xconfmap.Validator: it reports every mistake but those of `deadbands`.
func (c *Config) Validate() error {
	return errors.Join(
		mistake.If(c.Table == component.ID{}, "`table` is not set: must be the exposition extension that keeps the last values"),
		mistake.If(c.Forward != ForwardChanges && c.Forward != ForwardAll,
			"`forward` is %q: must be %q or %q", c.Forward, ForwardChanges, ForwardAll),
		mistake.If(c.Forward == ForwardAll && (c.FlushInterval != 0 || c.ThresholdExtension != nil),
			"`forward` is \"all\": `flush_interval` and `threshold_extension` are for changes"),
		mistake.If(c.FlushInterval != 0 && c.FlushInterval < minFlush,
			"`flush_interval` is %v: must be at least %v, or 0 for none", c.FlushInterval, minFlush),
		mistake.If(c.MaxBatchBytes < minBatchBytes,
			"`max_batch_bytes` is %d: must be at least %d, the size of a report of a few GPUs", c.MaxBatchBytes, minBatchBytes),
		mistake.If(c.ResyncInterval < 0, "`resync_interval` is %v: must be positive, or 0 for never", c.ResyncInterval),
		mistake.If(c.HeartbeatInterval < 0,
			"`heartbeat_interval` is %v: must be positive, or 0 for one with each report", c.HeartbeatInterval),
		mistake.If(c.VanishedAfter < 0, "`vanished_after` is %v: must be positive, or 0 for never", c.VanishedAfter),
		mistake.If(c.OverLimit != OverLimitDrop && c.OverLimit != OverLimitForward,
			"`over_limit` is %q: must be %q or %q", c.OverLimit, OverLimitDrop, OverLimitForward))
}

// settings are the processor's for its table.
func (c *Config) settings() lastvalue.Settings {
	return lastvalue.Settings{
		DropOver:          c.OverLimit == OverLimitDrop && c.Forward == ForwardChanges,
		VanishedAfter:     c.VanishedAfter,
		ResyncInterval:    c.ResyncInterval,
		HeartbeatInterval: c.HeartbeatInterval,
		Collect:           c.FlushInterval > 0,
		Watch:             c.Forward == ForwardAll,
		Bands:             c.Deadbands,
	}
}
