// SPDX-License-Identifier: Apache-2.0

package wirediffextension // import "github.com/gpu-collector/gpu-collector/extension/wirediffextension"

import (
	"context"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
)

// NewFactory returns the factory of the wire_diff extension.
func NewFactory() extension.Factory {
	return extension.NewFactory(metadata.Type, createDefaultConfig, create, metadata.ExtensionStability)
}

func create(_ context.Context, set extension.Settings, _ component.Config) (extension.Extension, error) {
	return newExtension(set)
}
