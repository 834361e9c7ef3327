// SPDX-License-Identifier: Apache-2.0

package dcgmnamesprocessor

import "go.opentelemetry.io/collector/component"

// Config of the processor.
type Config struct {
	// Keep passes our own metrics on beside dcgm-exporter's.
	Keep bool `mapstructure:"keep"`
}

func createDefaultConfig() component.Config { return &Config{} }
