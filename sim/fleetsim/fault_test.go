// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// look is what is seen of a node and of one of its GPUs, beside what the same node shows
// without a fault.
type look struct {
	gpu, healthy, neighbour, peer, healthyPeer Reading
	host, healthyHost, peerHost                HostReading
}

// throttled is how long a reason held the GPU's clocks down.
func (l *look) throttled(reason reading.Field) float64 {
	s := l.gpu.Sample(gpuhealth.Identity{})
	return s.Numbers[reason].V
}

// afflict runs a job of four nodes for a while, with a fault on GPU 2, or on all GPUs,
// of its node 1. The same job runs without the fault. No checkpoint is in it.
func afflict(t *testing.T, f Fault, over time.Duration) look {
	t.Helper()
	const seed, warm = 3, 13 * time.Minute
	sick, well := NewJob(4, 8, JobConfig{Seed: seed}), NewJob(4, 8, JobConfig{Seed: seed})
	f.From = warm
	require.NoError(t, f.Validate(4, 8))
	sick.Nodes()[1].Inject(f)
	sick.Advance(warm + over)
	well.Advance(warm + over)
	s, w := sick.Nodes(), well.Nodes()
	require.InDelta(t, 1, w[1].Reading(2).Utilization, 0, "a checkpoint")
	return look{
		s[1].Reading(2), w[1].Reading(2), s[1].Reading(5), s[3].Reading(2), w[3].Reading(2),
		s[1].Host(), w[1].Host(), s[3].Host(),
	}
}

// node is one that waits for no other.
type node struct {
	*Node
	schedule schedule
}

func alone(gpus int) node {
	return node{newNode(gpus, 5), newSchedule(rand.New(rand.NewPCG(5, 0x6770755f666c6565)))}
}

// Advance moves the node on at its own pace.
func (n node) Advance(by time.Duration) {
	for ; by > 0; by -= maxStep {
		n.step(n.schedule.at(n.at+maxStep, maxStep), n.speed(), maxStep)
	}
}

func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault Fault
		// speed that is left to the node by its own account, at least and at most.
		least, most float64
		check       func(is *assert.Assertions, l look)
	}{
		"slow node": {Fault{Kind: SlowNode, GPU: AllGPUs, Severity: 0.2}, 0.78, 0.82, func(is *assert.Assertions, l look) {
			l.gpu.Joules, l.healthy.Joules = 0, 0
			is.Equal(l.healthy, l.gpu, "no sensor shows it")
		}},
		"drift": {Fault{Kind: Drift, GPU: AllGPUs, Severity: 0.9}, 0.84, 0.86, nil},
		"thermal throttle": {Fault{Kind: ThermalThrottle, GPU: 2, Severity: 0.6}, 0.6, 0.9, func(is *assert.Assertions, l look) {
			is.InDelta(MaxCelsius, l.gpu.Celsius, 3)
			is.NotZero(l.gpu.Throttled & gpuhealth.ThrottleSWThermal)
			is.Greater(l.throttled(reading.SWThermalTime), 300.0)
			is.Positive(l.throttled(reading.HWThermalTime))
			is.Less(l.gpu.ClockHertz, 0.9*l.healthy.ClockHertz)
			is.Less(l.neighbour.Celsius, 70.0, "the others are cool")
		}},
		"little heat": {Fault{Kind: ThermalThrottle, GPU: 2, Severity: 0.1}, 0.98, 1.02, func(is *assert.Assertions, l look) {
			is.Greater(l.gpu.Celsius, l.healthy.Celsius+2)
			is.Zero(l.gpu.Throttled & gpuhealth.ThrottleSWThermal)
		}},
		"power cap": {Fault{Kind: PowerLimit, GPU: 2, Severity: 0.4}, 0.8, 0.88, func(is *assert.Assertions, l look) {
			is.InDelta(420, l.gpu.LimitWatts, 1e-9)
			is.InDelta(420, l.gpu.Watts, 0.01)
			is.NotZero(l.gpu.Throttled & gpuhealth.ThrottlePowerCap)
			is.InDelta(700, l.neighbour.LimitWatts, 0)
		}},
		"power brake": {Fault{Kind: Brake, GPU: 2, Severity: 0.5}, 0.48, 0.52, func(is *assert.Assertions, l look) {
			is.Equal(gpuhealth.ThrottlePowerBrake|gpuhealth.ThrottleHWSlowdown, l.gpu.Throttled&(gpuhealth.ThrottlePowerBrake|gpuhealth.ThrottleHWSlowdown))
			is.Zero(l.gpu.Throttled & gpuhealth.ThrottleHWThermal)
			is.InDelta(600, l.throttled(reading.PowerBrakeTime), 1)
			is.InDelta(BoostHertz/2, l.gpu.ClockHertz, ClockStepHertz)
		}},
		"clock lock": {Fault{Kind: ClockLock, GPU: 2, Severity: 0.3}, 0.68, 0.72, func(is *assert.Assertions, l look) {
			is.NotZero(l.gpu.Throttled & gpuhealth.ThrottleAppClocks)
			is.InDelta(0.7*BoostHertz, l.gpu.ClockHertz, ClockStepHertz)
			is.InDelta(BoostHertz, l.gpu.BoostHertz, 0)
			is.Less(l.gpu.Watts, 350.0, "by the cube")
		}},
		"ecc": {Fault{Kind: ECC, GPU: 2, Severity: 0.3}, 0.68, 0.72, func(is *assert.Assertions, l look) {
			is.Greater(l.gpu.ECCCorrected, 1000.0)
			is.InDelta(5, l.gpu.ECCUncorrected, 1)
			is.True(l.gpu.RemapPending)
			is.False(l.gpu.RemapFailed)
			is.InDelta(l.gpu.ECCUncorrected, l.gpu.RemappedRows, 0)
			is.EqualValues(94, l.gpu.Xids[0].Code)
			is.EqualValues(63, l.gpu.Xids[1].Code)
			is.Zero(l.neighbour.ECCCorrected)
		}},
		"ecc beyond repair": {Fault{Kind: ECC, GPU: 2, Severity: 0.8}, 0.18, 0.22, func(is *assert.Assertions, l look) {
			is.True(l.gpu.RemapFailed)
			is.EqualValues(64, l.gpu.Xids[2].Code)
		}},
		"corrected errors": {Fault{Kind: ECCCorrected, GPU: 2, Severity: 0.5}, 0.98, 1.02, func(is *assert.Assertions, l look) {
			is.InDelta(30000, l.gpu.ECCCorrected, 100)
			is.Zero(l.gpu.ECCUncorrected)
		}},
		"xid": {Fault{Kind: XidError, GPU: 2, Severity: 119}, 0.68, 0.72, func(is *assert.Assertions, l look) {
			is.Equal(Xid{119, 11}, l.gpu.Xids[0], "at once, and each minute since")
			is.Zero(l.gpu.Xids[1])
			is.True(l.gpu.Up)
		}},
		"xid 79": {Fault{Kind: XidError, GPU: 2, Severity: 79}, 0.86, 0.89, func(is *assert.Assertions, l look) {
			is.Equal(Xid{79, 1}, l.gpu.Xids[0])
			is.False(l.gpu.Up)
		}},
		"lost gpu": {Fault{Kind: LostGPU, GPU: 2}, 0.86, 0.89, func(is *assert.Assertions, l look) {
			is.False(l.gpu.Up)
			is.Equal(Xid{79, 1}, l.gpu.Xids[0])
			is.True(l.neighbour.Up)
		}},
		"lost gpus": {Fault{Kind: LostGPU, GPU: AllGPUs}, 0.009, 0.011, nil},
		"nvlink": {Fault{Kind: NVLink, GPU: 2, Severity: 0.5}, 0.84, 0.9, func(is *assert.Assertions, l look) {
			is.Equal(9, l.gpu.NVLinksUp)
			is.Equal(18, l.neighbour.NVLinksUp)
			is.Zero(l.gpu.NVLinkReplays)
		}},
		"nvlink errors": {Fault{Kind: NVLinkErrors, GPU: 2, Severity: 0.5}, 0.84, 0.9, func(is *assert.Assertions, l look) {
			is.Greater(l.gpu.NVLinkReplays, 1000.0)
			is.Greater(l.gpu.NVLinkCRC, 1000.0)
			is.Equal(18, l.gpu.NVLinksUp)
		}},
		"pcie": {Fault{Kind: PCIe, GPU: 2, Severity: 0.5}, 0.93, 0.97, func(is *assert.Assertions, l look) {
			is.Equal(8, l.gpu.PCIeLanes)
			is.Equal(5, l.gpu.PCIeGeneration)
			is.Equal(16, l.neighbour.PCIeLanes)
		}},
		"pcie generation": {Fault{Kind: PCIeSlow, GPU: 2, Severity: 0.4}, 0.94, 0.99, func(is *assert.Assertions, l look) {
			is.Equal(3, l.gpu.PCIeGeneration)
			is.Equal(16, l.gpu.PCIeLanes)
		}},
		"cpu": {Fault{Kind: CPU, GPU: AllGPUs, Severity: 0.4}, 0.78, 0.82, func(is *assert.Assertions, l look) {
			is.InDelta(0.43, l.host.CPUPressure, 0.05)
			is.InDelta(0.03, l.peerHost.CPUPressure, 0.03)
			is.InDelta(0.8, l.gpu.Utilization, 1e-9)
			is.InDelta(1, l.peer.Utilization, 0)
		}},
		"neighbour": {Fault{Kind: Neighbour, GPU: 2, Severity: 0.3}, 0.68, 0.72, func(is *assert.Assertions, l look) {
			is.Equal(2, l.gpu.Processes)
			is.Equal(1, l.neighbour.Processes)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := afflict(t, c.fault, 10*time.Minute)
			left := l.healthyHost.StepSeconds / l.host.StepSeconds
			assert.GreaterOrEqual(t, left, c.least)
			assert.LessOrEqual(t, left, c.most)
			if c.check != nil {
				c.check(assert.New(t), l)
			}
			// The others wait for it: as busy as ever, with less power.
			assert.InDelta(t, 1, l.peer.Utilization, 0)
			assert.InDelta(t, 6, l.peerHost.StepSeconds, 0.3)
			if left < 0.9 {
				assert.Less(t, l.peer.Watts, 0.985*l.healthyPeer.Watts)
			}
		})
	}
}

// A fault that ends leaves nothing behind but counts.
func TestFaultsEnd(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			sick, well := alone(2), alone(2)
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
	n := alone(1)
	n.Inject(Fault{Kind: Flapping, GPU: AllGPUs, From: time.Minute, Severity: 0.5})
	slow := func(after time.Duration) bool { n.Advance(after - n.at); return n.speed() < 0.9 }
	assert.False(t, slow(59*time.Second))
	assert.True(t, slow(2*time.Minute))
	assert.False(t, slow(6*time.Minute+5*time.Second))
	assert.False(t, slow(10*time.Minute+55*time.Second))
	assert.True(t, slow(11*time.Minute+5*time.Second))
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
	for want, fault := range map[string]Fault{
		`kind is "rust", must be one of [clock_lock cpu drift `:     {Kind: "rust"},
		"severity of slow_node is 1, must be between 0 and 0.95":    {Kind: SlowNode, GPU: AllGPUs, Severity: 1},
		"must be the code, a whole number":                          {Kind: XidError, Severity: 7.5},
		"gpu is 8, must be below the 8 of the node":                 {Kind: ECC, GPU: 8},
		"gpu is 1, but cpu is of the whole node and must have none": {Kind: CPU, GPU: 1},
		"node is 10, must be one of the 10 nodes":                   {Kind: ECC, Node: 10},
		"node is -1": {Kind: ECC, Node: -1},
		"share is 150 %, must be more than 0 % and at most 100 %": {Kind: ECC, Share: 1.5},
		"share is -10 %": {Kind: ECC, Share: -0.1},
		"node is 1 and share 50 %, must be one of the two": {Kind: ECC, Node: 1, Share: 0.5},
		"begin is -1ns, must not be negative":              {Kind: ECC, From: -1},
		"end is 1ns, must be after the begin at 2ns":       {Kind: ECC, From: 2, Until: 1},
	} {
		assert.ErrorContains(t, fault.Validate(10, 8), want)
	}
}
