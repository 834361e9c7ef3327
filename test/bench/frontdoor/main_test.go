// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/delta"
)

// What is pushed is what a node's agent would, and in the form that wire_diff
// compares without decoding.
func TestReports(t *testing.T) {
	simulated, err := newSimulated(3)
	require.NoError(t, err)
	random, err := newRandom()
	require.NoError(t, err)
	now := time.Now()
	for name, r := range map[string]reports{"simulated": simulated, "random": random} {
		seen := map[string]bool{}
		for node := range 3 {
			msg, err := r.next(node, now, nil)
			require.NoError(t, err)
			req := pmetricotlp.NewExportRequest()
			require.NoError(t, req.UnmarshalProto(msg))
			assert.GreaterOrEqual(t, req.Metrics().DataPointCount(), 320, name)
			wire := delta.NewWire(nil, false)
			assert.True(t, wire.Read(msg, now), name)
			seen[r.headers(node).Node] = true
			assert.Contains(t, string(msg), r.headers(node).Node)
			again, err := r.next(node, now.Add(time.Hour), nil)
			require.NoError(t, err)
			assert.NotEqual(t, msg, again, "another poll")
		}
		assert.Len(t, seen, 3, name)
	}
}

func TestKinds(t *testing.T) {
	all, err := kinds(&settings{nodes: 1})
	require.NoError(t, err)
	assert.Len(t, all, 7)
	some, err := kinds(&settings{nodes: 1, kinds: "snappy,zstd"})
	require.NoError(t, err)
	require.Len(t, some, 2)
	assert.Equal(t, "zstd", some[1].compression)
}

// The fleet needs as many cores as its reports in a second fill.
func TestPrint(t *testing.T) {
	var out bytes.Buffer
	k := &kind{name: "snappy", micros: []float64{900, 80, 100, 300, 500}, shard: &shard{onWire: new(counter)}}
	k.shard.points.Store(427)
	print(&out, k)
	assert.Contains(t, out.String(), "figure wire_front_door_reports_per_second_core 10000 reports/s limit 10000 pass\n")
	assert.Contains(t, out.String(), "figure shard_cores_for_50000_nodes 0.5 cores limit 1 pass\n")
	assert.Contains(t, out.String(), "figure wire_front_door_push_snappy 100 us\n")
	assert.Contains(t, out.String(), "figure wire_front_door_points_per_second_core 4270000 points/s limit 3200000 pass\n")
}

func TestAgentsCompressAsTheyDoHere(t *testing.T) {
	text, err := os.ReadFile("../../../configs/agent.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(text), "compression: ${env:GPU_COLLECTOR_COMPRESSION:-"+agents+"}")
}
