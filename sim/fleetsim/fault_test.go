// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// look is what is seen of a node and of one of its GPUs, beside what a twin
// without a fault shows at the same time.
type look struct {
	gpu, twin, neighbour, peer Reading
	host, twinHost, peerHost   HostReading
}

// afflict runs a job of four nodes for a while, with a fault on GPU 2, or on all GPUs,
// of its node 1. A twin of the job runs without the fault. No checkpoint is in it.
func afflict(t *testing.T, f Fault, over time.Duration) look {
	t.Helper()
	const seed, warm = 3, 13 * time.Minute
	sick, well := NewJob(4, 8, JobConfig{Seed: seed}), NewJob(4, 8, JobConfig{Seed: seed})
	f.From = warm
	require.NoError(t, f.Validate(8))
	sick.Nodes()[1].Inject(f)
	sick.Advance(warm + over)
	well.Advance(warm + over)
	s, w := sick.Nodes(), well.Nodes()
	require.InDelta(t, 1, w[1].Reading(2).Utilization, 0, "a checkpoint")
	return look{
		s[1].Reading(2), w[1].Reading(2), s[1].Reading(5), s[3].Reading(2),
		s[1].Host(), w[1].Host(), s[3].Host(),
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault Fault
		// speed that is left to the node by its own account, at least and at most.
		least, most float64
		check       func(t *testing.T, l look)
	}{
		"slow node": {Fault{Kind: SlowNode, GPU: AllGPUs, Severity: 0.2}, 0.78, 0.82, func(t *testing.T, l look) {
			t.Helper()
			l.gpu.Joules, l.twin.Joules = 0, 0
			assert.Equal(t, l.twin, l.gpu, "no sensor shows it")
		}},
		"drift": {Fault{Kind: Drift, GPU: AllGPUs, Severity: 0.9}, 0.84, 0.86, nil},
		"thermal throttle": {Fault{Kind: ThermalThrottle, GPU: 2, Severity: 0.6}, 0.6, 0.9, func(t *testing.T, l look) {
			t.Helper()
			assert.InDelta(t, MaxCelsius, l.gpu.Celsius, 3)
			assert.NotZero(t, l.gpu.Throttled&gpuhealth.ThrottleSWThermal)
			assert.Greater(t, l.gpu.ThrottledSeconds[gpuhealth.ThrottleTimeSWThermal], 300.0)
			assert.Positive(t, l.gpu.ThrottledSeconds[gpuhealth.ThrottleTimeHWThermal])
			assert.Less(t, l.gpu.ClockHertz, 0.9*l.twin.ClockHertz)
			assert.Less(t, l.neighbour.Celsius, 70.0, "the others are cool")
		}},
		"little heat": {Fault{Kind: ThermalThrottle, GPU: 2, Severity: 0.1}, 0.98, 1.02, func(t *testing.T, l look) {
			t.Helper()
			assert.Greater(t, l.gpu.Celsius, l.twin.Celsius+2)
			assert.Zero(t, l.gpu.Throttled&gpuhealth.ThrottleSWThermal)
		}},
		"power cap": {Fault{Kind: PowerLimit, GPU: 2, Severity: 0.4}, 0.8, 0.88, func(t *testing.T, l look) {
			t.Helper()
			assert.InDelta(t, 420, l.gpu.LimitWatts, 1e-9)
			assert.InDelta(t, 420, l.gpu.Watts, 0.01)
			assert.NotZero(t, l.gpu.Throttled&gpuhealth.ThrottlePowerCap)
			assert.InDelta(t, 700, l.neighbour.LimitWatts, 0)
		}},
		"power brake": {Fault{Kind: Brake, GPU: 2, Severity: 0.5}, 0.48, 0.52, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, gpuhealth.ThrottlePowerBrake|gpuhealth.ThrottleHWSlowdown, l.gpu.Throttled&(gpuhealth.ThrottlePowerBrake|gpuhealth.ThrottleHWSlowdown))
			assert.Zero(t, l.gpu.Throttled&gpuhealth.ThrottleHWThermal)
			assert.InDelta(t, 600, l.gpu.ThrottledSeconds[gpuhealth.ThrottleTimePowerBrake], 1)
			assert.InDelta(t, BoostHertz/2, l.gpu.ClockHertz, ClockStepHertz)
		}},
		"clock lock": {Fault{Kind: ClockLock, GPU: 2, Severity: 0.3}, 0.68, 0.72, func(t *testing.T, l look) {
			t.Helper()
			assert.NotZero(t, l.gpu.Throttled&gpuhealth.ThrottleAppClocks)
			assert.InDelta(t, 0.7*BoostHertz, l.gpu.ClockHertz, ClockStepHertz)
			assert.InDelta(t, BoostHertz, l.gpu.BoostHertz, 0)
			assert.Less(t, l.gpu.Watts, 350.0, "by the cube")
		}},
		"ecc": {Fault{Kind: ECC, GPU: 2, Severity: 0.3}, 0.68, 0.72, func(t *testing.T, l look) {
			t.Helper()
			assert.Greater(t, l.gpu.ECCCorrected, 1000.0)
			assert.InDelta(t, 5, l.gpu.ECCUncorrected, 1)
			assert.True(t, l.gpu.RemapPending)
			assert.False(t, l.gpu.RemapFailed)
			assert.InDelta(t, l.gpu.ECCUncorrected, l.gpu.RemappedRows, 0)
			assert.EqualValues(t, 94, l.gpu.Xids[0].Code)
			assert.EqualValues(t, 63, l.gpu.Xids[1].Code)
			assert.Zero(t, l.neighbour.ECCCorrected)
		}},
		"ecc beyond repair": {Fault{Kind: ECC, GPU: 2, Severity: 0.8}, 0.18, 0.22, func(t *testing.T, l look) {
			t.Helper()
			assert.True(t, l.gpu.RemapFailed)
			assert.EqualValues(t, 64, l.gpu.Xids[2].Code)
		}},
		"corrected errors": {Fault{Kind: ECCCorrected, GPU: 2, Severity: 0.5}, 0.98, 1.02, func(t *testing.T, l look) {
			t.Helper()
			assert.InDelta(t, 30000, l.gpu.ECCCorrected, 100)
			assert.Zero(t, l.gpu.ECCUncorrected)
		}},
		"xid": {Fault{Kind: XidError, GPU: 2, Severity: 119}, 0.68, 0.72, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, Xid{119, 11}, l.gpu.Xids[0], "at once, and each minute since")
			assert.Zero(t, l.gpu.Xids[1])
			assert.True(t, l.gpu.Up)
		}},
		"xid 79": {Fault{Kind: XidError, GPU: 2, Severity: 79}, 0.86, 0.89, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, Xid{79, 1}, l.gpu.Xids[0])
			assert.False(t, l.gpu.Up)
		}},
		"lost gpu": {Fault{Kind: LostGPU, GPU: 2}, 0.86, 0.89, func(t *testing.T, l look) {
			t.Helper()
			assert.False(t, l.gpu.Up)
			assert.Equal(t, Xid{79, 1}, l.gpu.Xids[0])
			assert.True(t, l.neighbour.Up)
		}},
		"lost gpus": {Fault{Kind: LostGPU, GPU: AllGPUs}, 0.009, 0.011, nil},
		"nvlink": {Fault{Kind: NVLink, GPU: 2, Severity: 0.5}, 0.84, 0.9, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, 9, l.gpu.NVLinksUp)
			assert.Equal(t, 18, l.neighbour.NVLinksUp)
			assert.Zero(t, l.gpu.NVLinkReplays)
		}},
		"nvlink errors": {Fault{Kind: NVLinkErrors, GPU: 2, Severity: 0.5}, 0.84, 0.9, func(t *testing.T, l look) {
			t.Helper()
			assert.Greater(t, l.gpu.NVLinkReplays, 1000.0)
			assert.Greater(t, l.gpu.NVLinkCRC, 1000.0)
			assert.Equal(t, 18, l.gpu.NVLinksUp)
		}},
		"pcie": {Fault{Kind: PCIe, GPU: 2, Severity: 0.5}, 0.93, 0.97, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, 8, l.gpu.PCIeLanes)
			assert.Equal(t, 5, l.gpu.PCIeGeneration)
			assert.Equal(t, 16, l.neighbour.PCIeLanes)
		}},
		"pcie generation": {Fault{Kind: PCIeSlow, GPU: 2, Severity: 0.4}, 0.94, 0.99, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, 3, l.gpu.PCIeGeneration)
			assert.Equal(t, 16, l.gpu.PCIeLanes)
		}},
		"cpu": {Fault{Kind: CPU, GPU: AllGPUs, Severity: 0.4}, 0.78, 0.82, func(t *testing.T, l look) {
			t.Helper()
			assert.InDelta(t, 0.43, l.host.CPUPressure, 0.05)
			assert.InDelta(t, 0.03, l.peerHost.CPUPressure, 0.03)
			assert.InDelta(t, 0.8, l.gpu.Utilization, 1e-9)
			assert.InDelta(t, 1, l.peer.Utilization, 0)
		}},
		"neighbour": {Fault{Kind: Neighbour, GPU: 2, Severity: 0.3}, 0.68, 0.72, func(t *testing.T, l look) {
			t.Helper()
			assert.Equal(t, 2, l.gpu.Processes)
			assert.Equal(t, 1, l.neighbour.Processes)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := afflict(t, c.fault, 10*time.Minute)
			left := l.twinHost.StepSeconds / l.host.StepSeconds
			assert.GreaterOrEqual(t, left, c.least)
			assert.LessOrEqual(t, left, c.most)
			if c.check != nil {
				c.check(t, l)
			}
			// The others wait for it: as busy as ever, with less power.
			assert.InDelta(t, 1, l.peer.Utilization, 0)
			assert.InDelta(t, 6, l.peerHost.StepSeconds, 0.3)
			if left < 0.9 {
				assert.Less(t, l.peer.Watts, 690.0)
			}
		})
	}
}

// A fault that ends leaves nothing behind but counts.
func TestFaultsEnd(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			sick, well := NewNode(2, Training, 5), NewNode(2, Training, 5)
			f := Fault{Kind: kind, GPU: AllGPUs, From: 10 * time.Minute, Until: 20 * time.Minute}
			sick.Inject(f)
			sick.Advance(10*time.Minute - time.Second)
			well.Advance(10*time.Minute - time.Second)
			assert.Equal(t, well.Reading(1), sick.Reading(1), "before it begins")
			sick.Advance(40 * time.Minute)
			well.Advance(40 * time.Minute)
			a, b := sick.Reading(1), well.Reading(1)
			assert.Equal(t, b.ClockHertz, a.ClockHertz) //nolint:testifylint // the same computation
			assert.Equal(t, b.Throttled, a.Throttled)
			assert.InDelta(t, b.Celsius, a.Celsius, 1)
			assert.True(t, a.Up)
			assert.False(t, a.RemapPending)
			assert.InDelta(t, well.Host().StepSeconds, sick.Host().StepSeconds, 1e-9)
			assert.InDelta(t, well.Host().CPUPressure, sick.Host().CPUPressure, 1e-6)
		})
	}
}

func TestFlapping(t *testing.T) {
	n := NewNode(1, Training, 5)
	n.Inject(Fault{Kind: Flapping, GPU: AllGPUs, From: time.Minute, Severity: 0.5})
	slow := func(after time.Duration) bool { n.Advance(after - n.at); return n.speed() < 0.9 }
	assert.False(t, slow(59*time.Second))
	assert.True(t, slow(2*time.Minute))
	assert.False(t, slow(6*time.Minute+5*time.Second))
	assert.False(t, slow(10*time.Minute+55*time.Second))
	assert.True(t, slow(11*time.Minute+5*time.Second))
}

// A fault that should have begun begins now, with what happens at its begin.
func TestInjectLate(t *testing.T) {
	n := NewNode(2, Training, 5)
	n.Advance(10 * time.Minute)
	n.Inject(Fault{Kind: LostGPU, GPU: 1})
	n.Advance(10 * time.Second)
	assert.Equal(t, Xid{79, 1}, n.Reading(1).Xids[0])
}

// A slow server of requests is busier, and does not wait for anybody.
func TestFaultsOfInference(t *testing.T) {
	sick, well := NewNode(1, Inference, 5), NewNode(1, Inference, 5)
	sick.Inject(Fault{Kind: SlowNode, GPU: AllGPUs, Severity: 0.3})
	var a, b float64
	for range 100 {
		sick.Advance(10 * time.Second)
		well.Advance(10 * time.Second)
		a += sick.Reading(0).Utilization
		b += well.Reading(0).Utilization
	}
	assert.Greater(t, a, 1.2*b)
}

func TestXidsAreBounded(t *testing.T) {
	var r Reading
	for code := range uint64(9) {
		r.count(code + 1)
		r.count(1)
	}
	assert.Equal(t, [MaxXids]Xid{{1, 10}, {2, 1}, {3, 1}, {4, 1}}, r.Xids)
}

func TestValidateFault(t *testing.T) {
	for name, c := range map[string]struct {
		fault Fault
		want  string
	}{
		"kind":       {Fault{Kind: "rust"}, `kind is "rust", must be one of [clock_lock cpu drift `},
		"severity":   {Fault{Kind: SlowNode, GPU: AllGPUs, Severity: 1}, "severity of slow_node is 1, must be between 0 and 0.95"},
		"code":       {Fault{Kind: XidError, Severity: 7.5}, "must be the code, a whole number"},
		"gpu":        {Fault{Kind: ECC, GPU: 8}, "gpu is 8, must be below the 8 of the node"},
		"whole node": {Fault{Kind: CPU, GPU: 1}, "gpu is 1, but cpu is of the whole node"},
		"begin":      {Fault{Kind: ECC, From: -1}, "begin is -1ns, must not be negative"},
		"end":        {Fault{Kind: ECC, From: 2, Until: 1}, "end is 1ns, must be after the begin at 2ns"},
	} {
		t.Run(name, func(t *testing.T) { assert.ErrorContains(t, c.fault.Validate(8), c.want) })
	}
}
