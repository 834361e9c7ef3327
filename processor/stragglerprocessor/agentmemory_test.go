// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/test/heap"
)

// TestAgentFitsItsMemory has a cluster make up nodes, GPUs and peers until nothing more is
// taken: it holds no more than `max_bytes`, the log says so once, the node that
// was there is scored as before, and another cluster finds room. All of it is given back.
func TestAgentFitsItsMemory(t *testing.T) {
	const most = 4 << 20
	long := strings.Repeat("x", 200)
	step := func(rm pmetric.ResourceMetrics) { gauge(rm, "gpu.app.step.duration", 0.1) }
	for name, fill := range map[string]func(rm pmetric.ResourceMetrics, i int){
		"nodes": func(rm pmetric.ResourceMetrics, _ int) { step(rm) },
		"peers": func(rm pmetric.ResourceMetrics, i int) {
			rm.Resource().Attributes().PutStr("gpu.job.id", strings.Repeat("x", 10_000)+strconv.Itoa(i))
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
			rm.Resource().Attributes().PutStr("host.name", fmt.Sprint("same-", i%10))
			rm.Resource().Attributes().PutStr("gpu.job.id", strings.Repeat("x", i*100))
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
			lacks := func() int64 { return rejected(t, r.tel)["max_bytes"] }
			for i := 0; lacks() < 20 && i < 20_000; i++ {
				push("greedy", fmt.Sprint("made-up-", i), func(rm pmetric.ResourceMetrics) { fill(rm, i) })
			}
			require.GreaterOrEqual(t, lacks(), int64(20))
			grown, counted := heap.Live()-before, r.a.memory.bytes.Held("greedy")
			t.Logf("%d bytes, %d counted, %d nodes", grown, counted, len(r.a.nodes))
			assert.LessOrEqual(t, counted, most/2+200_000, "its share, and what the last row was rounded up to")
			assert.Less(t, grown, most)
			assert.LessOrEqual(t, grown, counted*5/4+100_000, "what is counted is what is taken")
			assert.Equal(t, 1, logs.FilterField(zap.String("cluster", "greedy")).Len())

			had := lacks()
			for range 3 {
				now = now.Add(10 * time.Second)
				push("mine", "me", step)
				push("other", "honest", step)
			}
			assert.Equal(t, had, lacks())
			assert.Contains(t, r.a.nodes, nodeKey{"other", "honest"})

			now = now.Add(time.Hour)
			push("mine", "new", step)
			assert.Len(t, r.a.nodes, 1)
			assert.Equal(t, r.a.memory.bytes.Held("mine"), r.a.memory.bytes.Taken())
			assert.Equal(t, r.a.nodes[nodeKey{"mine", "new"}].size(), r.a.memory.bytes.Taken())
		})
	}
}
