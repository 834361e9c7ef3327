// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/platform/wire"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

func TestGPUModels(t *testing.T) {
	const h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
	long := strings.Repeat("Ü", 100)
	for name, test := range map[string]struct {
		reports [][]string // 20 s apart
		want    string
	}{
		"none":                          {[][]string{{}}, ""},
		"one":                           {[][]string{{h100}, {h100}}, "NVIDIA-H100-80GB-HBM3"},
		"several, in one order":         {[][]string{{h100, a100}}, "NVIDIA-A100-SXM4-80GB+NVIDIA-H100-80GB-HBM3"},
		"each with a report of its own": {[][]string{{h100}, {a100}, {h100}, {a100}}, "NVIDIA-A100-SXM4-80GB+NVIDIA-H100-80GB-HBM3"},
		"a driver that hangs":           {[][]string{{h100}, {}, {}, {}, {}}, "NVIDIA-H100-80GB-HBM3"},
		"another GPU":                   {[][]string{{h100}, {a100}, {a100}, {a100}}, "NVIDIA-A100-SXM4-80GB"},
		"no name":                       {[][]string{{"", " "}}, ""},
		"a long name":                   {[][]string{{long}}, strings.Repeat("Ü", maxProduct/2)},
		"a long name cut in a letter":   {[][]string{{"x" + long}}, "x" + strings.Repeat("Ü", maxProduct/2-1)},
		"too many":                      {[][]string{{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}}, "a+b+c+d"},
	} {
		t.Run(name, func(t *testing.T) {
			var g gpuModels
			now := time.Unix(0, 0)
			for _, products := range test.reports {
				g.tell(products, now, 50*time.Second)
				now = now.Add(20 * time.Second)
			}
			assert.Equal(t, test.want, g.name)
			assert.LessOrEqual(t, len(g.told), 2*maxModels)
		})
	}
}

// nvml is a report of a node's GPUs, with hw.gpu.info where there are products.
func nvml(products ...string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := resource(md, map[string]any{"host.name": "n", "k8s.cluster.name": "prod"})
	for i, product := range products {
		gauge(rm, gpusemconv.MetricGPUInfo, 1, "hw.id", fmt.Sprint("GPU-", i), "hw.model", product)
		gauge(rm, gpusemconv.MetricGPUInfo, 1, "hw.id", fmt.Sprint("MIG-", i), "hw.parent", fmt.Sprint("GPU-", i), "hw.model", product+" MIG 1g.10gb")
	}
	gauge(rm, "hw.gpu.utilization", 1, "hw.id", "GPU-0", "hw.gpu.task", "general")
	return md
}

// TestTheModelIsOfTheGroup: out of the box, nodes with unlike GPUs are no peers. A node asks
// for the group that its gateway has it in.
func TestTheModelIsOfTheGroup(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		push   []pmetric.Metrics
		want   string
	}{
		"the GPUs' report, then the job's": {nil, []pmetric.Metrics{nvml("H100"), step("n", 1)}, "J/stage-0/H100"},
		"the job's, then the GPUs'":        {nil, []pmetric.Metrics{step("n", 1), nvml("H100")}, "J/stage-0/H100"},
		"no job":                           {nil, []pmetric.Metrics{nvml("NVIDIA H100 80GB HBM3")}, "//NVIDIA-H100-80GB-HBM3"},
		"two models":                       {nil, []pmetric.Metrics{nvml("L4", "A100", "L4")}, "//A100+L4"},
		"the model in a report of its own": {nil, []pmetric.Metrics{step("n", 1), func() pmetric.Metrics {
			md := nvml("H100")
			md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Name() != gpusemconv.MetricGPUInfo })
			return md
		}()}, "J/stage-0/H100"},
		"a label of the node overrules": {nil, []pmetric.Metrics{func() pmetric.Metrics {
			md := nvml("H100")
			md.ResourceMetrics().At(0).Resource().Attributes().PutStr("gpu.model", "fast")
			return md
		}(), step("n", 1), nvml("H100")}, "J/stage-0/fast"},
		"nothing known of what is asked for": {func(c *Config) { c.GroupBy = []string{"gpu.model"} }, []pmetric.Metrics{nvml(), step("n", 1)}, "default"},
		"not asked for":                      {func(c *Config) { c.GroupBy = []string{"gpu.job.id"} }, []pmetric.Metrics{nvml("H100"), step("n", 1)}, "J"},
	} {
		t.Run(name, func(t *testing.T) {
			r, gateway := newAgentRig(t, test.change), newGatewayRig(t, test.change, nil)
			now := time.Now()
			for range 2 {
				for _, md := range test.push {
					r.a.score(t.Context(), md, now)
					gateway.g.observe(t.Context(), md, now)
					now = now.Add(10 * time.Second)
				}
			}
			assert.Equal(t, wire.Claim{Cluster: "prod", Node: "n", Groups: []string{test.want}}, r.ext.claim)
			rep := gateway.g.engine.Tick(now)
			require.Len(t, rep.Nodes, 1)
			assert.Equal(t, test.want, rep.Nodes[0].Group)
		})
	}
}
