// SPDX-License-Identifier: Apache-2.0

package web

import (
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func get(t *testing.T, h http.Handler, target string, header ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func body(t *testing.T, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(text)
}

func TestServesEachFilePlainAndZipped(t *testing.T) {
	h := Handler()
	n := 0
	require.NoError(t, fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		if d.IsDir() {
			return nil
		}
		n++
		want, err := static.ReadFile(name)
		require.NoError(t, err)
		target := strings.TrimPrefix(name, "static")

		plain := get(t, h, target)
		assert.Equal(t, http.StatusOK, plain.StatusCode, target)
		assert.Equal(t, string(want), body(t, plain.Body), target)
		assert.Empty(t, plain.Header.Get("Content-Encoding"))
		assert.Equal(t, "no-cache", plain.Header.Get("Cache-Control"))
		if path.Ext(name) == ".js" {
			// Browsers run no module of another type.
			assert.Equal(t, "text/javascript; charset=utf-8", plain.Header.Get("Content-Type"))
		}

		zipped := get(t, h, target, "Accept-Encoding", "br, gzip")
		assert.Equal(t, "gzip", zipped.Header.Get("Content-Encoding"))
		assert.Equal(t, "Accept-Encoding", zipped.Header.Get("Vary"))
		z, err := gzip.NewReader(zipped.Body)
		require.NoError(t, err)
		assert.Equal(t, string(want), body(t, z), target)

		again := get(t, h, target, "If-None-Match", plain.Header.Get("ETag"))
		assert.Equal(t, http.StatusNotModified, again.StatusCode)
		assert.Empty(t, body(t, again.Body))
		return nil
	}))
	assert.Greater(t, n, 20)
	assert.Equal(t, body(t, get(t, h, "/index.html").Body), body(t, get(t, h, "/").Body))
	assert.Equal(t, http.StatusNotFound, get(t, h, "/js").StatusCode)
	assert.Equal(t, http.StatusNotFound, get(t, h, "/../web.go").StatusCode)
}

// TestEachPageNamesItsFiles: a page names no file that is absent or of another site, and
// each page can be reached from the fleet's.
func TestEachPageNamesItsFiles(t *testing.T) {
	fleet, err := static.ReadFile("static/index.html")
	require.NoError(t, err)
	pages, err := fs.Glob(static, "static/*.html")
	require.NoError(t, err)
	require.Greater(t, len(pages), 2)
	for _, name := range pages {
		page, err := static.ReadFile(name)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?:href|src)="([^"]+\.(?:js|css|svg|html))"`).FindAllStringSubmatch(string(page), -1) {
			_, err := static.Open("static/" + m[1])
			require.NoError(t, err, "%s names %s", name, m[1])
		}
		assert.NotRegexp(t, `(href|src)="(https?:)?//|<script>|<style|\son\w+=|style="`, string(page), "%s: the content security policy forbids it", name)
		if path.Base(name) != "index.html" {
			assert.Contains(t, string(fleet), `href="`+path.Base(name)+`"`)
		}
	}
}

// The page preloads the modules that its own modules import. It names no file that
// is absent, and no file of another site.
func TestPageNamesItsFiles(t *testing.T) {
	page, err := static.ReadFile("static/index.html")
	require.NoError(t, err)
	preloaded := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:href|src)="([^"]+\.(?:js|css|svg))"`).FindAllStringSubmatch(string(page), -1) {
		_, err := static.Open("static/" + m[1])
		require.NoError(t, err)
		preloaded[path.Base(m[1])] = true
	}
	assert.NotRegexp(t, `(href|src)="(https?:)?//|<script>|<style|\son\w+=|style="`, string(page), "the content security policy forbids it")

	imports := regexp.MustCompile(`(?m)^import .*'\./([^']+)';`)
	seen := map[string]bool{}
	var walk func(name string)
	walk = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		assert.True(t, preloaded[name], "index.html does not preload js/%s", name)
		text, err := static.ReadFile("static/js/" + name)
		require.NoError(t, err)
		for _, m := range imports.FindAllStringSubmatch(string(text), -1) {
			walk(m[1])
		}
	}
	walk("app.js")
	assert.Greater(t, len(seen), 10)
}
