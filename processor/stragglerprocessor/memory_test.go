// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/test/heap"
)

// TestComparisonFitsItsMemory pushes nodes of several kinds until nothing more is taken:
// it holds no more than the memory that the comparison has, the log has one line
// for each cluster, and the second cluster finds room.
func TestComparisonFitsItsMemory(t *testing.T) {
	signals := func(rm pmetric.ResourceMetrics) {
		gauge(rm, "gpu.node.health_score", 0.9)
		gauge(rm, "gpu.node.state", 1, "state", "active")
		for _, s := range []string{"throughput", "compute", "interconnect", "cpu", "power", "memory"} {
			gauge(rm, "gpu.node.signal", 0.9, "gpu.signal", s)
		}
	}
	for name, fill := range map[string]func(rm pmetric.ResourceMetrics, i int){
		"nodes": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", fmt.Sprint("job-", i/50))
			signals(rm)
		},
		"groups": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", fmt.Sprint("job-", i))
			signals(rm)
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := createDefaultConfig().(*Config)
			cfg.Mode, cfg.MaxBytes = modeGateway, 8<<20
			core, logs := zapobserver.New(zap.WarnLevel)
			tel := componenttest.NewTelemetry()
			t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.Background())) })
			tb, err := metadata.NewTelemetryBuilder(tel.NewTelemetrySettings())
			require.NoError(t, err)
			o, engine := newObserver(cfg, newRejects(tb), zap.New(core)), straggler.New(cfg.bounded())
			before := heap.Live()
			push := func(cluster string, i int) {
				md := pmetric.NewMetrics()
				fill(resource(md, map[string]any{"host.name": fmt.Sprintf("node-%06d.example.com", i), "k8s.cluster.name": cluster}), i)
				o.observe(t.Context(), engine, md, noon)
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
			engine.Tick(noon.Add(cfg.PushInterval))
			grown := heap.Live() - before
			t.Logf("%d bytes, %d nodes", grown, engine.Nodes())
			assert.Less(t, grown, 8<<20)
			assert.Equal(t, 2, logs.Len(), "once for each cluster")
		})
	}
}

// TestAgentFitsItsMemory has a cluster make up nodes, GPUs and peers until nothing more is
// taken: it holds no more than `max_bytes`, the log has one line, the node that
// was there is scored as before, and another cluster finds room. All of it is given back.
func TestAgentFitsItsMemory(t *testing.T) {
	const most = 4 << 20
	long := strings.Repeat("x", 200)
	step := func(rm pmetric.ResourceMetrics) { gauge(rm, "gpu.app.step.duration", 0.1) }
	for name, fill := range map[string]func(rm pmetric.ResourceMetrics, i int){
		"nodes": func(rm pmetric.ResourceMetrics, _ int) { step(rm) },
		"peers": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", long+strconv.Itoa(i))
			step(rm)
		},
		"GPUs": func(rm pmetric.ResourceMetrics, _ int) {
			for g := range 100 {
				gauge(rm, "hw.gpu.utilization", 0.9, "hw.id", fmt.Sprint("GPU-", long, g), "hw.type", "gpu").SetDoubleValue(0.9)
			}
			step(rm)
		},
		"ranks": func(rm pmetric.ResourceMetrics, _ int) {
			for rank := range 200 {
				gauge(rm, "gpu.app.step.duration", 0.1, "gpu.job.rank", strconv.Itoa(rank))
			}
		},
		"the same nodes, ever larger": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("host.name", fmt.Sprint("same-", i%20))
			gauge(rm, "hw.gpu.utilization", 0.9, "hw.id", fmt.Sprint("GPU-", long, i), "hw.type", "gpu")
			step(rm)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newAgentRig(t, func(c *Config) { c.MaxBytes = most })
			core, logs := zapobserver.New(zap.WarnLevel)
			r.a.logger, r.a.source = zap.New(core), nil
			now := time.Now()
			push := func(cluster, node string, fill func(pmetric.ResourceMetrics)) {
				md := pmetric.NewMetrics()
				fill(resource(md, map[string]any{"host.name": node, "k8s.cluster.name": cluster}))
				r.a.score(t.Context(), md, now)
			}
			push("mine", "me", step)
			before := heap.Live()
			refused := func() int64 { return rejected(t, r.tel)["max_bytes"] }
			for i := 0; refused() < 20 && i < 20_000; i++ {
				push("greedy", fmt.Sprint("made-up-", i), func(rm pmetric.ResourceMetrics) { fill(rm, i) })
			}
			require.GreaterOrEqual(t, refused(), int64(20))
			grown := heap.Live() - before
			t.Logf("%d bytes, %d nodes", grown, len(r.a.nodes))
			assert.Less(t, grown, most/4*3, "what anybody may have")
			assert.Equal(t, 1, logs.FilterField(zap.String("cluster", "greedy")).Len())

			had := refused()
			for range 3 {
				now = now.Add(10 * time.Second)
				push("mine", "me", step)
				push("other", "honest", step)
			}
			assert.Equal(t, had, refused())
			assert.Contains(t, r.a.nodes, fleetstate.Key{Cluster: "other", Node: "honest"})

			now = now.Add(time.Hour)
			push("mine", "new", step)
			assert.Len(t, r.a.nodes, 1)
			assert.Equal(t, agentNodeSlots+1, r.a.slots.Taken())
		})
	}
}
