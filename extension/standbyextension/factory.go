// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpu-collector/gpu-collector/extension/standbyextension/internal/metadata"
)

// NewFactory returns the factory of the standby extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig,
		func(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
			return newStandby(set, cfg.(*Config))
		}, metadata.ExtensionStability)
}
