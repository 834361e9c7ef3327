// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReferenceIsWhatTheCodeHas: every key has a sentence, and the code gives the
// document in the tree.
func TestReferenceIsWhatTheCodeHas(t *testing.T) {
	text, err := reference("../..")
	require.NoError(t, err)
	have, err := os.ReadFile("../../docs/configuration.md")
	require.NoError(t, err)
	assert.Equal(t, string(have), string(text), "run make generate")
	for _, line := range []string{
		"- `collection_interval` `10s`: ", "- `gateway::retention` `1h`: ", "- `table::metrics[]::column` *text*: ", "- `gateway::quorum` `5`: ", "- `gateway::k` `2.0`: ",
		"- `identity::foreign` `refuse`: `refuse` rejects a push that names another cluster or node. `overwrite` takes it as the client's own", "- `admission::retry_after::min` `1s`: ",
		"- `http` `endpoint: 127.0.0.1:8086`, `write_timeout: 30s`: ", "- `resource_attributes` all: ", "; keys as of `health::rules`\n",
	} {
		assert.Contains(t, string(text), line)
	}
}

// TestEveryComponentIsInIt: a component that is added is documented.
func TestEveryComponentIsInIt(t *testing.T) {
	files, err := filepath.Glob("../../*/*/metadata.yaml")
	require.NoError(t, err)
	var have []string
	for _, c := range components {
		have = append(have, c.dir)
	}
	for _, f := range files {
		assert.Contains(t, have, strings.TrimPrefix(filepath.ToSlash(filepath.Dir(f)), "../../"))
	}
	assert.Len(t, have, len(files))
}
