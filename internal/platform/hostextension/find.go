// SPDX-License-Identifier: Apache-2.0

// Package hostextension finds the extensions that a configuration names.
package hostextension // import "github.com/gpu-collector/gpu-collector/internal/platform/hostextension"

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
)

// Find returns the extension id, a kind of extension, as a T. Its errors name what to
// configure. The key names the extension.
func Find[T any](host component.Host, key, kind string, id component.ID) (found T, err error) {
	extensions := host.GetExtensions()
	ext, listed := extensions[id]
	found, ok := ext.(T)
	if ok {
		return found, nil
	}
	var right []string
	for other, ext := range extensions {
		if _, ok := ext.(T); ok {
			right = append(right, other.String())
		}
	}
	return found, Wrong(key, kind, id, listed, right)
}

// Wrong is the error of a key that names an extension of another kind, or one that the service
// does not list. It names those that would be right.
func Wrong(key, kind string, id component.ID, listed bool, right []string) error {
	wrong := "which `service::extensions` does not list"
	if listed {
		wrong = "must be an extension of type " + kind
	}
	if len(right) > 0 {
		slices.Sort(right)
		wrong += ": there is " + strings.Join(right, ", ")
	}
	return fmt.Errorf("`%s` is %q, %s", key, id, wrong)
}
