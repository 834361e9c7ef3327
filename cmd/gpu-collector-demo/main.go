// SPDX-License-Identifier: Apache-2.0

// Command gpu-collector-demo is the demo in a binary that builds in a short time.
package main

import (
	"go.opentelemetry.io/collector/confmap/provider/envprovider"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"

	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
	"github.com/gpu-collector/gpu-collector/sim/demo"
)

func main() {
	distro.Main("gpu-collector-demo", "The demo of gpu-collector", components, []distro.Command{demo.Command},
		envprovider.NewFactory(), yamlprovider.NewFactory())
}
