// SPDX-License-Identifier: Apache-2.0

// Package web is the page of the fleet view: plain modules, embedded as they
// are, without a build step.
package web // import "github.com/gpu-collector/gpu-collector/extension/fleetviewextension/web"

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"net/http"
	"path"
	"time"

	"github.com/klauspost/compress/gzhttp"
)

//go:embed static
var static embed.FS

// types are not left to the machine's own table, which may know them otherwise.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// Handler serves the page, compressed if the client takes that. The page loads
// nothing from elsewhere.
func Handler() http.Handler {
	zip, err := gzhttp.NewWrapper(gzhttp.MinSize(0))
	if err != nil {
		// The one option is valid.
		panic(err)
	}
	return zip(http.HandlerFunc(serve))
}

func serve(w http.ResponseWriter, r *http.Request) {
	name := path.Clean(r.URL.Path)
	if name == "/" {
		name = "/index.html"
	}
	text, err := static.ReadFile("static" + name)
	if err != nil {
		http.NotFound(w, r)
		return
	}
	sum := sha256.Sum256(text)
	head := w.Header()
	if mime := types[path.Ext(name)]; mime != "" {
		head.Set("Content-Type", mime)
	}
	// A browser asks each time and mostly gets a 304: after an upgrade of the binary no old
	// module meets a new one.
	head.Set("Cache-Control", "no-cache")
	head.Set("ETag", `"`+hex.EncodeToString(sum[:8])+`"`)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(text))
}
