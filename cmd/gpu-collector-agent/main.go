// SPDX-License-Identifier: Apache-2.0

// Command gpu-collector-agent is the lean distribution for GPU nodes.
package main

import (
	"github.com/spf13/cobra"
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"

	"github.com/gpu-collector/gpu-collector/internal/distro"
	"github.com/gpu-collector/gpu-collector/internal/doctor"
)

func main() {
	distro.SaveMemory()
	distro.Main("gpu-collector-agent", "OpenTelemetry Collector agent for GPU nodes", components, []*cobra.Command{doctor.Command(distro.Version)},
		envprovider.NewFactory(), fileprovider.NewFactory(), yamlprovider.NewFactory())
}
