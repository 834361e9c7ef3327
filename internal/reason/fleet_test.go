// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
		reading.CPUPressure: 0.02, reading.CPUSteal: 0, reading.LoadAverage: 12, reading.HostMemory: 0.4, reading.IOPressure: 0.01, reading.GPUsExpected: 8, reading.GPUsFound: 8,
	} {
		n.PutNode(field, v)
	}
	for _, id := range []string{"mlx5_0", "mlx5_1"} {
		require.NoError(f.t, n.PutNetwork(id, reading.NetworkUp, "", 0, 1))
		require.NoError(f.t, n.PutNetwork(id, reading.NetworkBandwidth, "", 0, 50e9))
		require.NoError(f.t, n.PutNetwork(id, reading.NetworkErrors, "excessive_buffer_overrun_errors", 1, 40))
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

func putNetwork(t *testing.T, n *Node, id string, field reading.Field, kind string, v float64) {
	t.Helper()
	sub := uint32(len(kind)) // which tells the kinds of these tests apart
	require.NoError(t, n.PutNetwork(id, field, kind, sub, v))
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
	{reason: "network_link_down", fact: NetworkLinkDown, value: 1, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		putNetwork(f.t, n, "mlx5_1", reading.NetworkUp, "", 0)
	}},
	{reason: "network_link_slow", fact: NetworkBandwidth, value: 25e9, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		putNetwork(f.t, n, "mlx5_1", reading.NetworkBandwidth, "", 25e9)
	}},
	{reason: "network_link_slow", fact: NetworkShare, value: 0.5, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper() // the peers' ports have other names
		for _, id := range []string{"mlx5_0", "mlx5_1"} {
			n.DropNetwork(id, reading.NetworkBandwidth, "")
			n.DropNetwork(id, reading.NetworkUp, "")
		}
		putNetwork(f.t, n, "rail0", reading.NetworkBandwidth, "", 50e9)
		putNetwork(f.t, n, "rail1", reading.NetworkBandwidth, "", 50e9)
		putNetwork(f.t, n, "rail1", reading.NetworkBandwidth, "", 25e9)
	}},
	{reason: "network_link_flap", fact: NetworkFlaps, value: 2, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		putNetwork(f.t, n, "mlx5_1", reading.NetworkErrors, "link_downed", 2)
	}},
	{reason: "network_errors", fact: NetworkErrors, value: 5, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		require.NoError(f.t, n.PutNetwork("mlx5_1", reading.NetworkErrors, "excessive_buffer_overrun_errors", 1, 45))
	}},
	{reason: "network_errors", fact: NetworkErrors, value: 2, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper() // the receiver tells a kind from its first count on; the window is of two minutes
		putNetwork(f.t, n, "mlx5_1", reading.NetworkErrors, "symbol_error", 2400)
	}},
	{reason: "network_retransmits", fact: NetworkRetransmits, value: 50, alone: true, apply: func(f *fleet, n *Node, _ int) {
		f.t.Helper()
		putNetwork(f.t, n, "mlx5_1", reading.NetworkPackets, "transmit", 0)
		putNetwork(f.t, n, "mlx5_1", reading.NetworkRetransmits, "out_of_sequence", 50)
		putNetwork(f.t, n, "mlx5_1", reading.NetworkPackets, "transmit", 1e6)
	}},
	{reason: "cpu_contention", fact: CPUPressure, value: 0.5, apply: setNode(reading.CPUPressure, 0.5), whole: true, alone: true},
	{reason: "cpu_contention", fact: CPUSteal, value: 0.1, apply: setNode(reading.CPUSteal, 0.1), whole: true, alone: true},
	{reason: "cpu_contention", fact: LoadAverage, value: 40, apply: setNode(reading.LoadAverage, 40), whole: true, alone: true},
	{reason: "memory_pressure", fact: HostMemory, value: 0.97, apply: setNode(reading.HostMemory, 0.97), whole: true, alone: true},
	{reason: "memory_pressure", fact: GPUMemory, value: 0.99, apply: set(reading.MemoryShare, 0.99), alone: true},
	{reason: "noisy_neighbour", fact: Processes, value: 3, apply: set(reading.Processes, 3), alone: true},
	{reason: "input_starved", fact: Utilization, value: 0.5, apply: idle(0.5, time.Hour), alone: true},
	{reason: "input_starved", fact: IOPressure, value: 0.3, apply: setNode(reading.IOPressure, 0.3), whole: true, alone: true},
}

// idle has a GPU at work for a share of the time, for so long.
func idle(busy float64, lasts time.Duration) func(*fleet, *Node, int) {
	return func(f *fleet, n *Node, g int) {
		f.put(n, g, reading.Utilization, busy)
		f.now = f.now.Add(lasts)
	}
}

func (x *fault) name() string { return string(x.reason) + "/" + x.fact.String() }

// device is the hw.id that a fault on GPU g points at.
func (x *fault) device(g int) string {
	switch {
	case x.whole:
		return ""
	case x.fact == NetworkShare:
		return "rail1"
	case facts[x.fact].scope == ofAdapter:
		return "mlx5_1"
	default:
		return gpuID(g)
	}
}

// atRest is what a GPU without work does to its clock and its link.
func atRest(f *fleet, n *Node, g int) {
	f.t.Helper()
	f.put(n, g, reading.Utilization, 0)
	f.put(n, g, reading.SMClock, 345e6)
	f.put(n, g, reading.PCIeGeneration, 1)
}
