// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThePageIsGenerated(t *testing.T) {
	have, err := os.ReadFile("../../docs/coming-from-dcgm-exporter.md")
	require.NoError(t, err)
	want, err := document(string(have))
	require.NoError(t, err)
	assert.Equal(t, want, string(have), "run make generate")
	_, err = document("no table")
	require.Error(t, err)
}
