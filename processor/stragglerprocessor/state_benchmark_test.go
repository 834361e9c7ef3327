// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// used is the CPU time of the process so far.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkState packs the state of 10,000 nodes of eight GPUs after three minutes of
// pushes. The share is of what the same process takes to decode and compare the pushes of
// the time between two writes; a gateway does more than that.
func BenchmarkState(b *testing.B) {
	const nodes, ticks, perWrite = 10_000, 18, 3
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	g, err := newGateway(set, cfg)
	require.NoError(b, err)
	require.NoError(b, g.keeper.open())
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f, err := fleetpush.New(fleetpush.Config{
		Nodes: nodes, GPUs: 8, Cluster: "prod", Load: fleetsim.Training, Seed: 2026, Step: cfg.PushInterval, Start: now.Add(-24 * time.Hour),
	})
	require.NoError(b, err)
	var work time.Duration // of the last ticks
	bodies := make([][]byte, nodes)
	for k := range ticks {
		now = now.Add(cfg.PushInterval)
		for i := range nodes {
			bodies[i], err = f.Next(i, 1, now, bodies[i][:0])
			require.NoError(b, err)
		}
		began := used(b)
		for _, body := range bodies {
			req := pmetricotlp.NewExportRequest()
			require.NoError(b, req.UnmarshalProto(body))
			g.observe(b.Context(), req.Metrics(), now)
		}
		g.tick(b.Context(), now)
		if k >= ticks-perWrite {
			work += used(b) - began
		}
	}
	var held, took []float64
	size := 0
	for b.Loop() {
		began := used(b)
		w := g.state(now)
		took = append(took, float64(used(b)-began))
		held = append(held, g.keeper.held.Seconds()*1e3)
		size = 0
		for _, part := range w.values {
			size += len(part)
		}
		for _, s := range w.saves {
			s.Kept()
		}
	}
	middle := func(v []float64) float64 { slices.Sort(v); return v[len(v)/2] }
	b.ReportMetric(float64(size)/nodes, "B/node")
	b.ReportMetric(middle(held), "ms-held")
	b.ReportMetric(middle(took)/1e6, "ms-CPU")
	b.ReportMetric(100*middle(took)/float64(work), "%-CPU")
}
