// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func TestHolders(t *testing.T) {
	s := New(Config{MaxNodes: 4, MaxBytes: 1 << 20, Retention: time.Hour})
	n, err := s.Node("c", "n", epoch)
	require.NoError(t, err)
	a, b := addGPU(t, n, "GPU-a"), addGPU(t, n, "GPU-b")
	empty := n.bytes
	hold := func(gpu int, h reading.Holder, on bool) { t.Helper(); require.NoError(t, n.SetHolder(gpu, h, on)) }
	of := func(gpu string) (list []string) {
		for _, h := range s.Holders("c", "n", gpu, 16) {
			list = append(list, h.String())
		}
		return list
	}
	job, pod := reading.Holder{Job: "12"}, reading.Holder{Pod: "p", Namespace: "ns", Container: "main"}
	hold(a, job, true)
	hold(a, pod, true)
	hold(b, reading.Holder{Job: "13"}, true)
	assert.Equal(t, []string{"namespace=ns pod=p container=main", "job=12"}, of("GPU-a"), "a job runs in a pod")
	assert.Equal(t, []string{"job=13"}, of("GPU-b"))
	assert.Equal(t, []string{"namespace=ns pod=p container=main", "job=12", "job=13"}, of(""), "those of the node")
	assert.Len(t, s.Holders("c", "n", "", 2), 2)
	assert.Empty(t, s.Holders("c", "m", "", 2))

	hold(b, job, true)
	assert.Equal(t, []string{"job=12"}, of("GPU-b"), "who holds it alone took it from another, whose end is lost")
	hold(b, reading.Holder{Job: "12", Shared: true}, true)
	hold(b, job, false)
	assert.Equal(t, []string{"job=12"}, of("GPU-b"), "the end of what it was before")
	hold(b, reading.Holder{Job: "12", Shared: true}, false)
	assert.Equal(t, of(""), of("GPU-b"), "nobody is known to hold it")
	hold(a, reading.Holder{}, true)
	hold(a, job, false)
	hold(a, pod, false)
	assert.Empty(t, of(""))

	at := n.bytes
	for i := range 3 * reading.MaxHolders {
		hold(a, reading.Holder{Job: fmt.Sprintf("job-%d", i)}, true)
	}
	assert.Equal(t, []string{"job=job-383"}, of("GPU-a"))
	assert.Less(t, n.bytes-at, 40, "jobs that went are not paid for")
	for i := range reading.MaxHolders {
		err = n.SetHolder(b, reading.Holder{Pod: strconv.Itoa(i), Shared: true}, true)
	}
	require.ErrorIs(t, err, ErrTooManyDevices)
	assert.Greater(t, n.bytes, empty)
}
