// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import "go.opentelemetry.io/collector/component"

// Config of the wire_diff extension: it has no settings. Those of the diff processor
// that names it as its `front_door` count.
type Config struct {
	_ struct{}
}

func createDefaultConfig() component.Config { return &Config{} }
