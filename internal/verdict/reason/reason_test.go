// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const peers = 5

// rig is a fleet of six nodes of four GPUs that has worked for an hour. The node n0 is
// asked for as slow since half a minute ago.
type rig struct {
	t   *testing.T
	s   *fleetstate.Store
	now time.Time
}

func newRig(t *testing.T) *rig {
	r := &rig{t, fleetstate.New(fleetstate.DefaultConfig()), t0}
	for n := range 1 + peers {
		r.put(n, r.now, healthy)
	}
	r.now = t0.Add(time.Hour)
	return r
}

func healthy(u *fleetstate.Update) {
	for f, v := range map[reading.Field]float64{reading.CPUPressure: 0.02, reading.CPUSteal: 0, reading.LoadAverage: 9, reading.HostMemory: 0.4} {
		u.Set(f, v)
	}
	u.SetBandwidth("mlx5_0", 50e9)
	u.SetErrors("mlx5_0", 7, 100)
	for g := range 4 {
		i := u.GPU(gpu(g))
		u.SetUp(i, 1, "ok")
		u.SetHealth(i, fleetstate.Healthy, true)
		for f, v := range map[reading.Field]float64{
			reading.Health: 100, reading.Utilization: 1, reading.SMClock: 1.9e9, reading.SMClockLimit: 1.98e9, reading.Temperature: 60, reading.Power: 650,
			reading.PowerLimit: 700, reading.PCIeGeneration: 5, reading.PCIeGenerationLimit: 5, reading.PCIeWidth: 16, reading.PCIeWidthLimit: 16,
			reading.NVLinksUp: 18, reading.MemoryUsed: 70, reading.MemoryLimit: 100, reading.Processes: 1,
		} {
			u.SetGPU(i, f, v)
		}
	}
}

func gpu(i int) string { return fmt.Sprintf("GPU-%d", i) }

func (r *rig) put(n int, at time.Time, change func(*fleetstate.Update)) {
	u, ok := r.s.Begin(fleetstate.Key{Cluster: "c", Node: fmt.Sprint("n", n)}, at)
	require.True(r.t, ok)
	change(&u)
	u.Commit(at)
}

func (r *rig) node(n int) *fleetstate.Node {
	v, _ := r.s.Node(fleetstate.Key{Cluster: "c", Node: fmt.Sprint("n", n)}, r.now)
	return v.Node
}

func (r *rig) peers(most int) iter.Seq[*fleetstate.Node] {
	return func(yield func(*fleetstate.Node) bool) {
		for n := 1; n <= most; n++ {
			if !yield(r.node(n)) {
				return
			}
		}
	}
}

func (r *rig) explain() Finding {
	return Explain(r.node(0), r.peers(peers), r.now.Add(-30*time.Second), r.now)
}

// fault is something that can be wrong with GPU 2 of a node, or with the node.
type fault struct {
	change func(*fleetstate.Update)
	want   Reason
	action gpuhealth.Action
	fact   string
	device string
	// relative faults are none where the peers have them; aged ones have a known beginning.
	relative, aged bool
}

func health1(name string, action gpuhealth.Action) func(*fleetstate.Update) {
	return func(u *fleetstate.Update) {
		u.SetReason(u.GPU(gpu(2)), fleetstate.HealthReason{Reason: name, Action: string(action)}, true)
		u.SetGPU(u.GPU(gpu(2)), reading.Health, float64(gpuhealth.CapOf(name)))
	}
}

func of(f reading.Field, v float64) func(*fleetstate.Update) {
	return func(u *fleetstate.Update) { u.SetGPU(u.GPU(gpu(2)), f, v) }
}

func throttles(names ...string) func(*fleetstate.Update) {
	return func(u *fleetstate.Update) {
		for _, name := range names {
			u.SetThrottle(u.GPU(gpu(2)), name, true)
		}
	}
}

func both(all ...func(*fleetstate.Update)) func(*fleetstate.Update) {
	return func(u *fleetstate.Update) {
		for _, change := range all {
			change(u)
		}
	}
}

func nodeFault(f reading.Field, v float64) func(*fleetstate.Update) {
	return func(u *fleetstate.Update) { u.Set(f, v) }
}

var faults = map[string]fault{
	"an uncorrectable error":     {health1("ecc_uncorrected", gpuhealth.ActionResetGPU), "ecc_uncorrected", gpuhealth.ActionResetGPU, "health_score", gpu(2), false, true},
	"an Xid":                     {health1("xid_79", gpuhealth.ActionReboot), "xid_79", gpuhealth.ActionReboot, "health_score", gpu(2), false, true},
	"a reason to watch":          {health1("hw_thermal_slowdown", gpuhealth.ActionNone), "hw_thermal_slowdown", gpuhealth.ActionNone, "health_score", gpu(2), false, true},
	"no answer":                  {func(u *fleetstate.Update) { u.SetUp(u.GPU(gpu(2)), 0, "lost") }, "gpu_lost", gpuhealth.ActionReboot, "gpu_lost", gpu(2), false, true},
	"power brake":                {throttles("power_brake"), "hw_power_brake", gpuhealth.ActionCheckPower, "power_brake", gpu(2), false, true},
	"heat":                       {throttles("hw_thermal"), "hw_thermal", gpuhealth.ActionCheckCooling, "hw_thermal", gpu(2), false, true},
	"heat, by the driver":        {throttles("sw_thermal"), "sw_thermal", gpuhealth.ActionCheckCooling, "sw_thermal", gpu(2), false, true},
	"hardware":                   {throttles("hw_slowdown"), "hw_slowdown", gpuhealth.ActionCheckPower, "hw_slowdown", gpu(2), false, true},
	"power limit":                {both(throttles("power_cap"), of(reading.PowerLimit, 600)), "sw_power_cap", gpuhealth.ActionCheckPowerLimit, "power_limit", gpu(2), true, true},
	"power cap on a low clock":   {both(throttles("power_cap"), of(reading.SMClock, 1.7e9)), "sw_power_cap", gpuhealth.ActionCheckPowerLimit, "sm_clock", gpu(2), true, false},
	"low clock":                  {of(reading.SMClock, 1.7e9), "sm_clock_low", gpuhealth.ActionCheckClocks, "sm_clock", gpu(2), true, false},
	"lanes":                      {of(reading.PCIeWidth, 8), "pcie_width", gpuhealth.ActionService, "pcie_lanes", gpu(2), false, true},
	"generation":                 {of(reading.PCIeGeneration, 3), "pcie_generation", gpuhealth.ActionService, "pcie_speed", gpu(2), false, true},
	"generation without a limit": {both(of(reading.PCIeGenerationLimit, 4), of(reading.PCIeGeneration, 4)), "pcie_generation", gpuhealth.ActionService, "pcie_link_generation", gpu(2), true, true},
	"a link is down":             {of(reading.NVLinksUp, 17), "nvlink_down", gpuhealth.ActionReboot, "nvlinks_up", gpu(2), true, true},
	"errors of an adapter":       {func(u *fleetstate.Update) { u.SetErrors("mlx5_0", 7, 104) }, "network_errors", gpuhealth.ActionCheckNetwork, "network_errors", "mlx5_0", true, false},
	"a slow adapter":             {func(u *fleetstate.Update) { u.SetBandwidth("mlx5_0", 25e9) }, "network_link_slow", gpuhealth.ActionCheckNetwork, "network_bandwidth", "", true, false},
	"CPU pressure":               {nodeFault(reading.CPUPressure, 0.5), "cpu_contention", gpuhealth.ActionCheckCPU, "cpu_pressure", "", true, false},
	"stolen CPU":                 {nodeFault(reading.CPUSteal, 0.1), "cpu_contention", gpuhealth.ActionCheckCPU, "cpu_steal", "", true, false},
	"run queue":                  {nodeFault(reading.LoadAverage, 99), "cpu_contention", gpuhealth.ActionCheckCPU, "load_average", "", true, false},
	"host memory":                {nodeFault(reading.HostMemory, 0.99), "memory_pressure", gpuhealth.ActionCheckMemory, "host_memory", "", true, false},
	"GPU memory":                 {of(reading.MemoryUsed, 99), "memory_pressure", gpuhealth.ActionCheckMemory, "gpu_memory", gpu(2), true, false},
	"another process":            {of(reading.Processes, 2), "noisy_neighbour", gpuhealth.ActionCheckNeighbours, "processes", gpu(2), true, true},
}

// TestEachFault: new on one node it is the reason. Where the peers have it too, or are not
// known, it is an observation, or none. An old one is standing.
func TestEachFault(t *testing.T) {
	for name, x := range faults {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.put(0, r.now, x.change)
			f := r.explain()
			assert.Equal(t, []any{x.want, x.action, x.device, false, false}, []any{f.Reason, f.Action, f.GPU, f.Observation, f.Evidence[0].Standing})
			require.NotEmpty(t, f.Evidence)
			assert.Equal(t, []any{x.fact, x.device, true}, []any{f.Evidence[0].Fact, f.Evidence[0].GPU, f.Evidence[0].Peers != nil})
			assert.NotEmpty(t, f.Evidence[0].Unit)

			without := Explain(r.node(0), r.peers(2), r.now, r.now)
			for n := range 1 + peers {
				r.put(n, r.now, x.change)
			}
			for _, f := range []Finding{without, r.explain()} {
				if x.relative {
					assert.Equal(t, Unexplained, f.Reason)
					continue
				}
				assert.Equal(t, []any{x.want, true}, []any{f.Reason, f.Observation})
			}

			r = newRig(t)
			r.put(0, r.now.Add(-10*time.Minute), x.change)
			f = r.explain()
			if x.want == "network_errors" {
				assert.Equal(t, Unexplained, f.Reason, "they are over")
				return
			}
			assert.Equal(t, []any{x.want, x.aged, false}, []any{f.Reason, f.Evidence[0].Standing, f.Observation})
			if x.aged {
				assert.Equal(t, r.now.Add(-10*time.Minute), f.Evidence[0].Since)
			}
		})
	}
	r := newRig(t)
	f := r.explain()
	assert.Equal(t, Finding{Reason: Unexplained, Action: gpuhealth.ActionBurnIn}, f)
	assert.Equal(t, f, Explain(nil, r.peers(4), r.now, r.now), "an unknown node")
}

// TestWhichReason: of several things, the one that explains best.
func TestWhichReason(t *testing.T) {
	clock, cap1, braked := of(reading.SMClock, 1.7e9), of(reading.PowerLimit, 600), throttles("power_brake")
	for name, tt := range map[string]struct {
		old, now func(*fleetstate.Update)
		peers    func(*fleetstate.Update) // what they have, now
		want     Reason
	}{
		"a broken part before heat":        {now: both(throttles("hw_thermal"), health1("ecc_uncorrected", gpuhealth.ActionResetGPU)), want: "ecc_uncorrected"},
		"the worst of two":                 {now: both(health1("ecc_uncorrected", gpuhealth.ActionResetGPU), health1("xid_79", gpuhealth.ActionReboot)), want: "xid_79"},
		"why it does not answer":           {now: both(health1("gpu_missing", gpuhealth.ActionReboot), faults["no answer"].change), want: "gpu_missing"},
		"heat before what is only watched": {now: both(throttles("hw_thermal"), health1("hw_thermal_slowdown", gpuhealth.ActionNone)), want: "hw_thermal"},
		"no matter of speed":               {now: both(health1("memory_history", gpuhealth.ActionNone), health1("ecc_off", gpuhealth.ActionNone)), want: Unexplained},
		"of a later agent":                 {now: health1("from_a_later_release", "dance"), want: Unexplained},
		"the new before the old":           {old: health1("ecc_uncorrected", gpuhealth.ActionResetGPU), now: clock, want: "sm_clock_low"},
		"the old before an observation":    {old: of(reading.PCIeWidth, 8), now: braked, peers: braked, want: "pcie_width"},
		"a low clock under an old brake":   {old: braked, now: clock, want: "hw_power_brake"},
		"a low clock under an old limit":   {old: both(cap1, throttles("power_cap")), now: clock, want: "sw_power_cap"},
		"a limit that holds nothing down":  {now: cap1, want: Unexplained},
		"a limit that no longer does":      {now: both(throttles("power_cap"), clock, func(u *fleetstate.Update) { u.SetThrottle(u.GPU(gpu(2)), "power_cap", false) }), want: "sm_clock_low"},
		"a clock at rest":                  {now: both(clock, of(reading.PCIeGeneration, 1), of(reading.Utilization, 0)), want: Unexplained},
		"a reason that the peers have too": {now: health1("xid_79", gpuhealth.ActionReboot), peers: health1("xid_79", gpuhealth.ActionReboot), want: "xid_79"},
		"not of the peers before the rest": {now: both(health1("xid_79", gpuhealth.ActionReboot), clock), peers: health1("xid_79", gpuhealth.ActionReboot), want: "sm_clock_low"},

		"a clock within 5 %":      {now: of(reading.SMClock, 1.81e9), want: Unexplained},
		"a limit within 5 %":      {now: both(of(reading.PowerLimit, 670), throttles("power_cap")), want: Unexplained},
		"CPU pressure below 20 %": {now: nodeFault(reading.CPUPressure, 0.19), want: Unexplained},
		"a run queue below twice": {now: nodeFault(reading.LoadAverage, 17), want: Unexplained},
		"memory below 95 %":       {now: of(reading.MemoryUsed, 94), want: Unexplained},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if tt.old != nil {
				r.put(0, r.now.Add(-10*time.Minute), tt.old)
			}
			if tt.now != nil {
				r.put(0, r.now, tt.now)
			}
			for n := 1; tt.peers != nil && n <= peers; n++ {
				r.put(n, r.now, tt.peers)
			}
			assert.Equal(t, tt.want, r.explain().Reason)
		})
	}
}

// TestWindow: what held at any time from a minute before the node became slow. A node that
// has just reported first has nothing old.
func TestWindow(t *testing.T) {
	for over, want := range map[time.Duration]Reason{-2 * time.Minute: Unexplained, -80 * time.Second: "hw_thermal"} {
		r := newRig(t)
		r.put(0, r.now.Add(-5*time.Minute), throttles("hw_thermal"))
		r.put(0, r.now.Add(over), func(u *fleetstate.Update) { u.SetThrottle(u.GPU(gpu(2)), "hw_thermal", false) })
		assert.Equal(t, want, r.explain().Reason, over)
	}
	for age, old := range map[time.Duration]bool{3 * time.Minute: false, 4 * time.Minute: true} {
		r := newRig(t)
		r.put(peers+1, r.now.Add(-age), both(healthy, throttles("hw_thermal")))
		f := Explain(r.node(peers+1), r.peers(peers), r.now.Add(-30*time.Second), r.now)
		assert.Equal(t, []any{Reason("hw_thermal"), old, time.Time{}}, []any{f.Reason, f.Evidence[0].Standing, f.Evidence[0].Since}, age)
	}
	r := newRig(t)
	r.put(0, r.now.Add(-10*time.Minute), throttles("hw_thermal"))
	assert.False(t, Explain(r.node(0), r.peers(peers), time.Time{}, r.now).Evidence[0].Standing, "the start of the slowness is unknown")
}

func TestEvidence(t *testing.T) {
	r := newRig(t)
	for g, clock := range []float64{1.7e9, 1.6e9, 1.5e9, 1.9e9} {
		r.put(0, r.now, func(u *fleetstate.Update) {
			u.SetGPU(u.GPU(gpu(g)), reading.SMClock, clock)
			if g < 3 {
				u.SetThrottle(u.GPU(gpu(g)), "hw_thermal", true)
				u.SetGPU(u.GPU(gpu(g)), reading.Temperature, 80+float64(g))
			}
		})
	}
	r.put(3, r.now, of(reading.Temperature, 70))
	r.put(4, r.now, of(reading.Temperature, 72))
	r.put(5, r.now, of(reading.Temperature, 74))
	assert.Equal(t, Finding{
		Reason: "hw_thermal", Action: gpuhealth.ActionCheckCooling, GPU: gpu(2),
		Evidence: []episode.Evidence{
			{Fact: "hw_thermal", Unit: "1", GPU: gpu(2), Value: new(1.0), Peers: new(0.0), Since: r.now},
			{Fact: "temperature", Unit: "Cel", GPU: gpu(2), Value: new(82.0), Peers: new(70.0)},
			{Fact: "sm_clock", Unit: "1", GPU: gpu(2), Value: new(1.5 / 1.98), Peers: new(1.9 / 1.98)},
		},
	}, r.explain(), "of equals the one with the lowest clock; peers with their hottest GPU")
}

// TestPeers: three must have a known value, and 256 are enough. A peer without a health does not
// count.
func TestPeers(t *testing.T) {
	r := newRig(t)
	r.put(0, r.now, health1("xid_79", gpuhealth.ActionReboot))
	for n := 1; n <= 3; n++ {
		r.put(n, r.now, func(u *fleetstate.Update) {
			for g := range 4 {
				u.SetHealth(u.GPU(gpu(g)), fleetstate.Healthy, false)
			}
		})
	}
	assert.True(t, r.explain().Observation)

	r = newRig(t)
	r.put(0, r.now, throttles("hw_thermal"))
	asked := 0
	endless := func(yield func(*fleetstate.Node) bool) {
		for asked = 1; yield(r.node(1 + asked%peers)); asked++ {
		}
	}
	assert.False(t, Explain(r.node(0), endless, r.now, r.now).Observation)
	assert.Equal(t, maxPeers, asked)
}

func TestAGroup(t *testing.T) {
	for name, tt := range map[string]struct {
		hot, shared int
		others      bool
		want        Reason
		action      gpuhealth.Action
	}{
		"all":            {6, 6, false, "hw_thermal", gpuhealth.ActionCheckCooling},
		"half":           {3, 3, false, "hw_thermal", gpuhealth.ActionCheckCooling},
		"few":            {2, 0, false, Unexplained, gpuhealth.ActionCheckShared},
		"none":           {0, 0, false, Unexplained, gpuhealth.ActionCheckShared},
		"the others too": {6, 6, true, "hw_thermal", gpuhealth.ActionCheckCooling},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var slow []*fleetstate.Node
			for n := range 6 {
				r.put(10+n, t0, healthy)
				if n < tt.hot {
					r.put(10+n, r.now, both(throttles("hw_thermal"), of(reading.Temperature, 80+float64(n))))
				} else {
					r.put(10+n, r.now, of(reading.PCIeWidth, float64(8+n%2))) // each of these has something else, or nothing
					r.put(10+n, r.now, of(reading.PCIeWidth, 16))
				}
				slow = append(slow, r.node(10+n))
			}
			for n := 1; tt.others && n <= peers; n++ {
				r.put(n, r.now, throttles("hw_thermal"))
			}
			f := ExplainGroup(slow, r.peers(peers), r.now, r.now)
			assert.Equal(t, []any{tt.want, tt.action, tt.shared, 6, tt.others, ""}, []any{f.Reason, f.Action, f.Shared, f.Asked, f.Observation, f.GPU})
			if tt.want != Unexplained {
				assert.Equal(t, []episode.Evidence{
					{Fact: "hw_thermal", Unit: "1", Value: new(1.0), Peers: new(map[bool]float64{true: 1}[tt.others])},
					{Fact: "temperature", Unit: "Cel", Value: new(80 + float64(tt.hot/2)), Peers: new(60.0)},
				}, f.Evidence[:2])
			}
			f = ExplainGroup(slices.Repeat(append(slow, nil), 10), r.peers(peers), r.now, r.now)
			assert.Equal(t, maxAsked, f.Asked)
		})
	}
}

func TestBecause(t *testing.T) {
	evidence := func(pairs ...any) (list []episode.Evidence) {
		for i := 0; i < len(pairs); i += 3 {
			e := episode.Evidence{Fact: pairs[i].(string), Value: new(pairs[i+1].(float64))}
			if peers, has := pairs[i+2].(float64); has {
				e.Peers = &peers
			}
			list = append(list, e)
		}
		return list
	}
	for _, tt := range []struct {
		reason   Reason
		evidence []episode.Evidence
		want     string
	}{
		{"hw_thermal", evidence("hw_thermal", 1., 0., "temperature", 94., 61.), "the hardware held the clocks down because of heat; temperature of the GPU: 94 °C, peers 61 °C"},
		{"sm_clock_low", evidence("sm_clock", .5512, .98), "SM clock, fraction of its highest, while the GPU works: 55.1 %, peers 98 %"},
		{"xid_94", evidence("health_score", 50., 100.), "the driver reported Xid 94"},
		{"pcie_width", evidence("health_score", 60., 100.), "the PCIe link is narrower than it can be"},
		{"pcie_width", evidence("pcie_lanes", .5, 1.), "lanes of the PCIe link, fraction of the most that GPU and slot can do: 50 %, peers 100 %"},
		{"network_link_slow", evidence("network_bandwidth", 12.5e9, 50e9), "bandwidth of the links of all network adapters together: 12.5 GB/s, peers 50 GB/s"},
		{"noisy_neighbour", nil, "more processes compute on a GPU than with the peers"},
		{"nvml_hang", evidence("from_a_later_release", 1., nil), "the driver did not answer within the deadline"},
		{"from_a_later_release", nil, "from a later release"},
		{Unexplained, nil, "nothing that was measured explains it"},
	} {
		assert.Equal(t, tt.want, Because(tt.reason, tt.evidence))
	}
}

// TestSendersWithoutUp: a peer's GPU with readings and without a series of a reason never had it.
func TestSendersWithoutUp(t *testing.T) {
	r := newRig(t)
	for n := range peers + 1 {
		r.put(n, r.now, func(u *fleetstate.Update) {
			for g := range 4 {
				u.SetUp(u.GPU(gpu(g)), math.NaN(), "ok")
			}
		})
	}
	r.put(0, r.now, throttles("hw_thermal"))
	assert.False(t, r.explain().Observation)
}

// TestAllGPUsAlike: where all boards of a node have what decides, none of them is named, but
// for one that is clearly worse.
func TestAllGPUsAlike(t *testing.T) {
	for name, tt := range map[string]struct {
		clocks [4]float64
		brake  bool
		gpu    string
	}{
		"clocks":               {[4]float64{1.4e9, 1.41e9, 1.4e9, 1.42e9}, false, ""},
		"one is lower":         {[4]float64{1.4e9, 1.4e9, 1.2e9, 1.4e9}, false, gpu(2)},
		"one is not":           {[4]float64{1.4e9, 1.4e9, 1.4e9, 1.9e9}, false, gpu(0)},
		"one is not known":     {[4]float64{1.4e9, 1.4e9, 1.4e9, math.NaN()}, false, gpu(0)},
		"a brake of all":       {[4]float64{1.4e9, 1.4e9, 1.4e9, 1.4e9}, true, ""},
		"a brake that one has": {[4]float64{1.4e9, 1.4e9, 1.2e9, 1.4e9}, true, gpu(2)},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.put(0, r.now, func(u *fleetstate.Update) {
				for i, clock := range tt.clocks {
					u.SetGPU(u.GPU(gpu(i)), reading.SMClock, clock)
					u.SetThrottle(u.GPU(gpu(i)), "power_brake", tt.brake)
				}
				slice := u.GPU("MIG-0") // which has no clock of its own
				u.SetParent(slice, gpu(0))
				u.SetHealth(slice, fleetstate.Healthy, true)
			})
			assert.Equal(t, tt.gpu, r.explain().GPU)
		})
	}
	r := newRig(t)
	r.put(99, r.now, func(u *fleetstate.Update) {
		u.SetGPU(u.GPU(gpu(0)), reading.SMClock, 1.4e9)
		u.SetGPU(u.GPU(gpu(0)), reading.SMClockLimit, 1.98e9)
	})
	assert.Equal(t, gpu(0), Explain(r.node(99), r.peers(peers), r.now.Add(-30*time.Second), r.now).GPU, "a lone GPU is the smallest culprit")
}

// TestALostGPUHasNoReadings: what it read last is no evidence.
func TestALostGPUHasNoReadings(t *testing.T) {
	r := newRig(t)
	r.put(0, r.now, func(u *fleetstate.Update) {
		u.SetUp(u.GPU(gpu(0)), 0, "lost")
		u.SetReason(u.GPU(gpu(0)), fleetstate.HealthReason{Reason: "gpu_lost", Action: "reboot"}, true)
	})
	f := r.explain()
	assert.Equal(t, "gpu_lost", string(f.Reason))
	assert.NotContains(t, fmt.Sprint(f.Evidence), "clock")
}
