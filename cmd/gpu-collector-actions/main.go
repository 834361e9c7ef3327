// SPDX-License-Identifier: Apache-2.0

// Command gpu-collector-actions is the only distribution that may write to a cluster.
package main

import (
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"

	"github.com/gpu-collector/gpu-collector/internal/distro"
)

func main() {
	distro.Main("gpu-collector-actions", "OpenTelemetry Collector that acts on verdicts about GPU nodes", components, nil,
		envprovider.NewFactory(), fileprovider.NewFactory(), yamlprovider.NewFactory())
}
