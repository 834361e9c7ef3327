// SPDX-License-Identifier: Apache-2.0

//go:build !enginebefore

package scenarios

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A leaf's fault is named in every run, and no random one is.
func TestTopologyFigures(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, TopologyFigures(&out, 1, 20))
	assert.Equal(t, 5, bytes.Count(out.Bytes(), []byte(" pass\n")), out.String())
	assert.NotContains(t, out.String(), "short")
}
