// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	room = regexp.MustCompile("`((?:cmd|internal|receiver|processor|exporter|extension|sim|pkg|test|helm)/[a-z0-9/-]+)`")
)

// TestLinksLead: every link of the documents leads to a file, every document
// is in the index, and the API's page has all its requests.
func TestLinksLead(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	index, err := os.ReadFile("../../docs/README.md")
	require.NoError(t, err)
	decisions, err := filepath.Glob("../../docs/decisions/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, decisions)
	list, err := os.ReadFile("../../docs/decisions/README.md")
	require.NoError(t, err)
	index = append(index, list...)
	files = append(files, decisions...)
	for _, f := range append(files, "../../README.md") {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(f), m[1]))
			require.NoError(t, err, "%s links to %s", f, m[1])
		}
		if name := filepath.Base(f); name != "README.md" {
			assert.Contains(t, string(index), "("+name+")")
		}
	}
	data, err := os.ReadFile("../../pkg/fleetclient/openapi.json")
	require.NoError(t, err)
	var doc struct{ Paths map[string]map[string]any }
	require.NoError(t, json.Unmarshal(data, &doc))
	api, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	for path, methods := range doc.Paths {
		for method := range methods {
			assert.Contains(t, string(api), "`"+strings.ToUpper(method)+" "+path+"`")
		}
	}
}

// TestArchitectureHasEveryRoom: the page stays short, a new package has its line
// in it, and each room that it names is there.
func TestArchitectureHasEveryRoom(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, strings.Count(string(text), "\n"), 80)
	for _, m := range room.FindAllStringSubmatch(string(text), -1) {
		assert.DirExists(t, "../../"+m[1])
	}
	for _, rooms := range []string{"internal", "receiver", "processor", "exporter", "extension", "sim"} {
		dirs, err := filepath.Glob("../../" + rooms + "/*")
		require.NoError(t, err)
		require.NotEmpty(t, dirs)
		for _, dir := range dirs {
			assert.Contains(t, string(text), "`"+rooms+"/"+filepath.Base(dir))
			if rooms == "internal" {
				assert.FileExists(t, dir+"/doc.go", "what the room decides, who calls it, what it must not know")
			}
		}
		if rooms == "internal" {
			assert.LessOrEqual(t, len(dirs), 9, "rooms that a newcomer has to know")
		}
	}
}
