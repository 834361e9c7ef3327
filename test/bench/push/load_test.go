// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"
	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// A fleet pushes as an agent does: compressed like it, and in the form that fleet_otlp
// compares without decoding. Without a change it differs by its times alone.
func TestReportsAreAnAgents(t *testing.T) {
	text, err := os.ReadFile("../../../configs/agent.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(text), "compression: ${env:GPU_COLLECTOR_COMPRESSION:-snappy}")
	l, err := newLoad(1, &harness.Collector{GRPC: "127.0.0.1:1", HTTP: "127.0.0.1:1"})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.close()) }()
	now := time.Now()
	l.now = func() time.Time { now = now.Add(time.Nanosecond); return now }
	differ := func(realistic bool) (bytes int) {
		a, err := l.next(0, false, 1)
		require.NoError(t, err)
		assert.True(t, otlp.NewEngine(lastvalue.Settings{TTL: time.Minute}).Reduce(clientidentity.Identity{}.Owns, slices.Clone(a)))
		b, err := l.next(0, realistic, 1)
		require.NoError(t, err)
		if len(a) != len(b) {
			return len(a)
		}
		for i := range a {
			if a[i] != b[i] {
				bytes++
			}
		}
		return bytes
	}
	assert.Greater(t, differ(true), differ(false))
}
