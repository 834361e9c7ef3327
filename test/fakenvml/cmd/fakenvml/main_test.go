// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out bytes.Buffer
	require.ErrorContains(t, run(&out, "", "h100", 8), "-out is missing")
	require.ErrorContains(t, run(&out, t.TempDir(), "h100", 0), "-gpus is 0")
	require.ErrorContains(t, run(&out, t.TempDir(), "h100", 65), "-gpus is 65")

	dir := t.TempDir()
	require.NoError(t, run(&out, dir, "h100", 3))
	assert.FileExists(t, filepath.Join(dir, "libnvidia-ml.so.1"))
	assert.FileExists(t, filepath.Join(dir, "state"))
	assert.Contains(t, out.String(), "export FAKENVML_STATE="+filepath.Join(dir, "state"))
}
