// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// play lets time pass with a report of n0 every 10 s.
func (f *fleet) play(d time.Duration, report func(n *Node)) {
	f.t.Helper()
	for end := f.now.Add(d); f.now.Before(end); f.now = f.now.Add(10 * time.Second) {
		n := f.node(0)
		if report != nil {
			report(n)
		}
	}
}

// An old fact does not explain a new slowness, however far up in the table its
// rule is.
func TestTheNewGoesBeforeTheOld(t *testing.T) {
	flicker := 0.0
	total := 1000.0
	for _, test := range []struct {
		name   string
		old    func(f *fleet, n *Node)
		during func(f *fleet, n *Node)
		fresh  func(f *fleet, n *Node)
		reason Reason
		gpu    string
	}{
		{
			"a remapping that waits, and a power brake",
			func(f *fleet, n *Node) { f.put(n, 1, reading.RemapPending, 1) }, nil,
			func(f *fleet, n *Node) { f.put(n, 6, reading.PowerBrake, 1) },
			"hw_power_brake", gpuID(6),
		},
		{
			"the same flag on two GPUs",
			func(f *fleet, n *Node) { f.put(n, 1, reading.HWThermal, 1) }, nil,
			func(f *fleet, n *Node) { f.put(n, 6, reading.HWThermal, 1) },
			"hw_thermal", gpuID(6),
		},
		{
			"a brake that comes and goes, and NVLink errors",
			nil,
			func(f *fleet, n *Node) { flicker = 1 - flicker; f.put(n, 1, reading.PowerBrake, flicker) },
			func(f *fleet, n *Node) { f.put(n, 6, reading.NVLinkReplay, 1001) },
			"nvlink_errors", gpuID(6),
		},
		{
			"errors that are counted all along, and others",
			nil,
			func(f *fleet, n *Node) { total += 5; f.put(n, 1, reading.ECCUncorrected, total) },
			func(f *fleet, n *Node) { f.put(n, 6, reading.NVLinkReplay, 1001) },
			"nvlink_errors", gpuID(6),
		},
		{
			"fewer lanes, and errors of the network",
			func(f *fleet, n *Node) { f.put(n, 1, reading.PCIeWidth, 8) }, nil,
			func(f *fleet, n *Node) {
				require.NoError(f.t, n.PutNetwork("mlx5_1", reading.NetworkErrors, "excessive_buffer_overrun_errors", 1, 50))
			},
			"network_errors", "mlx5_1",
		},
		{
			"a lower power limit, and processes",
			func(f *fleet, n *Node) {
				for i := range fleetNodes {
					f.put(f.node(i), 1, reading.PowerCap, 1)
				}
				f.put(n, 1, reading.PowerLimit, 500)
			}, nil,
			func(f *fleet, n *Node) { f.put(n, 6, reading.Processes, 2) },
			"noisy_neighbour", gpuID(6),
		},
		{
			"a GPU that is lost, and heat",
			func(f *fleet, n *Node) { f.up(n, 1, UpLost) }, nil,
			func(f *fleet, n *Node) { f.put(n, 6, reading.HWThermal, 1) },
			"hw_thermal", gpuID(6),
		},
		{
			"heat, and a GPU that is lost",
			func(f *fleet, n *Node) { f.put(n, 1, reading.HWThermal, 1) }, nil,
			func(f *fleet, n *Node) { f.up(n, 6, UpLost) },
			"gpu_lost", gpuID(6),
		},
		{
			"links that are down, and a load that has no beginning",
			func(f *fleet, n *Node) { f.put(n, 1, reading.NVLinksUp, 17) }, nil,
			func(_ *fleet, n *Node) { n.PutNode(reading.CPUPressure, 0.6) },
			"cpu_contention", "",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFleet(t)
			if test.old != nil {
				test.old(f, f.node(0))
			}
			var during func(n *Node)
			if test.during != nil {
				during = func(n *Node) { test.during(f, n) }
			}
			f.play(5*time.Minute, during)
			test.fresh(f, f.node(0))
			got := f.explain()
			assert.Equal(t, test.reason, got.Reason)
			assert.Equal(t, test.gpu, got.GPU)
			assert.False(t, got.Standing)
			assert.False(t, got.Observation)
			require.NotEmpty(t, got.Evidence)
			assert.False(t, got.Evidence[0].Standing)
		})
	}
}

// Without anything new, the old is what there is, and says since when.
func TestTheOldExplainsWithoutTheNew(t *testing.T) {
	f := newFleet(t)
	began := f.now
	f.put(f.node(0), 1, reading.RemapPending, 1)
	f.play(5*time.Minute, nil)
	got := f.explain()
	assert.Equal(t, Reason("gpu_memory_fault"), got.Reason)
	assert.True(t, got.Standing)
	assert.False(t, got.Observation)
	assert.Equal(t, Evidence{
		Fact: RemapPending, GPU: gpuID(1), Value: 1, HasPeers: true, Since: began, Standing: true,
	}, got.Evidence[0])
	// Nobody knows since when the node is slow: nothing is old then.
	got = f.store.Explain("c", "n0", f.names(), time.Time{}, f.now)
	assert.Equal(t, Reason("gpu_memory_fault"), got.Reason)
	assert.False(t, got.Standing)
}

// A fact in a node's first report was there before, nobody knows since when. A
// node that was first heard of just before it became slow has no old fact.
func TestWhatWasThereAtFirst(t *testing.T) {
	for _, test := range []struct {
		name     string
		quiet    time.Duration
		standing bool
	}{
		{"long ago", 10 * time.Minute, true},
		{"just now", time.Minute, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fleet{t: t, store: New(Config{MaxNodes: 100, MaxBytes: 1 << 30, Retention: time.Hour}), now: epoch}
			for i := range fleetNodes {
				f.healthy(f.node(i))
			}
			f.put(f.node(0), 1, reading.HWSlowdown, 0)
			i, err := f.node(0).GPU("GPU-new")
			require.NoError(t, err)
			n := f.node(0)
			n.PutUp(i, UpAnswers)
			n.Put(i, reading.RemapPending, 1)
			f.play(test.quiet, nil)
			f.put(f.node(0), 2, reading.HWThermal, 1)
			got := f.explain()
			want := Reason("gpu_memory_fault")
			if test.standing {
				want = "hw_thermal"
			}
			assert.Equal(t, want, got.Reason)
			assert.False(t, got.Standing)
			if !test.standing {
				assert.Zero(t, got.Evidence[0].Since)
			}
		})
	}
}

// A low clock is what a brake leads to, even an old one, on the same GPU.
func TestALowClockUnderAnOldBrake(t *testing.T) {
	for _, test := range []struct {
		low    int
		reason Reason
	}{{1, "hw_power_brake"}, {6, "sm_clock_low"}} {
		f := newFleet(t)
		f.put(f.node(0), 1, reading.PowerBrake, 1)
		f.play(5*time.Minute, nil)
		f.put(f.node(0), test.low, reading.SMClock, 1.2e9)
		got := f.explain()
		assert.Equal(t, test.reason, got.Reason)
		assert.Equal(t, gpuID(test.low), got.GPU)
	}
}

// Rest lowers a link's generation, which is no new fault of an old one.
func TestALinkThatRests(t *testing.T) {
	f := newFleet(t)
	f.put(f.node(0), 1, reading.PCIeGeneration, 3)
	f.play(5*time.Minute, nil)
	n := f.node(0)
	f.put(n, 1, reading.PCIeGeneration, 1)
	f.put(n, 1, reading.Utilization, 0)
	f.play(20*time.Second, nil)
	n = f.node(0)
	f.put(n, 1, reading.Utilization, 1)
	f.put(n, 1, reading.PCIeGeneration, 3)
	n.PutNode(reading.CPUPressure, 0.6)
	assert.Equal(t, Reason("cpu_contention"), f.explain().Reason)
	f.put(n, 1, reading.PCIeGeneration, 2)
	assert.Equal(t, Reason("pcie_link_degraded"), f.explain().Reason, "a step more")
}
