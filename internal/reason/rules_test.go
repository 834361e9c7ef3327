// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	fleetNodes = 5
	fleetGPUs  = 8
)

// fleet is a cluster "c" of nodes n0 to n4, healthy and under load; n0 is
// accused.
type fleet struct {
	t     *testing.T
	store *Store
	now   time.Time
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{t: t, store: New(Config{MaxNodes: 100, MaxBytes: 1 << 30, Retention: time.Hour}), now: epoch}
	for i := range fleetNodes {
		f.healthy(f.node(i))
	}
	f.now = f.now.Add(10 * time.Minute)
	return f
}

func (f *fleet) node(i int) *Node {
	f.t.Helper()
	n, err := f.store.Node("c", fmt.Sprintf("n%d", i), f.now)
	require.NoError(f.t, err)
	return n
}

func gpuID(g int) string { return fmt.Sprintf("GPU-%d", g) }

func (f *fleet) put(n *Node, g int, field reading.Field, v float64) {
	f.t.Helper()
	i, err := n.GPU(gpuID(g))
	require.NoError(f.t, err)
	n.Put(i, field, v)
}

func (f *fleet) xid(n *Node, g int, code uint16) {
	f.t.Helper()
	i, err := n.GPU(gpuID(g))
	require.NoError(f.t, err)
	require.NoError(f.t, n.PutXid(i, code, 1, epoch))
}

func (f *fleet) up(n *Node, g int, u Up) {
	f.t.Helper()
	i, err := n.GPU(gpuID(g))
	require.NoError(f.t, err)
	n.PutUp(i, u)
}

func (f *fleet) healthy(n *Node) {
	f.t.Helper()
	for g := range fleetGPUs {
		f.up(n, g, UpAnswers)
		for field := firstFlag; field < firstGauge; field++ {
			f.put(n, g, field, 0)
		}
		for field, v := range map[reading.Field]float64{
			reading.SMClock: 1.9e9, reading.SMClockLimit: 1.98e9, reading.PCIeGeneration: 5, reading.PCIeGenerationLimit: 5,
			reading.PCIeWidth: 16, reading.PCIeWidthLimit: 16, reading.NVLinksUp: 18, reading.MemoryShare: 0.7, reading.Temperature: 60,
			reading.Utilization: 1, reading.Power: 650, reading.PowerLimit: 700, reading.Processes: 1,
		} {
			f.put(n, g, field, v)
		}
		for field := firstCounter; field <= lastCounter; field++ {
			f.put(n, g, field, 1000)
		}
	}
	for field, v := range map[reading.Field]float64{
		reading.CPUPressure: 0.02, reading.CPUSteal: 0, reading.LoadAverage: 12, reading.HostMemory: 0.4, reading.GPUsExpected: 8, reading.GPUsFound: 8,
	} {
		n.PutNode(field, v)
	}
	for _, id := range []string{"mlx5_0", "mlx5_1"} {
		require.NoError(f.t, n.PutBandwidth(id, 50e9))
		require.NoError(f.t, n.PutNetworkErrors(id, 1, 40))
	}
}

func (f *fleet) names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range fleetNodes {
			if !yield(fmt.Sprintf("n%d", i)) {
				return
			}
		}
	}
}

// explain says why n0 is slow that was accused half a minute ago.
func (f *fleet) explain() Finding {
	return f.store.Explain("c", "n0", f.names(), f.now.Add(-30*time.Second), f.now)
}

// fault makes one test of one rule hold on a GPU of a node.
type fault struct {
	reason Reason
	fact   Fact
	// value that the evidence has to name.
	value float64
	apply func(f *fleet, n *Node, g int)
	// whole is a fault of the node, not of a GPU.
	whole bool
	// alone is a fault that is nothing without healthy peers.
	alone bool
}

func set(field reading.Field, v float64) func(*fleet, *Node, int) {
	return func(f *fleet, n *Node, g int) { f.t.Helper(); f.put(n, g, field, v) }
}

func setNode(field reading.Field, v float64) func(*fleet, *Node, int) {
	return func(f *fleet, n *Node, _ int) { f.t.Helper(); n.PutNode(field, v) }
}

func setXid(code uint16) func(*fleet, *Node, int) {
	return func(f *fleet, n *Node, g int) { f.t.Helper(); f.xid(n, g, code) }
}

func setUp(u Up) func(*fleet, *Node, int) {
	return func(f *fleet, n *Node, g int) { f.t.Helper(); f.up(n, g, u) }
}

var faults = []fault{
	{reason: "gpu_lost", fact: GPULost, value: 1, apply: setUp(UpLost)},
	{reason: "gpu_lost", fact: XidOffBus, value: 1, apply: setXid(79)},
	{reason: "gpu_silent", fact: GPUSilent, value: 1, apply: setUp(UpSilent)},
	{reason: "row_remap_failed", fact: RemapFailed, value: 1, apply: set(reading.RemapFailed, 1)},
	{reason: "gpu_memory_fault", fact: ECCUncorrected, value: 2, apply: set(reading.ECCUncorrected, 1002)},
	{reason: "gpu_memory_fault", fact: XidMemory, value: 1, apply: setXid(94)},
	{reason: "gpu_memory_fault", fact: RemapPending, value: 1, apply: set(reading.RemapPending, 1)},
	{reason: "gpu_memory_fault", fact: RetirementPending, value: 1, apply: set(reading.RetirementPending, 1)},
	{reason: "gpu_xid", fact: XidReset, value: 1, apply: setXid(119)},
	{reason: "hw_power_brake", fact: PowerBrake, value: 1, apply: set(reading.PowerBrake, 1)},
	{reason: "hw_power_brake", fact: PowerBrakeTime, value: 1, apply: set(reading.PowerBrakeTime, 1001)},
	{reason: "hw_thermal", fact: HWThermal, value: 1, apply: set(reading.HWThermal, 1)},
	{reason: "hw_thermal", fact: HWThermalTime, value: 3, apply: set(reading.HWThermalTime, 1003)},
	{reason: "sw_thermal", fact: SWThermal, value: 1, apply: set(reading.SWThermal, 1)},
	{reason: "sw_thermal", fact: SWThermalTime, value: 3, apply: set(reading.SWThermalTime, 1003)},
	{reason: "hw_slowdown", fact: HWSlowdown, value: 1, apply: set(reading.HWSlowdown, 1)},
	{reason: "sw_power_cap", fact: SMClock, value: 0.8, alone: true, apply: func(f *fleet, n *Node, g int) {
		f.t.Helper()
		f.put(n, g, reading.PowerCap, 1)
		f.put(n, g, reading.SMClock, 0.8*1.98e9)
	}},
	{reason: "sw_power_cap", fact: PowerLimit, value: 500, alone: true, apply: func(f *fleet, n *Node, g int) {
		f.t.Helper()
		for i := range fleetNodes {
			f.put(f.node(i), 0, reading.PowerCap, 1)
		}
		f.put(n, g, reading.PowerCap, 1)
		f.put(n, g, reading.PowerLimit, 500)
	}},
	{reason: "sm_clock_low", fact: SMClock, value: 0.8, apply: set(reading.SMClock, 0.8*1.98e9), alone: true},
	{reason: "pcie_link_degraded", fact: PCIeWidth, value: 0.5, apply: set(reading.PCIeWidth, 8)},
	{reason: "pcie_link_degraded", fact: PCIeSpeed, value: 0.2, apply: set(reading.PCIeGeneration, 1)},
	{reason: "pcie_link_degraded", fact: PCIeGeneration, value: 3, alone: true, apply: func(f *fleet, n *Node, g int) {
		f.t.Helper()
		i, err := n.GPU(gpuID(g))
		require.NoError(f.t, err)
		n.Drop(i, reading.PCIeGenerationLimit)
		f.put(n, g, reading.PCIeGeneration, 3)
	}},
	{reason: "pcie_replays", fact: PCIeReplays, value: 50, apply: set(reading.PCIeReplays, 1050)},
	{reason: "nvlink_errors", fact: NVLinkReplays, value: 1, apply: set(reading.NVLinkReplay, 1001)},
	{reason: "nvlink_errors", fact: NVLinkReplays, value: 2, apply: set(reading.NVLinkRecovery, 1002)},
	{reason: "nvlink_errors", fact: NVLinkCRC, value: 1, apply: set(reading.NVLinkCRC, 1001)},
	{reason: "nvlink_errors", fact: NVLinkCRC, value: 7, apply: func(f *fleet, n *Node, g int) {
		f.t.Helper()
		f.put(n, g, reading.NVLinkCRCFlit, 1003)
		f.put(n, g, reading.NVLinkCRCData, 1004)
	}},
	{reason: "nvlink_errors", fact: XidNVLink, value: 1, apply: setXid(74)},
	{reason: "nvlink_down", fact: NVLinksUp, value: 17, apply: set(reading.NVLinksUp, 17), alone: true},
	{reason: "network_errors", fact: NetworkErrors, value: 5, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		require.NoError(f.t, n.PutNetworkErrors("mlx5_1", 1, 45))
	}},
	{reason: "network_link_slow", fact: NetworkBandwidth, value: 75e9, whole: true, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		require.NoError(f.t, n.PutBandwidth("mlx5_0", 25e9))
	}},
	{reason: "cpu_contention", fact: CPUPressure, value: 0.5, apply: setNode(reading.CPUPressure, 0.5), whole: true, alone: true},
	{reason: "cpu_contention", fact: CPUSteal, value: 0.1, apply: setNode(reading.CPUSteal, 0.1), whole: true, alone: true},
	{reason: "cpu_contention", fact: LoadAverage, value: 40, apply: setNode(reading.LoadAverage, 40), whole: true, alone: true},
	{reason: "memory_pressure", fact: HostMemory, value: 0.97, apply: setNode(reading.HostMemory, 0.97), whole: true, alone: true},
	{reason: "memory_pressure", fact: GPUMemory, value: 0.99, apply: set(reading.MemoryShare, 0.99), alone: true},
	{reason: "noisy_neighbour", fact: Processes, value: 3, apply: set(reading.Processes, 3), alone: true},
}

func (x *fault) name() string { return string(x.reason) + "/" + x.fact.String() }

// device is the hw.id that a fault on GPU g points at.
func (x *fault) device(g int) string {
	switch {
	case x.whole:
		return ""
	case x.fact == NetworkErrors:
		return "mlx5_1"
	default:
		return gpuID(g)
	}
}

func TestAHealthyNodeIsUnexplained(t *testing.T) {
	f := newFleet(t)
	for _, node := range []string{"n0", "nobody"} {
		got := f.store.Explain("c", node, f.names(), f.now.Add(-time.Minute), f.now)
		assert.Equal(t, Finding{Reason: Unexplained, Action: ActionBurnIn, Advice: unexplainedAdvice}, got, node)
	}
}

// Each fault alone is found under its own reason: no rule is out of reach, and
// none before it takes what is its.
func TestEachRule(t *testing.T) {
	for _, x := range faults {
		t.Run(x.name(), func(t *testing.T) {
			f := newFleet(t)
			x.apply(f, f.node(0), 5)
			got := f.explain()
			require.Equal(t, x.reason, got.Reason)
			assert.False(t, got.Observation)
			assert.Equal(t, x.device(5), got.GPU)
			require.NotEmpty(t, got.Evidence)
			e := got.Evidence[0]
			assert.Equal(t, x.fact, e.Fact)
			assert.Equal(t, x.device(5), e.GPU)
			assert.InEpsilon(t, x.value, e.Value, 1e-6)
			require.True(t, e.HasPeers)
			assert.Positive(t, x.fact.worse(e.Value, e.Peers))
		})
	}
}

// A fault that all peers have as well is no more than an observation, and
// nothing at all where only the peers can tell.
func TestWithoutContrast(t *testing.T) {
	for _, x := range faults {
		t.Run(x.name(), func(t *testing.T) {
			f := newFleet(t)
			for i := range fleetNodes {
				x.apply(f, f.node(i), 5)
			}
			got := f.explain()
			if x.alone {
				assert.Equal(t, Unexplained, got.Reason)
				assert.False(t, got.Observation)
				return
			}
			assert.Equal(t, x.reason, got.Reason)
			assert.True(t, got.Observation)
			assert.Equal(t, x.device(5), got.GPU)
		})
	}
}

// The same when too few peers are known: two.
func TestWithoutPeers(t *testing.T) {
	for _, x := range faults {
		t.Run(x.name(), func(t *testing.T) {
			f := newFleet(t)
			x.apply(f, f.node(0), 5)
			got := f.store.Explain("c", "n0", slices.Values([]string{"n0", "n1", "n2", "stranger"}), f.now, f.now)
			if x.alone {
				assert.Equal(t, Unexplained, got.Reason)
				return
			}
			assert.Equal(t, x.reason, got.Reason)
			assert.True(t, got.Observation)
			assert.False(t, got.Evidence[0].HasPeers)
		})
	}
}

func TestEveryTestOfEveryRuleHasAFault(t *testing.T) {
	for _, r := range rules {
		for _, test := range r.Tests {
			assert.True(t, slices.ContainsFunc(faults, func(x fault) bool { return x.reason == r.Reason && x.fact == test.Fact }),
				"%s %s", r.Reason, test.Fact)
		}
	}
}

// A node with two faults gets the reason that comes first in the table.
func TestOrder(t *testing.T) {
	rank := func(x *fault) int {
		return slices.IndexFunc(rules, func(r Rule) bool { return r.Reason == x.reason })
	}
	for i := range faults {
		for j := range faults {
			a, b := &faults[i], &faults[j]
			if rank(a) >= rank(b) {
				continue
			}
			f := newFleet(t)
			b.apply(f, f.node(0), 6)
			a.apply(f, f.node(0), 2)
			got := f.explain()
			assert.Equal(t, a.reason, got.Reason, "with %s", b.name())
			assert.Equal(t, a.device(2), got.GPU, "%s with %s", a.name(), b.name())
		}
	}
}

// A fact that the peers lack goes before a fact that they share.
func TestAContrastGoesBeforeAnObservation(t *testing.T) {
	f := newFleet(t)
	for i := range fleetNodes {
		f.put(f.node(i), 1, reading.SWThermal, 1)
	}
	f.put(f.node(0), 4, reading.PCIeWidth, 4)
	got := f.explain()
	assert.Equal(t, Reason("pcie_link_degraded"), got.Reason)
	assert.Equal(t, gpuID(4), got.GPU)
	assert.False(t, got.Observation)
}

// Of several observations the first in the table is given.
func TestTheFirstObservation(t *testing.T) {
	f := newFleet(t)
	for i := range fleetNodes {
		f.put(f.node(i), 1, reading.PCIeWidth, 8)
		f.put(f.node(i), 2, reading.SWThermal, 1)
	}
	got := f.explain()
	assert.Equal(t, Reason("sw_thermal"), got.Reason)
	assert.True(t, got.Observation)
}

// Within a rule, too, the fact that the peers do not share says which GPU it is.
func TestTheGPUOfTheContrast(t *testing.T) {
	f := newFleet(t)
	for i := range fleetNodes {
		f.put(f.node(i), 1, reading.ECCUncorrected, 1001)
	}
	f.put(f.node(0), 4, reading.RemapPending, 1)
	got := f.explain()
	assert.Equal(t, Reason("gpu_memory_fault"), got.Reason)
	assert.Equal(t, gpuID(4), got.GPU)
}

// An Xid from before the window is no evidence.
func TestAnOldXid(t *testing.T) {
	f := newFleet(t)
	f.xid(f.node(0), 3, 119)
	f.now = f.now.Add(time.Hour)
	assert.Equal(t, Unexplained, f.explain().Reason)
	f.up(f.node(0), 3, UpLost)
	for _, e := range f.explain().Evidence {
		assert.NotEqual(t, LastXid, e.Fact)
	}
	f.xid(f.node(0), 3, 79)
	got := f.explain()
	require.Len(t, got.Evidence, 3)
	assert.Equal(t, Evidence{Fact: LastXid, GPU: gpuID(3), Value: 79}, got.Evidence[2])
}

// TestXidsAreJudgedAsByTheRubric: of no code the explanation asks for more than
// the rubric, and a code that NVIDIA says to ignore explains nothing.
func TestXidsAreJudgedAsByTheRubric(t *testing.T) {
	rubric := gpuhealth.DefaultRubric()
	for code := range uint16(300) {
		f := newFleet(t)
		f.xid(f.node(0), 3, code)
		got, x := f.explain(), rubric.Xid(uint64(code))
		assert.Equal(t, x.Evidence() == gpuhealth.XidNoEvidence, got.Reason == Unexplained, "Xid %d", code)
		if x.Immediate == "IGNORE" {
			assert.Equal(t, Unexplained, got.Reason, "NVIDIA says to ignore Xid %d", code)
			assert.Equal(t, gpuhealth.ActionNone, x.Action)
		}
		if got.Reason != Unexplained {
			assert.Less(t, x.Cap, gpuhealth.NoCap, "Xid %d is nothing to the rubric", code)
		}
	}
}

// A little short of each threshold nothing is found.
func TestThresholds(t *testing.T) {
	for name, apply := range map[string]func(*fleet, *Node, int){
		"an Xid of an application":         setXid(31),
		"a row that is to be remapped":     setXid(63),
		"many corrected errors":            setXid(92),
		"0.9 s of power brake":             set(reading.PowerBrakeTime, 1000.9),
		"0.9 s of hardware throttling":     set(reading.HWThermalTime, 1000.9),
		"0.9 s of software throttling":     set(reading.SWThermalTime, 1000.9),
		"a clock 4 % of its maximum lower": set(reading.SMClock, 1.9e9-0.04*1.98e9),
		"8 PCIe replays per minute":        set(reading.PCIeReplays, 1016), // in two minutes; the minute in which the window begins counts too
		"0.9 % less bandwidth":             func(_ *fleet, n *Node, _ int) { _ = n.PutBandwidth("mlx5_0", 49.1e9) },
		// As of the slowest of a job in lockstep: the others wait, and draw less.
		"a power limit that is met, but not by the peers": set(reading.PowerCap, 1),
		"a lower power limit that is not met":             set(reading.PowerLimit, 500),
		"a clock 4 % lower under a power limit": func(f *fleet, n *Node, g int) {
			f.put(n, g, reading.PowerCap, 1)
			f.put(n, g, reading.SMClock, 1.9e9-0.04*1.98e9)
		},
		"a power limit 4 % lower": func(f *fleet, n *Node, g int) {
			for i := range fleetNodes {
				f.put(f.node(i), g, reading.PowerCap, 1)
			}
			f.put(n, g, reading.PowerLimit, 672)
		},
		"19 % more pressure":                   setNode(reading.CPUPressure, 0.21),
		"4 % stolen":                           setNode(reading.CPUSteal, 0.04),
		"a run queue that is not twice":        setNode(reading.LoadAverage, 23),
		"a host that is 94 % full":             setNode(reading.HostMemory, 0.94),
		"a GPU that is 94 % full":              set(reading.MemoryShare, 0.94),
		"a GPU with more links up":             set(reading.NVLinksUp, 19),
		"a GPU at rest":                        atRest,
		"a GPU with a faster link than theirs": set(reading.PCIeWidth, 32),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			apply(f, f.node(0), 3)
			assert.Equal(t, Unexplained, f.explain().Reason)
		})
	}
}

// atRest is what a GPU without work does to its clock and its link.
func atRest(f *fleet, n *Node, g int) {
	f.t.Helper()
	f.put(n, g, reading.Utilization, 0)
	f.put(n, g, reading.SMClock, 345e6)
	f.put(n, g, reading.PCIeGeneration, 1)
}

func TestEvidence(t *testing.T) {
	f := newFleet(t)
	n := f.node(0)
	f.put(n, 2, reading.PowerCap, 1)
	f.put(n, 2, reading.PowerLimit, 500)
	f.put(n, 2, reading.SMClock, 0.5*1.98e9)
	f.put(n, 7, reading.Power, 699)
	got := f.explain()
	require.Equal(t, Reason("sw_power_cap"), got.Reason)
	assert.Equal(t, ActionCheckLimit, got.Action)
	want := []Evidence{
		{Fact: PowerLimit, GPU: gpuID(2), Value: 500, Peers: 700, HasPeers: true, Since: f.now},
		{Fact: SMClock, GPU: gpuID(2), Value: 0.5, Peers: 1.9 / 1.98, HasPeers: true},
		{Fact: PowerCap, GPU: gpuID(2), Value: 1, Peers: 0, HasPeers: true, Since: f.now},
		{Fact: Power, GPU: gpuID(2), Value: 650, Peers: 650, HasPeers: true},
	}
	require.Len(t, got.Evidence, len(want))
	for i, e := range got.Evidence {
		assert.InDelta(t, want[i].Value, e.Value, 1e-6, e.Fact)
		assert.InDelta(t, want[i].Peers, e.Peers, 1e-6, e.Fact)
		e.Value, e.Peers = want[i].Value, want[i].Peers
		assert.Equal(t, want[i], e)
	}
}

// The receiver has no series of a throttle reason that never held: of a GPU
// that answers that is a no, of another one it says nothing.
func TestThrottleReasonsThatNeverHeld(t *testing.T) {
	for answers, observation := range map[Up]bool{UpAnswers: false, UpUnknown: true} {
		f := newFleet(t)
		for i := range fleetNodes {
			n := f.node(i)
			for g := range fleetGPUs {
				f.up(n, g, answers)
				for field := reading.PowerBrake; field < firstGauge; field++ {
					at, err := n.GPU(gpuID(g))
					require.NoError(t, err)
					n.Drop(at, field)
				}
			}
		}
		f.put(f.node(0), 3, reading.HWSlowdown, 1)
		got := f.explain()
		assert.Equal(t, Reason("hw_slowdown"), got.Reason)
		assert.Equal(t, observation, got.Observation)
	}
}

// Of several GPUs under the same brake the slowest is named.
func TestTheSlowestOfEquals(t *testing.T) {
	f := newFleet(t)
	n := f.node(0)
	for g := range fleetGPUs {
		f.put(n, g, reading.PowerBrake, 1)
		f.put(n, g, reading.SMClock, 1.5e9)
	}
	f.put(n, 6, reading.SMClock, 0.4e9)
	assert.Equal(t, gpuID(6), f.explain().GPU)
}

// The worst GPU of each peer counts, so that a node is compared with the worst
// GPU that is usual.
func TestPeersCountWithTheirWorstGPU(t *testing.T) {
	f := newFleet(t)
	for i := range fleetNodes {
		f.put(f.node(i), i, reading.PowerCap, 1) // on one GPU of each node
	}
	assert.Equal(t, Unexplained, f.explain().Reason)
}

// group is a fleet whose nodes n0 to n5 are slow together and n6 to n11 are not.
func newGroup(t *testing.T) (f *fleet, slow, others []string) {
	t.Helper()
	f = &fleet{t: t, store: New(Config{MaxNodes: 400, MaxBytes: 1 << 30, Retention: time.Hour}), now: epoch}
	for i := range 12 {
		f.healthy(f.node(i))
		if name := fmt.Sprintf("n%d", i); i < 6 {
			slow = append(slow, name)
		} else {
			others = append(others, name)
		}
	}
	f.now = f.now.Add(10 * time.Minute)
	return f, slow, others
}

func (f *fleet) explainGroup(slow, others []string) Finding {
	return f.store.ExplainGroup("c", slow, slices.Values(others), f.now.Add(-30*time.Second), f.now)
}

// A fact of most slow nodes that the others lack explains all slow nodes.
func TestAGroupIsExplained(t *testing.T) {
	for _, test := range []struct {
		name        string
		braked      int
		shared      int
		all         bool // the others as well
		reason      Reason
		action      Action
		observation bool
	}{
		{"all", 6, 5, false, "hw_power_brake", ActionCheckPower, false},
		{"half", 3, 3, false, "hw_power_brake", ActionCheckPower, false},
		{"few", 2, 0, false, Unexplained, ActionCheckShared, false},
		{"none", 0, 0, false, Unexplained, ActionCheckShared, false},
		{"the others too", 6, 5, true, "hw_power_brake", ActionCheckPower, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, slow, others := newGroup(t)
			for i := range test.braked {
				f.put(f.node(i), i, reading.PowerBrake, 1)
			}
			if test.all {
				for i := 6; i < 12; i++ {
					f.put(f.node(i), 0, reading.PowerBrake, 1)
				}
			}
			// One of them has something else, a remapping that failed.
			f.put(f.node(5), 0, reading.RemapFailed, 1)
			got := f.explainGroup(slow, append(others, slow...))
			assert.Equal(t, 6, got.Asked)
			assert.Equal(t, test.shared, got.Shared)
			assert.Equal(t, test.reason, got.Reason)
			assert.Equal(t, test.action, got.Action)
			assert.NotEmpty(t, got.Advice)
			assert.Empty(t, got.GPU)
			assert.Equal(t, test.observation, got.Observation)
			if test.reason == Unexplained {
				assert.Empty(t, got.Evidence)
				return
			}
			e := got.Evidence[0]
			assert.Equal(t, Evidence{Fact: PowerBrake, Value: 1, Peers: one(test.all), HasPeers: true}, e)
		})
	}
}

// A group of any size costs what 32 nodes do; a group without a known fact is
// unexplained.
func TestAGroupIsBounded(t *testing.T) {
	f, _, others := newGroup(t)
	var slow []string
	for i := 12; i < 112; i++ {
		n := f.node(i)
		f.healthy(n)
		f.put(n, 0, reading.HWThermal, 1)
		slow = append(slow, fmt.Sprintf("n%d", i))
	}
	got := f.explainGroup(slow, others)
	assert.Equal(t, Reason("hw_thermal"), got.Reason)
	assert.Equal(t, [2]int{32, 32}, [2]int{got.Shared, got.Asked})
	got = f.explainGroup([]string{"x", "y"}, others)
	assert.Equal(t, Unexplained, got.Reason)
	got = f.explainGroup(nil, others)
	assert.Equal(t, Unexplained, got.Reason)
}

// A limit that was met before the clock fell did not make it fall.
func TestALowClockAfterAPowerCap(t *testing.T) {
	f := newFleet(t)
	n := f.node(0)
	f.put(n, 3, reading.PowerCap, 1)
	f.put(n, 3, reading.PowerCap, 0)
	f.put(n, 3, reading.SMClock, 0.8*1.98e9)
	assert.Equal(t, Reason("sm_clock_low"), f.explain().Reason)
}

// TestFieldsAreKeptByTheirPlace: the runs of the catalogue's fields are what Put takes them for.
func TestFieldsAreKeptByTheirPlace(t *testing.T) {
	for f := reading.None + 1; f < reading.NumFields; f++ {
		m, e := reading.Of(f)
		flag := m.Kind == reading.Gauge && m.Range == reading.Range{Max: 1} && m.Integer
		switch {
		case OfGPU(f):
			assert.Equal(t, reading.GPU, e.Subject, m.Name)
			assert.Equal(t, f >= firstCounter, m.Kind == reading.Counter, m.Name)
			assert.Equal(t, f < firstGauge, flag, m.Name)
			if f >= firstCounter {
				assert.NotZero(t, counted[f-firstCounter], m.Name)
			}
		case OfNode(f):
			assert.Equal(t, reading.Node, e.Subject, m.Name)
			assert.NotEqual(t, reading.Counter, m.Kind, m.Name)
		}
	}
	for f := range NumFacts {
		assert.True(t, source[f] == reading.None || OfGPU(source[f]) || OfNode(source[f]), "%s", f)
	}
}
