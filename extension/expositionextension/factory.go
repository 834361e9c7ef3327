// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpu-collector/gpu-collector/extension/expositionextension/internal/metadata"
)

// NewFactory returns the factory of the exposition extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, create, metadata.ExtensionStability)
}

func create(_ context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	return newExtension(set, cfg.(*Config)), nil
}
