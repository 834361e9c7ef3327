// SPDX-License-Identifier: Apache-2.0

package nodesignal

import (
	"bytes"
	"encoding/gob"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSavedSignalsAreNames, so that another order of the signals reads them rightly.
func TestSavedSignalsAreNames(t *testing.T) {
	type saved struct {
		Of  map[Signal]int
		Set Set
	}
	want := saved{map[Signal]int{CPU: 1, Score: 2}, SetOf(Throughput) | SetOf(Memory)}
	var file bytes.Buffer
	require.NoError(t, gob.NewEncoder(&file).Encode(want))
	for _, name := range []string{"cpu", "score", "throughput memory"} {
		assert.Contains(t, file.String(), name)
	}
	other := bytes.Replace(file.Bytes(), []byte("cpu"), []byte("gpu"), 1)
	var got saved
	require.NoError(t, gob.NewDecoder(&file).Decode(&got))
	assert.Equal(t, want, got)
	require.ErrorContains(t, gob.NewDecoder(bytes.NewReader(other)).Decode(&got), `unknown signal "gpu"`)
}
