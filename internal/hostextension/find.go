// SPDX-License-Identifier: Apache-2.0

// Package hostextension finds the extensions that a configuration names.
package hostextension // import "github.com/gpu-collector/gpu-collector/internal/hostextension"

import (
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/collector/component"
)

// Find returns the extension id, a kind of extension, as a T. Its errors say what to
// configure. The key names the extension.
func Find[T any](host component.Host, key, kind string, id component.ID) (found T, err error) {
	extensions := host.GetExtensions()
	ext, ok := extensions[id]
	if !ok {
		return found, fmt.Errorf("`%s` is %q, which `service::extensions` does not list%s", key, id, others[T](extensions))
	}
	if found, ok = ext.(T); !ok {
		return found, fmt.Errorf("`%s` is %q, must be an extension of type %s%s", key, id, kind, others[T](extensions))
	}
	return found, nil
}

// others names the extensions that would be right.
func others[T any](extensions map[component.ID]component.Component) string {
	var names []string
	for id, ext := range extensions {
		if _, ok := ext.(T); ok {
			names = append(names, id.String())
		}
	}
	if names == nil {
		return ""
	}
	slices.Sort(names)
	return ": there is " + strings.Join(names, ", ")
}
