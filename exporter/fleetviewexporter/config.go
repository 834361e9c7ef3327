// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"errors"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

// Config of the exporter.
type Config struct {
	// Extension is the fleet_view extension that keeps and serves the views.
	Extension component.ID `mapstructure:"extension"`
	// DefaultCluster is the cluster of nodes that name none.
	DefaultCluster string `mapstructure:"default_cluster"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{Extension: component.MustNewID("fleet_view"), DefaultCluster: "default"}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	return errors.Join(
		mistake.If(c.Extension == (component.ID{}), "`extension` is empty, must name a fleet_view extension"),
		mistake.If(!pushheaders.ValidName(c.DefaultCluster),
			"`default_cluster` is %q, must be 1 to %d printable ASCII characters", c.DefaultCluster, pushheaders.MaxNameLength))
}
