// SPDX-License-Identifier: Apache-2.0

// Command gpu-collector is the full distribution: agent, shard and gateway.
package main

import (
	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/httpprovider"
	"go.opentelemetry.io/collector/confmap/provider/httpsprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/otelcol"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleettop"
	"github.com/gpu-collector/gpu-collector/internal/node/check/gather"
	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
	"github.com/gpu-collector/gpu-collector/internal/platform/grpczstd"
	"github.com/gpu-collector/gpu-collector/internal/platform/reload"
	"github.com/gpu-collector/gpu-collector/sim/demo"
)

func main() {
	grpczstd.Register() // bounds the memory that a message may ask for
	distro.Main("gpu-collector", "OpenTelemetry Collector distribution for GPU fleets", components, []distro.Command{reload.Command, gather.Command, top, demo.Command},
		envprovider.NewFactory(), fileprovider.NewFactory(), httpprovider.NewFactory(),
		httpsprovider.NewFactory(), yamlprovider.NewFactory())
}

func top(otelcol.CollectorSettings) *cobra.Command { return fleettop.Command() }
