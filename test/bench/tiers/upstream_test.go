// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// A recording of one cluster, an hour old, is played as another cluster's of now.
func TestRecordingIsPlayedAsOfNow(t *testing.T) {
	t.Chdir("../../..")
	const nodes, seconds = 20, 20
	u, err := newUpstream(t.Context(), nodes, 2)
	require.NoError(t, err)
	defer func() { assert.NoError(t, u.stop(t.Context())) }()
	at := time.Now().Add(-time.Hour).Truncate(time.Second).Add(123_456_789)
	full := 0
	for _, s := range u.shards {
		require.NoError(t, u.report(t.Context(), s, s.nodes(), at,
			func(_ *message, points int) error { full += points; return nil }))
	}
	rec, err := u.record(t.Context(), at.Add(interval), seconds)
	require.NoError(t, err)
	assert.Equal(t, nodes*2, rec.reports, "each node once in ten seconds")
	assert.Less(t, float64(rec.points)/float64(rec.reports), 0.2*float64(full)/nodes, "changes alone")

	now := time.Now().Truncate(time.Second).Add(987_654_321)
	cluster, points, sent := clusterName(7), 0, 0
	for _, shard := range rec.shards {
		require.Len(t, shard, seconds)
		for _, second := range shard {
			for i := range second {
				sent++
				req := pmetricotlp.NewExportRequest()
				require.NoError(t, req.UnmarshalProto(second[i].write(nil, cluster, now)))
				points += req.Metrics().DataPointCount()
				for _, rm := range req.Metrics().ResourceMetrics().All() {
					name, ok := rm.Resource().Attributes().Get(gpusemconv.AttrClusterName)
					require.True(t, ok)
					assert.Equal(t, cluster, name.Str())
					for _, sm := range rm.ScopeMetrics().All() {
						for _, m := range sm.Metrics().All() {
							assertOf(t, m, now)
						}
					}
				}
			}
		}
	}
	assert.Equal(t, rec.points, points)
	assert.Equal(t, rec.messages, sent)
}

func assertOf(t *testing.T, m pmetric.Metric, now time.Time) {
	t.Helper()
	all := pmetric.NewNumberDataPointSlice()
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		all = m.Gauge().DataPoints()
	case pmetric.MetricTypeSum:
		all = m.Sum().DataPoints()
	default:
	}
	require.Positive(t, all.Len(), m.Name())
	for _, p := range all.All() {
		assert.Equal(t, now.UTC(), p.Timestamp().AsTime(), m.Name())
		if m.Name() == gpusemconv.MetricNodeHeartbeat {
			assert.Equal(t, now.Unix(), p.IntValue())
		}
	}
}

// A fleet pushes as a node's agent does: compressed like it, and in the form that
// wire_diff compares without decoding.
func TestReportsAreAnAgents(t *testing.T) {
	text, err := os.ReadFile("../../../configs/agent.yaml")
	require.NoError(t, err)
	assert.Contains(t, string(text), "compression: ${env:GPU_COLLECTOR_COMPRESSION:-"+fleetpush.CompressionSnappy+"}")
	f, err := newFleet(3)
	require.NoError(t, err)
	points, err := pointsOf(f)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, points, 320)
	seen := map[string]bool{}
	for node := range 3 {
		msg, err := f.Next(node, 1, time.Now(), nil)
		require.NoError(t, err)
		assert.True(t, delta.NewWire(nil, false).Read(msg, time.Now()))
		seen[f.Headers(node).Node] = true
		assert.Contains(t, string(msg), f.Headers(node).Node)
		again, err := f.Next(node, 1, time.Now().Add(time.Hour), nil)
		require.NoError(t, err)
		assert.NotEqual(t, msg, again, "another poll")
	}
	assert.Len(t, seen, 3)
}
