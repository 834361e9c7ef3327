// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	observed "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/test/heap"
)

// TestComparisonFitsItsMemory pushes nodes of several kinds until nothing more is taken:
// it holds no more than the memory that the comparison has, the log says so once
// for each cluster, and the second cluster finds room.
func TestComparisonFitsItsMemory(t *testing.T) {
	signals := func(rm pmetric.ResourceMetrics) {
		gauge(rm, "gpu.node.health_score", 0.9)
		gauge(rm, "gpu.node.state", 1, "state", "active")
		for _, s := range []string{"throughput", "compute", "interconnect", "cpu", "power", "memory"} {
			gauge(rm, "gpu.node.signal", 0.9, "gpu.signal", s)
		}
	}
	long := strings.Repeat("x", 200)
	for name, fill := range map[string]func(rm pmetric.ResourceMetrics, i int){
		"nodes": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", fmt.Sprint("job-", i/50))
			signals(rm)
		},
		"groups": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", fmt.Sprint("job-", i))
			signals(rm)
		},
		"facts": func(rm pmetric.ResourceMetrics, i int) {
			signals(rm)
			for g := range 8 {
				for s := range samples {
					samples[s].write(rm, testGPU(i, g))
				}
			}
		},
		"many GPUs": func(rm pmetric.ResourceMetrics, i int) {
			for g := range 64 {
				samples[0].write(rm, long+testGPU(i, g))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := createDefaultConfig().(*Config)
			cfg.Mode, cfg.MaxBytes = modeGateway, 8<<20
			core, logs := observed.New(zap.WarnLevel)
			tel := componenttest.NewTelemetry()
			t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.Background())) })
			tb, err := metadata.NewTelemetryBuilder(tel.NewTelemetrySettings())
			require.NoError(t, err)
			o, engine := newObserver(cfg, newRejects(tb), zap.New(core)), straggler.New(cfg.bounded())
			before := heap.Live()
			push := func(cluster string, i int) {
				md := pmetric.NewMetrics()
				fill(resource(md, map[string]any{"host.name": fmt.Sprintf("node-%06d.example.com", i), "k8s.cluster.name": cluster}), i)
				o.observe(t.Context(), engine, md, epoch)
			}
			full := func(cluster string) bool {
				return logs.FilterField(zap.String("cluster", cluster)).Len() > 0
			}
			for i := 0; !full("greedy"); i++ {
				push("greedy", i)
			}
			for i := range 20 {
				push("greedy", 1_000_000+i)
			}
			push("honest", 0)
			assert.False(t, full("honest"))
			for i := 1; !full("honest"); i++ {
				push("honest", i)
			}
			engine.Tick(epoch.Add(cfg.PushInterval))
			grown := heap.Live() - before
			t.Logf("%d bytes, %d nodes", grown, engine.Nodes())
			assert.Less(t, grown, 8<<20)
			assert.Equal(t, 2, logs.Len(), "once for each cluster")
		})
	}
}
