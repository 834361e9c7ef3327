// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func TestAHealthyNodeIsUnexplained(t *testing.T) {
	f := newFleet(t)
	for _, node := range []string{"n0", "nobody"} {
		got := f.store.Explain("c", node, f.names(), f.now.Add(-time.Minute), f.now)
		assert.Equal(t, outcomeOf(ofNobody), got, node)
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
		want := Unexplained
		switch x.Class {
		case gpuhealth.XidApplication, gpuhealth.XidInformational, gpuhealth.XidSecondary, gpuhealth.XidUnknown:
		case gpuhealth.XidContainedMemory, gpuhealth.XidUncorrectableECC:
			want = "gpu_memory_fault"
		case gpuhealth.XidNVLink:
			want = "nvlink_errors"
		case gpuhealth.XidReset:
			want = "gpu_xid"
		case gpuhealth.XidNode, gpuhealth.XidHardware:
			switch {
			case code == 79:
				want = "gpu_lost"
			case x.Action != gpuhealth.ActionNone:
				want = "gpu_xid"
			}
		}
		assert.Equal(t, want, got.Reason, "Xid %d", code)
		if x.Immediate == "IGNORE" {
			assert.Equal(t, Unexplained, got.Reason, "NVIDIA says to ignore Xid %d", code)
			assert.Equal(t, gpuhealth.ActionNone, x.Action)
		}
		if got.Reason != Unexplained {
			assert.Less(t, x.Cap, gpuhealth.NoCap, "Xid %d is nothing to the rubric", code)
		}
	}
}

func TestTheTableIsTheDocumentedOrder(t *testing.T) {
	var got []Reason
	seen := map[Reason]bool{}
	for _, r := range rules {
		got = append(got, r.Reason)
		assert.False(t, seen[r.Reason], "%s twice", r.Reason)
		seen[r.Reason] = true
		assert.NotEmpty(t, r.When, r.Reason)
		assert.NotEmpty(t, r.Advice, r.Reason)
		assert.NotEmpty(t, r.Action, r.Reason)
		assert.NotEmpty(t, r.Source, r.Reason)
		assert.NotEmpty(t, r.Tests, r.Reason)
	}
	assert.Equal(t, []Reason{
		"gpu_lost", "gpu_silent", "row_remap_failed", "gpu_memory_fault", "gpu_xid",
		"hw_power_brake", "hw_thermal", "sw_thermal", "hw_slowdown", "sw_power_cap", "sm_clock_low",
		"pcie_link_degraded", "pcie_replays", "nvlink_errors", "nvlink_down",
		"network_link_down", "network_link_slow", "network_link_flap", "network_errors", "network_retransmits",
		"cpu_contention", "memory_pressure", "noisy_neighbour", "input_starved",
	}, got)
}

// A little short of each threshold nothing is found.
func TestThresholds(t *testing.T) {
	for name, apply := range map[string]func(*fleet, *Node, int){
		"an Xid of an application":         setXid(31),
		"a row that is to be remapped":     setXid(63),
		"many corrected errors":            setXid(92),
		"one reading of a GPU at rest":     idle(0, 5*time.Second),
		"a GPU that is idle a little more": idle(0.92, time.Hour),
		"tasks that wait for disks a bit":  setNode(reading.IOPressure, 0.09),
		"0.9 s of power brake":             set(reading.PowerBrakeTime, 1000.9),
		"0.9 s of hardware throttling":     set(reading.HWThermalTime, 1000.9),
		"0.9 s of software throttling":     set(reading.SWThermalTime, 1000.9),
		"a clock 4 % of its maximum lower": set(reading.SMClock, 1.9e9-0.04*1.98e9),
		"8 PCIe replays per minute":        set(reading.PCIeReplays, 1016), // in two minutes; the minute in which the window begins counts too
		"0.9 % less bandwidth":             func(_ *fleet, n *Node, _ int) { _ = n.PutNetwork("mlx5_0", reading.NetworkBandwidth, "", 0, 49.6e9) },
		"a link that went down once":       func(f *fleet, n *Node, _ int) { putNetwork(f.t, n, "mlx5_0", reading.NetworkErrors, "link_downed", 1) },
		"599 symbol errors a minute": func(f *fleet, n *Node, _ int) {
			putNetwork(f.t, n, "mlx5_0", reading.NetworkErrors, "symbol_error", 1198)
		},
		"a counter that stands at its maximum": func(f *fleet, n *Node, _ int) {
			putNetwork(f.t, n, "mlx5_0", reading.NetworkCounterFull, "symbol_error", 1)
		},
		"congestion alone": func(f *fleet, n *Node, _ int) {
			putNetwork(f.t, n, "mlx5_0", reading.NetworkCNP, "rp_cnp_handled", 1e9)
			putNetwork(f.t, n, "mlx5_0", reading.NetworkWait, "port_xmit_wait", 1e9)
		},
		"10 retransmissions of a million": func(f *fleet, n *Node, _ int) {
			putNetwork(f.t, n, "mlx5_0", reading.NetworkPackets, "transmit", 0)
			putNetwork(f.t, n, "mlx5_0", reading.NetworkRetransmits, "out_of_sequence", 10)
			putNetwork(f.t, n, "mlx5_0", reading.NetworkPackets, "transmit", 1e6)
		},
		"three times the peers' errors": func(f *fleet, n *Node, _ int) {
			for i := range fleetNodes {
				putNetwork(f.t, f.node(i), "mlx5_0", reading.NetworkErrors, "symbol_error", 2400)
			}
			putNetwork(f.t, n, "mlx5_0", reading.NetworkErrors, "symbol_error", 7100)
		},
		"what is wrong with the port of the default route": func(f *fleet, n *Node, _ int) {
			putNetwork(f.t, n, "mlx5_0", reading.NetworkDefaultRoute, "", 1)
			putNetwork(f.t, n, "mlx5_0", reading.NetworkUp, "", 0)
			putNetwork(f.t, n, "mlx5_0", reading.NetworkErrors, "symbol_error", 1e6)
		},
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

func TestFactsHaveNames(t *testing.T) {
	seen := map[string]bool{}
	for f := range NumFacts {
		assert.Regexp(t, `^[a-z][a-z0-9_]*$`, f.String())
		assert.NotEmpty(t, f.Unit(), f.String())
		assert.NotEmpty(t, facts[f].what, f.String())
		assert.False(t, seen[f.String()], f.String())
		seen[f.String()] = true
	}
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
