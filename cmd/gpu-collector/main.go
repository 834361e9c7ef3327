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

	"github.com/gpu-collector/gpu-collector/internal/distro"
	"github.com/gpu-collector/gpu-collector/internal/doctor"
	"github.com/gpu-collector/gpu-collector/internal/fleettop"
)

func main() {
	distro.Main("gpu-collector", "OpenTelemetry Collector distribution for GPU fleets", components, []*cobra.Command{fleettop.Command(), fleettop.LedgerCommand(), doctor.Command(distro.Version)},
		envprovider.NewFactory(), fileprovider.NewFactory(), httpprovider.NewFactory(),
		httpsprovider.NewFactory(), yamlprovider.NewFactory())
}
