// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"embed"
	"io/fs"
	"net/http"
)

//go:embed docs
var docsFiles embed.FS

// docs serves the page that renders /openapi.json. It loads nothing from elsewhere.
func docs() http.Handler {
	files, err := fs.Sub(docsFiles, "docs")
	if err != nil {
		// The directory is embedded above.
		panic(err)
	}
	return http.FileServerFS(files)
}
