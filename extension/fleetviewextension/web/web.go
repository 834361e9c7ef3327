// SPDX-License-Identifier: Apache-2.0

// Package web is the page of the fleet view.
package web // import "github.com/gpu-collector/gpu-collector/extension/fleetviewextension/web"

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed static
var files embed.FS

// Handler serves the page. It loads nothing from elsewhere.
func Handler() http.Handler {
	static, err := fs.Sub(files, "static")
	if err != nil {
		// The directory is embedded above.
		panic(err)
	}
	return http.FileServerFS(static)
}
