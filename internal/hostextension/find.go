// SPDX-License-Identifier: Apache-2.0

// Package hostextension finds the extensions that a configuration names.
package hostextension // import "github.com/gpu-collector/gpu-collector/internal/hostextension"

import (
	"fmt"

	"go.opentelemetry.io/collector/component"
)

// Find returns the extension id, a kind of extension, as a T. Its errors say what to
// configure. The key names the extension.
func Find[T any](host component.Host, key, kind string, id component.ID) (found T, err error) {
	ext, ok := host.GetExtensions()[id]
	if !ok {
		return found, fmt.Errorf("`%s` is %q, which `service::extensions` does not list", key, id)
	}
	if found, ok = ext.(T); !ok {
		return found, fmt.Errorf("`%s` is %q, must be a %s extension", key, id, kind)
	}
	return found, nil
}
