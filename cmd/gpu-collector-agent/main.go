// SPDX-License-Identifier: Apache-2.0

// Command gpu-collector-agent is the lean distribution for GPU nodes.
package main

import (
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"

	"github.com/gpu-collector/gpu-collector/internal/node/check/gather"
	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
	"github.com/gpu-collector/gpu-collector/internal/platform/grpczstd"
	"github.com/gpu-collector/gpu-collector/internal/platform/reload"
)

func main() {
	grpczstd.Register() // bounds the memory that a message may ask for
	distro.SaveMemory()
	distro.Main("gpu-collector-agent", "OpenTelemetry Collector agent for GPU nodes", components, []distro.Command{reload.Command, gather.Command},
		envprovider.NewFactory(), fileprovider.NewFactory(), yamlprovider.NewFactory())
}
