// SPDX-License-Identifier: Apache-2.0

// Package web is the page of the fleet view: plain modules, embedded as they
// are, without a build step.
package web // import "github.com/gpu-collector/gpu-collector/extension/fleetviewextension/web"

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
)

//go:embed static
var static embed.FS

// file is one of the page's, as it is sent.
type file struct {
	plain, zipped []byte
	mime, etag    string
}

// types are not left to the machine's own table, which may know them otherwise.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// Handler serves the page, compressed for who takes that. It loads nothing from
// elsewhere.
func Handler() http.Handler {
	return &handler{files: sync.OnceValue(load)}
}

type handler struct{ files func() map[string]*file }

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(path.Clean(r.URL.Path), "/")
	if name == "" {
		name = "index.html"
	}
	f, ok := h.files()[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	head := w.Header()
	head.Set("Content-Type", f.mime)
	// A browser asks each time and is mostly told that nothing is new: after an
	// upgrade of the binary no old module meets a new one.
	head.Set("Cache-Control", "no-cache")
	head.Set("ETag", f.etag)
	head.Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("If-None-Match"), f.etag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := f.plain
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		head.Set("Content-Encoding", "gzip")
		body = f.zipped
	}
	head.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method != http.MethodHead {
		// The client is gone when this fails.
		_, _ = w.Write(body)
	}
}

// acceptsGzip reports whether the encoding is named and not refused with q=0
// (RFC 9110, section 12.5.3).
func acceptsGzip(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(part, ";")
		if !strings.EqualFold(strings.TrimSpace(name), "gzip") {
			continue
		}
		q, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q=")
		weight, err := strconv.ParseFloat(q, 64)
		return !ok || err == nil && weight > 0
	}
	return false
}

func load() map[string]*file {
	files := map[string]*file{}
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := static.ReadFile(name)
		if err != nil {
			return err
		}
		var zipped bytes.Buffer
		z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		if err != nil {
			return err
		}
		if _, err := z.Write(text); err != nil {
			return err
		}
		if err := z.Close(); err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		f := &file{plain: text, zipped: zipped.Bytes(), etag: `"` + hex.EncodeToString(sum[:8]) + `"`, mime: types[path.Ext(name)]}
		if f.mime == "" {
			f.mime = "text/plain; charset=utf-8"
		}
		files[strings.TrimPrefix(name, "static/")] = f
		return nil
	})
	if err != nil {
		// All of it is embedded above and written to memory.
		panic(err)
	}
	return files
}
