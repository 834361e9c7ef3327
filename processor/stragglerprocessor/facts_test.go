// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// sample is one series of a GPU, or of the node if it is whole: metric,
// attributes and a healthy value.
type sample struct {
	name  string
	pairs []string
	value float64
	count bool // cumulative and monotonic
	whole bool
}

// samples are the 40 series of a GPU under load that a report has most of, as
// the nvml receiver names them.
var samples = func() []sample {
	list := []sample{
		{name: "hw.gpu.up", pairs: []string{"reason", "ok"}, value: 1},
		{name: "hw.gpu.utilization", pairs: []string{"hw.gpu.task", "general"}, value: 1},
		{name: "hw.gpu.memory.utilization", value: 0.7},
		{name: "hw.gpu.memory.usage", value: 6e10},
		{name: "hw.temperature", pairs: []string{"hw.sensor_location", "gpu"}, value: 60},
		{name: "hw.temperature", pairs: []string{"hw.sensor_location", "memory"}, value: 70},
		{name: "hw.gpu.temperature.margin", value: 20},
		{name: "hw.power", pairs: []string{"hw.type", "gpu"}, value: 650},
		{name: "hw.gpu.power.limit", pairs: []string{"limit", "enforced"}, value: 700},
		{name: "hw.energy", pairs: []string{"hw.type", "gpu"}, value: 1e9, count: true},
		{name: "hw.gpu.clock.frequency", pairs: []string{"clock", "sm"}, value: 1.9e9},
		{name: "hw.gpu.clock.frequency", pairs: []string{"clock", "memory"}, value: 2.6e9},
		{name: "hw.gpu.clock.frequency.limit", pairs: []string{"clock", "sm"}, value: 1.98e9},
		{name: "hw.gpu.processes", pairs: []string{"type", "compute"}, value: 1},
		{name: "hw.gpu.processes", pairs: []string{"type", "graphics"}},
		{name: "hw.gpu.memory.remap.pending"},
		{name: "hw.gpu.memory.remap.failed"},
		{name: "hw.gpu.nvlink.links", pairs: []string{"state", "up"}, value: 18},
		{name: "hw.gpu.nvlink.links", pairs: []string{"state", "down"}},
		{name: "hw.gpu.pcie.replays", pairs: []string{"kind", "replay"}, count: true},
		{name: "hw.gpu.health.score", value: 100},
	}
	for _, kind := range []string{"current", "max"} {
		list = append(list,
			sample{name: "hw.gpu.pcie.link.generation", pairs: []string{"kind", kind}, value: 5},
			sample{name: "hw.gpu.pcie.link.width", pairs: []string{"kind", kind}, value: 16})
	}
	for _, r := range []string{"sw_thermal", "hw_thermal", "power_brake", "power_cap", "hw_slowdown"} {
		list = append(list, sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", r}})
	}
	for _, r := range []string{"sw_thermal", "hw_thermal", "power_brake"} {
		list = append(list, sample{name: "hw.gpu.throttle.time", pairs: []string{"reason", r}, count: true})
	}
	for _, e := range []string{"replay", "recovery", "crc"} {
		list = append(list, sample{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", e}, count: true})
	}
	for _, e := range []string{"corrected", "uncorrected"} {
		for _, c := range []string{"volatile", "aggregate"} {
			list = append(list, sample{
				name: "hw.errors", count: true,
				pairs: []string{"hw.type", "gpu", "error.type", e, "gpu.memory.location", "all", "gpu.ecc.counter", c},
			})
		}
	}
	return list
}()

func testGPU(node, g int) string {
	return fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-%04d-9e3d8d2b8a%02d", node, g)
}

// write adds the sample of a GPU to rm, beside those of the same metric.
func (s *sample) write(rm pmetric.ResourceMetrics, gpu string) pmetric.NumberDataPoint {
	var m pmetric.Metric
	found := false
	for _, have := range rm.ScopeMetrics().At(0).Metrics().All() {
		if have.Name() == s.name {
			m, found = have, true
		}
	}
	if !found {
		m = rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
		m.SetName(s.name)
		if s.count {
			m.SetEmptySum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		} else {
			m.SetEmptyGauge()
		}
	}
	p := metricreading.Points(m).AppendEmpty()
	p.SetDoubleValue(s.value)
	p.SetTimestamp(pcommon.NewTimestampFromTime(epoch))
	if !s.whole {
		p.Attributes().PutStr("hw.id", gpu)
	}
	for i := 0; i < len(s.pairs); i += 2 {
		p.Attributes().PutStr(s.pairs[i], s.pairs[i+1])
	}
	return p
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func factNode(i int) string { return fmt.Sprintf("n%d", i) }

func newReport(md pmetric.Metrics, node int) pmetric.ResourceMetrics {
	return resource(md, map[string]any{"host.name": factNode(node), "k8s.cluster.name": "prod"})
}

// healthyReport is the report of a node of 8 GPUs, 320 points.
func healthyReport(node int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := newReport(md, node)
	for i := range samples {
		for g := range 8 {
			samples[i].write(rm, testGPU(node, g))
		}
	}
	return md
}

// factRig is a gateway that has heard of 6 healthy nodes ten minutes ago.
type factRig struct {
	*gatewayRig
	now time.Time
}

func newFactRig(t *testing.T, change func(*Config)) *factRig {
	r := &factRig{newGatewayRig(t, change, nil), epoch}
	for i := range 6 {
		r.observe(healthyReport(i))
	}
	r.now = r.now.Add(10 * time.Minute)
	return r
}

func (r *factRig) observe(md pmetric.Metrics) {
	r.g.observer.observe(r.t.Context(), r.g.engine, md, r.now)
}

// send sends one sample of one GPU of n0 alone, as a difference.
func (r *factRig) send(s sample, gpu string) {
	md := pmetric.NewMetrics()
	s.write(newReport(md, 0), gpu)
	r.observe(md)
}

func (r *factRig) explain() reason.Finding {
	names := []string{"n1", "n2", "n3", "n4", "n5"}
	return r.g.observer.facts.store.Explain("prod", "n0", slices.Values(names), r.now.Add(-20*time.Second), r.now)
}

// Each metric that explains anything, as a difference: one point of one GPU.
func TestEachMetricThatExplains(t *testing.T) {
	for _, tt := range []struct {
		sample sample
		want   reason.Reason
		fact   reason.Fact
		before []sample // that the node has sent before
		id     string   // testGPU(0, 3) by default
	}{
		{sample: sample{name: "hw.gpu.up", pairs: []string{"reason", "lost"}}, want: "gpu_lost", fact: reason.GPULost},
		{sample: sample{name: "hw.gpu.up", pairs: []string{"reason", "not_found"}}, want: "gpu_lost", fact: reason.GPULost},
		{sample: sample{name: "hw.gpu.up", pairs: []string{"reason", "hang"}}, want: "gpu_silent", fact: reason.GPUSilent},
		{sample: sample{name: "hw.gpu.xid.events", pairs: []string{"gpu.xid.code", "79"}, value: 1, count: true}, want: "gpu_lost", fact: reason.XidOffBus},
		{sample: sample{name: "hw.gpu.memory.remap.failed", value: 1}, want: "row_remap_failed", fact: reason.RemapFailed},
		{sample: sample{name: "hw.gpu.memory.remap.pending", value: 1}, want: "gpu_memory_fault", fact: reason.RemapPending},
		{sample: sample{name: "hw.gpu.memory.retirement.pending", value: 1}, want: "gpu_memory_fault", fact: reason.RetirementPending},
		{sample: sample{name: "hw.errors", count: true, value: 2, pairs: []string{"hw.type", "gpu", "error.type", "uncorrected", "gpu.memory.location", "all", "gpu.ecc.counter", "volatile"}}, want: "gpu_memory_fault", fact: reason.ECCUncorrected},
		{sample: sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", "power_brake"}, value: 1}, want: "hw_power_brake", fact: reason.PowerBrake},
		{sample: sample{name: "hw.gpu.throttle.time", pairs: []string{"reason", "power_brake"}, value: 5, count: true}, want: "hw_power_brake", fact: reason.PowerBrakeTime},
		{sample: sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", "hw_thermal"}, value: 1}, want: "hw_thermal", fact: reason.HWThermal},
		{sample: sample{name: "hw.gpu.throttle.time", pairs: []string{"reason", "hw_thermal"}, value: 5, count: true}, want: "hw_thermal", fact: reason.HWThermalTime},
		{sample: sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", "sw_thermal"}, value: 1}, want: "sw_thermal", fact: reason.SWThermal},
		{sample: sample{name: "hw.gpu.throttle.time", pairs: []string{"reason", "sw_thermal"}, value: 5, count: true}, want: "sw_thermal", fact: reason.SWThermalTime},
		{sample: sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", "hw_slowdown"}, value: 1}, want: "hw_slowdown", fact: reason.HWSlowdown},
		{
			sample: sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", "power_cap"}, value: 1}, want: "sw_power_cap", fact: reason.PowerLimit,
			before: []sample{{name: "hw.gpu.power.limit", pairs: []string{"limit", "enforced"}, value: 500}},
		},
		{sample: sample{name: "hw.gpu.clock.frequency", pairs: []string{"clock", "sm"}, value: 1.2e9}, want: "sm_clock_low", fact: reason.SMClock},
		{sample: sample{name: "hw.gpu.pcie.link.width", pairs: []string{"kind", "current"}, value: 8}, want: "pcie_link_degraded", fact: reason.PCIeWidth},
		{sample: sample{name: "hw.gpu.pcie.link.generation", pairs: []string{"kind", "current"}, value: 3}, want: "pcie_link_degraded", fact: reason.PCIeSpeed},
		{sample: sample{name: "hw.gpu.pcie.replays", pairs: []string{"kind", "replay"}, value: 99, count: true}, want: "pcie_replays", fact: reason.PCIeReplays},
		{sample: sample{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "replay"}, value: 1, count: true}, want: "nvlink_errors", fact: reason.NVLinkReplays},
		{sample: sample{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "recovery"}, value: 1, count: true}, want: "nvlink_errors", fact: reason.NVLinkReplays},
		{sample: sample{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "crc"}, value: 1, count: true}, want: "nvlink_errors", fact: reason.NVLinkCRC},
		{
			sample: sample{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "crc_flit"}, value: 1, count: true}, want: "nvlink_errors", fact: reason.NVLinkCRC,
			before: []sample{{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "crc_flit"}, count: true}},
		},
		{
			sample: sample{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "crc_data"}, value: 1, count: true}, want: "nvlink_errors", fact: reason.NVLinkCRC,
			before: []sample{{name: "hw.gpu.nvlink.errors", pairs: []string{"error.type", "crc_data"}, count: true}},
		},
		{sample: sample{name: "hw.gpu.nvlink.links", pairs: []string{"state", "up"}, value: 17}, want: "nvlink_down", fact: reason.NVLinksUp},
		{sample: sample{name: "hw.gpu.processes", pairs: []string{"type", "compute"}, value: 2}, want: "noisy_neighbour", fact: reason.Processes},
		{sample: sample{name: "hw.gpu.memory.utilization", value: 0.99}, want: "memory_pressure", fact: reason.GPUMemory},
		{
			sample: sample{name: "hw.errors", count: true, value: 9, pairs: []string{"hw.type", "network", "error.type", "symbol", "network.io.direction", "receive"}},
			want:   "network_errors", fact: reason.NetworkErrors, id: "mlx5_0",
			before: []sample{
				{name: "hw.errors", count: true, value: 1, pairs: []string{"hw.type", "network", "error.type", "symbol", "network.io.direction", "receive"}},
				{name: "hw.errors", count: true, value: 900, pairs: []string{"hw.type", "network", "error.type", "crc", "network.io.direction", "receive"}},
			},
		},
		{sample: sample{name: "hw.network.bandwidth.limit", value: 12e9}, want: "network_link_slow", fact: reason.NetworkBandwidth, id: "mlx5_0"},
		{sample: sample{name: "gpu.node.cpu.pressure", value: 0.5, whole: true}, want: "cpu_contention", fact: reason.CPUPressure},
		{sample: sample{name: "system.cpu.utilization", pairs: []string{"cpu.mode", "steal"}, value: 0.2, whole: true}, want: "cpu_contention", fact: reason.CPUSteal},
		{sample: sample{name: "system.cpu.utilization", pairs: []string{"state", "steal"}, value: 0.2, whole: true}, want: "cpu_contention", fact: reason.CPUSteal},
		{sample: sample{name: "system.cpu.load_average.1m", value: 99, whole: true}, want: "cpu_contention", fact: reason.LoadAverage},
		{sample: sample{name: "system.memory.utilization", pairs: []string{"state", "used"}, value: 0.99, whole: true}, want: "memory_pressure", fact: reason.HostMemory},
		{sample: sample{name: "system.memory.utilization", pairs: []string{"system.memory.state", "used"}, value: 0.99, whole: true}, want: "memory_pressure", fact: reason.HostMemory},

		// Others look alike and explain nothing.
		{sample: sample{name: "system.cpu.utilization", pairs: []string{"state", "steal", "cpu", "cpu0"}, value: 0.2, whole: true}, want: reason.Unexplained},
		{sample: sample{name: "system.cpu.utilization", pairs: []string{"state", "user"}, value: 0.9, whole: true}, want: reason.Unexplained},
		{sample: sample{name: "system.memory.utilization", pairs: []string{"state", "cached"}, value: 0.99, whole: true}, want: reason.Unexplained},
		{sample: sample{name: "hw.errors", count: true, value: 9, pairs: []string{"hw.type", "gpu", "error.type", "corrected", "gpu.memory.location", "all", "gpu.ecc.counter", "volatile"}}, want: reason.Unexplained},
		{sample: sample{name: "hw.errors", count: true, value: 9, pairs: []string{"hw.type", "gpu", "error.type", "uncorrected", "gpu.memory.location", "all", "gpu.ecc.counter", "aggregate"}}, want: reason.Unexplained},
		{sample: sample{name: "hw.gpu.clock.frequency", pairs: []string{"clock", "video"}, value: 1e8}, want: reason.Unexplained},
		{sample: sample{name: "hw.gpu.pcie.replays", pairs: []string{"kind", "rollover"}, value: 99, count: true}, want: reason.Unexplained},
		{sample: sample{name: "hw.gpu.processes", pairs: []string{"type", "graphics"}, value: 5}, want: reason.Unexplained},
		{
			sample: sample{name: "hw.errors", count: true, value: 900, pairs: []string{"hw.type", "network", "error.type", "crc"}}, id: "mlx5_0", want: reason.Unexplained,
			before: []sample{{name: "hw.errors", count: true, value: 900, pairs: []string{"hw.type", "network", "error.type", "crc"}}},
		},
		{sample: sample{name: "hw.gpu.xid.events", pairs: []string{"gpu.xid.code", "-65457"}, value: 9, count: true}, want: reason.Unexplained},
		{sample: sample{name: "hw.gpu.xid.events", pairs: []string{"gpu.xid.code", "-1"}, value: 9, count: true}, want: reason.Unexplained},
		{sample: sample{name: "hw.gpu.xid.events", pairs: []string{"gpu.xid.code", "31"}, value: 9, count: true}, want: reason.Unexplained},
	} {
		t.Run(strings.Join(append([]string{tt.sample.name}, tt.sample.pairs...), "/"), func(t *testing.T) {
			r := newFactRig(t, nil)
			id := tt.id
			if id == "" {
				id = testGPU(0, 3)
			}
			// The peers' hosts tell of what the nvml receiver does not measure.
			for i := range 6 {
				md := pmetric.NewMetrics()
				rm := newReport(md, i)
				for _, s := range []sample{
					{name: "hw.network.bandwidth.limit", value: 50e9},
					{name: "hw.errors", count: true, pairs: []string{"hw.type", "network", "error.type", "symbol"}},
					{name: "gpu.node.cpu.pressure", value: 0.02, whole: true},
					{name: "system.cpu.load_average.1m", value: 9, whole: true},
					{name: "system.cpu.utilization", pairs: []string{"state", "steal"}, whole: true},
					{name: "system.memory.utilization", pairs: []string{"state", "used"}, value: 0.4, whole: true},
				} {
					s.write(rm, "mlx5_0")
				}
				r.observe(md)
			}
			for _, s := range tt.before {
				r.send(s, id)
			}
			// Another GPU comes after it.
			r.send(tt.sample, id)
			r.send(samples[1], testGPU(0, 7))
			got := r.explain()
			require.Equal(t, tt.want, got.Reason)
			assert.Empty(t, rejected(t, r.tel))
			if tt.want == reason.Unexplained {
				return
			}
			assert.Equal(t, tt.fact, got.Evidence[0].Fact)
			if tt.sample.whole || tt.fact == reason.NetworkBandwidth {
				assert.Empty(t, got.GPU)
			} else {
				assert.Equal(t, id, got.GPU)
			}
		})
	}
}

// A series that ends takes what it said with it.
func TestFactsOfASeriesThatEnds(t *testing.T) {
	r := newFactRig(t, nil)
	end := func(s sample) {
		md := pmetric.NewMetrics()
		p := s.write(newReport(md, 0), testGPU(0, 3))
		p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		r.observe(md)
	}
	width := sample{name: "hw.gpu.pcie.link.width", pairs: []string{"kind", "current"}, value: 4}
	r.send(width, testGPU(0, 3))
	require.Equal(t, reason.Reason("pcie_link_degraded"), r.explain().Reason)
	end(width)
	assert.Equal(t, reason.Unexplained, r.explain().Reason)

	lost := sample{name: "hw.gpu.up", pairs: []string{"reason", "lost"}}
	r.send(lost, testGPU(0, 3))
	end(sample{name: "hw.gpu.up", pairs: []string{"reason", "ok"}})
	require.Equal(t, reason.Reason("gpu_lost"), r.explain().Reason, "the series that ended is the one from before")
	end(lost)
	assert.Equal(t, reason.Unexplained, r.explain().Reason)

	for i := range 6 {
		md := pmetric.NewMetrics()
		(&sample{name: "gpu.node.cpu.pressure", value: 0.1, whole: true}).write(newReport(md, i), "")
		r.observe(md)
	}
	r.send(sample{name: "gpu.node.cpu.pressure", value: 0.9, whole: true}, "")
	require.Equal(t, reason.Reason("cpu_contention"), r.explain().Reason)
	end(sample{name: "gpu.node.cpu.pressure", whole: true})
	assert.Equal(t, reason.Unexplained, r.explain().Reason)
}

func TestFactsOfTheNumberOfGPUs(t *testing.T) {
	r := newFactRig(t, nil)
	for state, v := range map[string]float64{"found": 7, "lost": 1, "expected": 8} {
		r.send(sample{name: "hw.gpu.devices", pairs: []string{"state", state}, value: v, whole: true}, "")
	}
	n, ok := r.g.observer.facts.store.GPUs("prod", "n0")
	assert.True(t, ok)
	assert.Equal(t, 8, n)
}

// Garbage is counted by its kind, and nothing else is the worse for it.
func TestFactsOfGarbage(t *testing.T) {
	r := newFactRig(t, func(c *Config) { c.Gateway.MaxNodes = 12 })
	r.send(sample{name: "hw.gpu.throttle.active", pairs: []string{"reason", "power_brake"}, value: 1}, testGPU(0, 3))

	md := pmetric.NewMetrics()
	rm := newReport(md, 1)
	for _, v := range []float64{math.NaN(), math.Inf(1), -200, 1e300} {
		(&sample{name: "hw.temperature", pairs: []string{"hw.sensor_location", "gpu"}, value: v}).write(rm, testGPU(1, 0))
	}
	(&sample{name: "hw.gpu.up", pairs: []string{"reason", "ok"}, value: 7}).write(rm, testGPU(1, 0))
	(&sample{name: "hw.gpu.xid.events", pairs: []string{"gpu.xid.code", "many"}, count: true}).write(rm, testGPU(1, 0))
	(&sample{name: "hw.gpu.memory.utilization"}).write(rm, "")
	(&sample{name: "hw.gpu.memory.utilization"}).write(rm, strings.Repeat("x", 254))
	for i := range 100_000 {
		// A temperature may be of anything, and names no GPU.
		for _, name := range []string{"hw.gpu.memory.utilization", "hw.temperature"} {
			(&sample{name: name, pairs: []string{"hw.sensor_location", "gpu"}, value: 0.5}).write(rm, fmt.Sprintf("GPU-%s%d", name, i))
		}
	}
	// An empty point, one with another type of id, and a metric of another kind.
	metricreading.Points(rm.ScopeMetrics().At(0).Metrics().At(0)).AppendEmpty().Attributes().PutStr("hw.sensor_location", "gpu")
	metricreading.Points(rm.ScopeMetrics().At(0).Metrics().At(0)).AppendEmpty().Attributes().PutInt("hw.sensor_location", 3)
	histogram := rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
	histogram.SetName("hw.power")
	histogram.SetEmptyHistogram().DataPoints().AppendEmpty()
	r.observe(md)

	md = pmetric.NewMetrics()
	samples[0].write(newReport(md, 6), testGPU(6, 0))
	samples[0].write(resource(md, map[string]any{"service.name": "nobody"}), testGPU(6, 0))
	r.observe(md)

	assert.Equal(t, map[string]int64{
		"value_range": 3, "not_finite": 2, "subject": 3, "wrong_type": 1,
		"fact_name": 2, "fact_max_devices": 100_000 - (reason.MaxGPUs - 8), "fact_cluster_nodes": 1,
	}, rejected(t, r.tel))
	got := r.explain()
	assert.Equal(t, reason.Reason("hw_power_brake"), got.Reason)
	assert.Equal(t, testGPU(0, 3), got.GPU)
	assert.False(t, got.Observation)
}

// A client says nothing about the nodes of another cluster.
func TestFactsOfAForeignCluster(t *testing.T) {
	r := newFactRig(t, nil)
	md := pmetric.NewMetrics()
	rm := newReport(md, 0)
	(&sample{name: "hw.gpu.up", pairs: []string{"reason", "lost"}}).write(rm, testGPU(0, 3))
	(&sample{name: "hw.gpu.memory.utilization", value: 1e9}).write(rm, testGPU(0, 3))
	ctx := wire.ContextWithCaller(t.Context(), wire.Caller{Cluster: "other", Authenticated: true})
	r.g.observer.observe(ctx, r.g.engine, md, r.now)
	assert.Equal(t, reason.Unexplained, r.explain().Reason)
	assert.Equal(t, map[string]int64{"foreign_cluster": 1, "value_range": 1}, rejected(t, r.tel), "what cannot be true is so of anybody")
}

// The facts of a node live as long as anything is heard of it.
func TestFactsExpire(t *testing.T) {
	r := newFactRig(t, nil)
	retention := createDefaultConfig().(*Config).Gateway.Retention
	for range 3 {
		r.now = r.now.Add(retention / 2)
		md := pmetric.NewMetrics()
		gauge(newReport(md, 0), "gpu.node.heartbeat", 1)
		r.observe(md)
		for range 32 {
			r.g.observer.facts.store.Sweep(r.now)
		}
	}
	assert.Equal(t, 1, r.g.observer.facts.store.Len())
}

// Any push at all leaves an answer with a reason, and as much state as is allowed.
func FuzzFacts(f *testing.F) {
	seeds := []pmetric.Metrics{fleet(1)}
	for i := range samples {
		md := pmetric.NewMetrics()
		samples[i].write(newReport(md, 0), "GPU-1")
		seeds = append(seeds, md)
	}
	for _, md := range seeds {
		body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
		require.NoError(f, err)
		f.Add(body)
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Gateway.MaxNodes = 8
	tb, err := metadata.NewTelemetryBuilder(componenttest.NewNopTelemetrySettings())
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, body []byte) {
		req := pmetricotlp.NewExportRequest()
		if req.UnmarshalProto(body) != nil {
			return
		}
		o, engine := newObserver(cfg, newRejects(tb), zap.NewNop()), straggler.New(cfg.engine())
		o.observe(t.Context(), engine, req.Metrics(), epoch)
		o.observe(t.Context(), engine, req.Metrics(), epoch.Add(3*time.Minute))
		got := o.facts.store.Explain("prod", "n0", slices.Values([]string{"n1", "n2", "n3"}), epoch, epoch.Add(3*time.Minute))
		if got.Reason == "" || o.facts.store.Len() > 8 {
			t.Fatal(got, o.facts.store.Len())
		}
	})
}
