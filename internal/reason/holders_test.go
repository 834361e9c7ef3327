// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func TestHolders(t *testing.T) {
	s := New(Config{MaxNodes: 4, MaxBytes: 16 << 10, Retention: time.Hour})
	n, err := s.Node("c", "n", epoch)
	require.NoError(t, err)
	a, b := addGPU(t, n, "GPU-a"), addGPU(t, n, "GPU-b")
	empty := n.bytes
	require.NoError(t, n.SetHolder(a, reading.Holder{Job: "12", Shared: true}, true))
	require.NoError(t, n.SetHolder(a, reading.Holder{Job: "13", Shared: true}, true))
	require.NoError(t, n.SetHolder(b, reading.Holder{Job: "12"}, true))
	assert.Equal(t, []reading.Holder{{Job: "12"}}, s.Holders("c", "n", "GPU-b", 16))
	assert.Len(t, s.Holders("c", "n", "GPU-c", 16), 2, "those of the node, each once")
	assert.Len(t, s.Holders("c", "n", "", 1), 1)
	assert.Empty(t, s.Holders("c", "m", "", 2))
	n.forget(ofGPU, a)
	require.NoError(t, n.SetHolder(b, reading.Holder{Job: "12"}, false))
	assert.Empty(t, s.Holders("c", "n", "", 16))
	assert.Equal(t, empty, n.bytes, "what went is not paid for")
	for i := 0; err == nil && i < 1000; i++ {
		err = n.SetHolder(a, reading.Holder{Job: strconv.Itoa(i), Shared: true}, true)
	}
	require.ErrorIs(t, err, ErrTooManyBytes)
}
