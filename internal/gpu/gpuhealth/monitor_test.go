// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func TestUnknown(t *testing.T) {
	t.Run("from the start", func(t *testing.T) {
		m := NewMonitor(DefaultRubric())
		v := m.Observe(&Sample{Identity: Identity{UUID: testUUID}, Reason: ReasonDriverNotLoaded}, testStart)
		assert.Equal(t, Verdict{UUID: testUUID, State: StateUnknown, Changed: true, Since: testStart, Reasons: v.Reasons}, v)
		assert.Empty(t, v.Reasons)
	})
	t.Run("two missed polls change nothing", func(t *testing.T) {
		p := newPatient(t)
		p.s.Reason = ReasonError
		p.poll(2)
		assert.Equal(t, StateHealthy, p.verdict.State)
		p.s.Reason = ReasonOK
		p.poll(1)
		p.s.Reason = ReasonError
		p.poll(2)
		assert.Equal(t, StateHealthy, p.verdict.State, "they are counted in a row")
		p.poll(1)
		assert.Equal(t, StateUnknown, p.verdict.State)
		assert.Equal(t, HardwareUnknown, p.verdict.Hardware)
		assert.True(t, p.verdict.Changed)
		assert.Equal(t, StateHealthy, p.verdict.Previous)
		assert.Equal(t, p.now.Add(-pollEvery), p.verdict.Since)
		p.s.Reason = ReasonOK
		p.poll(1)
		assert.Equal(t, StateHealthy, p.verdict.State, "the first success ends it")
	})
	t.Run("an answer without a reading", func(t *testing.T) {
		p := newPatient(t)
		p.s = Sample{Identity: p.s.Identity, Reason: ReasonOK}
		p.poll(3)
		assert.Equal(t, StateUnknown, p.verdict.State)
	})
	t.Run("a condition does not heal while there is no reading", func(t *testing.T) {
		p := newPatient(t)
		p.s.Numbers[reading.RemapPending] = Flag(true)
		p.poll(1)
		p.s.Reason = ReasonHang
		p.poll(500)
		assert.Equal(t, StateUnknown, p.verdict.State)
		assert.Nil(t, p.reason("remap_pending"), "what is not known is no reason")
		p.s.Reason, p.s.Numbers[reading.RemapPending] = ReasonOK, Flag(false)
		p.poll(1)
		assert.Equal(t, Some(50), p.verdict.Score)
		p.poll(1)
		assert.Equal(t, Some(100), p.verdict.Score)
	})
	t.Run("a hang does not hide what is known without a reading", func(t *testing.T) {
		p := newPatient(t)
		p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 119, Time: p.now})
		p.s.Reason = ReasonHang
		p.poll(1)
		assert.Equal(t, Some(20), p.verdict.Score)
		assertMinOfCaps(t, p.verdict)
		assert.NotNil(t, p.reason("nvml_hang"))
	})
	t.Run("a hang, then another reason", func(t *testing.T) {
		p := newPatient(t)
		p.s.Reason = ReasonHang
		p.poll(1)
		p.s.Reason = ReasonError
		p.poll(1)
		assert.Equal(t, StateUnknown, p.verdict.State)
	})
	t.Run("lost, then the driver goes too", func(t *testing.T) {
		p := newPatient(t)
		p.s.Reason = ReasonLost
		p.poll(1)
		p.s.Reason = ReasonDriverNotLoaded
		p.poll(5)
		assert.Equal(t, Some(0), p.verdict.Score)
		p.poll(pollsPerTenMinutes)
		assert.Equal(t, StateUnknown, p.verdict.State, "the evidence is too old")
	})
}

func TestTwiceIsTwiceInARow(t *testing.T) {
	p := newPatient(t)
	for range 5 {
		p.s.Numbers[reading.TemperatureMargin] = Some(-5.0)
		p.poll(1)
		p.s.Numbers[reading.TemperatureMargin] = Opt[float64]{}
		p.poll(1)
	}
	assert.Equal(t, StateHealthy, p.verdict.State)
}

func TestPredictedFailureIsOfAGPUThatAnswers(t *testing.T) {
	p := newPatient(t)
	p.s.Numbers[reading.RemapFailed] = Flag(true)
	p.poll(2)
	assert.Equal(t, HardwarePredictedFailure, p.verdict.Hardware)
	p.s.Reason = ReasonError
	p.poll(1)
	assert.Equal(t, Some(10), p.verdict.Score)
	assert.Equal(t, HardwareFailed, p.verdict.Hardware)
}

func TestAReadingThatVanishesEndsItsRuleInTime(t *testing.T) {
	p := newPatient(t)
	p.s.Numbers[reading.RemapPending] = Flag(true)
	p.poll(1)
	p.s.Numbers[reading.RemapPending] = Opt[float64]{} // MIG instances exist now
	p.poll(pollsPerTenMinutes - 1)
	require.NotNil(t, p.reason("remap_pending"))
	p.poll(1)
	assert.Nil(t, p.reason("remap_pending"))
}

func nvlinkErrorsRising(t *testing.T) *patient {
	t.Helper()
	minute := func(p *patient, n uint64) {
		p.each(1, func(s *Sample) { bump(&s.NVLink.Errors[NVLinkRecovery], n) })
		p.poll(pollsPerMinute - 1)
	}
	p := newPatient(t)
	p.poll(pollsPerMinute)
	for _, n := range []uint64{3, 3, 3, 5, 5, 1} {
		minute(p, n)
		require.Nil(t, p.reason("nvlink_errors_rising"), "as many, or fewer")
		require.Equal(t, Some(60), p.verdict.Score)
	}
	minute(p, 5)
	require.Nil(t, p.reason("nvlink_errors_rising"), "1, 5 after 2")
	minute(p, 4)
	require.Nil(t, p.reason("nvlink_errors_rising"), "1, 5, 4")
	for _, n := range []uint64{0, 1, 2} {
		minute(p, n)
		require.Nil(t, p.reason("nvlink_errors_rising"), "a minute without is not rising yet")
	}
	minute(p, 9)
	r := p.reason("nvlink_errors_rising")
	require.NotNil(t, r)
	assert.Equal(t, Some(30), p.verdict.Score)
	p.poll(2 * pollsPerMinute)
	assert.NotNil(t, p.reason("nvlink_errors_rising"))
	p.poll(pollsPerTenMinutes)
	assert.Nil(t, p.reason("nvlink_errors_rising"))
	return p
}

func TestRetiredPagesOfAWeek(t *testing.T) {
	p := newPatient(t)
	dbe := func(n float64) { p.s.Numbers[reading.RetiredDBE] = Some(n) }
	dbe(14)
	p.poll(1)
	dbe(15)
	p.poll(1)
	require.Nil(t, p.reason("retired_pages"))
	p.now = p.now.Add(9 * 24 * time.Hour)
	p.poll(1)
	dbe(16)
	p.poll(2)
	require.Nil(t, p.reason("retired_pages"), "one within the week")
	dbe(17)
	p.poll(2)
	assert.NotNil(t, p.reason("retired_pages"), "two within the week")
	assert.Equal(t, HardwarePredictedFailure, p.verdict.Hardware)
	p.s.Reason = ReasonLost
	p.poll(1)
	assert.Equal(t, HardwareFailed, p.verdict.Hardware, "it no longer answers")
}

func TestPCIeGenerationOfAnIdleGPU(t *testing.T) {
	p := newPatient(t)
	p.s.Numbers[reading.PCIeGeneration], p.s.Numbers[reading.Utilization], p.s.PerformanceState = Some(1.0), Some(0.0), Some[uint32](8)
	p.poll(100)
	assert.Equal(t, StateHealthy, p.verdict.State)
}

func TestECCOffOnADesk(t *testing.T) {
	for model, want := range map[string]State{
		"NVIDIA A10": StateDegraded, "Tesla T4": StateDegraded, "NVIDIA RTX A6000": StateHealthy,
		"NVIDIA GeForce RTX 4090": StateHealthy, "": StateHealthy,
	} {
		p := newPatient(t)
		p.s.Model, p.s.Numbers[reading.ModeECC] = model, Flag(false)
		p.poll(1)
		assert.Equal(t, want, p.verdict.State, model)
	}
}

func TestCountersThatGoBack(t *testing.T) {
	p := newPatient(t)
	p.s.Numbers[reading.PCIeReplays] = Some[float64](1_000_000)
	p.s.NVLink.Errors[NVLinkReplay] = Some[uint64](1_000_000)
	p.m.Opened(DriverLoad{}, true, p.now)
	p.poll(1)
	assert.Equal(t, StateHealthy, p.verdict.State, "the first value of a generation is no growth")
	p.s.Numbers[reading.PCIeReplays] = Some[float64](5)
	p.s.NVLink.Errors[NVLinkReplay] = Some[uint64](0)
	p.poll(20)
	assert.Equal(t, StateHealthy, p.verdict.State, "a counter that went back did not grow")
}

// Polls an hour apart still give a rate per minute.
func TestRateOverALongGap(t *testing.T) {
	p := newPatient(t)
	p.now = p.now.Add(time.Hour)
	bump(&p.s.Numbers[reading.PCIeReplays], 8*60)
	p.poll(1)
	assert.Nil(t, p.reason("pcie_replays"), "8 a minute")
	p.now = p.now.Add(time.Hour)
	bump(&p.s.Numbers[reading.PCIeReplays], 9*61)
	p.poll(1)
	assert.NotNil(t, p.reason("pcie_replays"), "9 a minute")
}

func TestSWThermalByPollsWhereThereIsNoClock(t *testing.T) {
	p := newPatient(t)
	p.s.Numbers[reading.SWThermalTime] = Opt[float64]{}
	p.m = NewMonitor(DefaultRubric())
	p.s.Throttle = Some(uint64(ThrottleSWThermal))
	p.poll(7)
	assert.Nil(t, p.reason("sw_thermal_slowdown"))
	p.poll(1)
	assert.NotNil(t, p.reason("sw_thermal_slowdown"))
}

// TestThrottleByItsClockAlone: a driver without the bits shows by the clock that nothing
// throttles, so that the rules can end.
func TestThrottleByItsClockAlone(t *testing.T) {
	var th throttle
	for i, want := range []finding{no, no, yes, no} {
		r := Readings{}
		r.Numbers[reading.HWThermalTime] = Some([]float64{5, 5, 6, 6}[i])
		th.update(&r, testStart)
		assert.Equal(t, want, th.thermal, i)
		assert.True(t, th.known)
	}
}

func TestOneThrottledPollIsOnlySlight(t *testing.T) {
	p := newPatient(t)
	p.s.Throttle = Some(uint64(ThrottlePowerBrake | ThrottlePowerCap))
	p.poll(3)
	assert.Equal(t, StateHealthy, p.verdict.State, "a power cap is no fault, a short brake neither")
	p.s.Throttle = Some(uint64(ThrottleHWThermal))
	p.poll(1)
	assert.Equal(t, Some(75), p.verdict.Score)
}

func TestSlices(t *testing.T) {
	slice := func(gi uint32) *Sample {
		s := Sample{Identity: Identity{UUID: fmt.Sprint("MIG-", gi)}, Reason: ReasonOK}
		s.Parent, s.GPUInstance, s.ComputeInstance = testUUID, Some(gi), Some[uint32](0)
		s.Numbers[reading.MemoryLimit] = Some[float64](10 << 30)
		return &s
	}
	start := func(t *testing.T) *patient {
		p := newPatient(t)
		p.s.Numbers[reading.ModeMIG] = Flag(true)
		p.poll(1)
		return p
	}
	t.Run("inherit the rules of the GPU", func(t *testing.T) {
		p := start(t)
		p.s.Numbers[reading.PCIeWidth] = Some[float64](8)
		p.poll(1)
		v := p.m.Observe(slice(1), p.now)
		assert.Equal(t, Some(60), v.Score)
		assert.Equal(t, p.verdict.Reasons, v.Reasons)
		assertMinOfCaps(t, v)
	})
	t.Run("off the bus is of the whole", func(t *testing.T) {
		p := start(t)
		p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 79, Time: p.now, GPUInstance: Some[uint32](2)})
		p.poll(1)
		assert.Equal(t, Some(0), p.verdict.Score)
		assert.Equal(t, Some(0), p.m.Observe(slice(1), p.now).Score)
	})
	t.Run("unknown with the GPU", func(t *testing.T) {
		p := start(t)
		p.s.Reason = ReasonHang
		p.poll(1)
		v := p.m.Observe(slice(1), p.now)
		assert.Equal(t, StateUnknown, v.State)
		assert.False(t, v.Score.OK)
		require.Len(t, v.Reasons, 1)
		assert.Equal(t, "nvml_hang", v.Reasons[0].Reason)

		p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 119, Time: p.now})
		p.poll(1)
		s := slice(1)
		s.Reason = ReasonHang
		assert.Equal(t, Some(20), p.m.Observe(s, p.now).Score, "what is known of the GPU is known of its slices")
	})
}

func TestOverrides(t *testing.T) {
	r := DefaultRubric()
	require.NoError(t, r.OverrideRule("pcie_width", Override{Cap: new(40), Action: ActionReboot}))
	require.NoError(t, r.OverrideRule("gpu_lost", Override{Enabled: new(false)}))
	require.NoError(t, r.OverrideXid(94, Override{Enabled: new(false)}))
	require.NoError(t, r.OverrideXid(31, Override{Cap: new(80)}))
	require.NoError(t, r.OverrideXid(999, Override{Cap: new(10), Action: ActionService}))
	p := newPatientOf(t, r)
	require.NoError(t, r.OverrideXid(31, Override{Cap: new(0)}), "a monitor keeps the rubric that it started with")
	p.s.Numbers[reading.PCIeWidth] = Some[float64](8)
	p.poll(1)
	assert.Equal(t, StateUnhealthy, p.verdict.State)
	assert.Equal(t, ActionReboot, p.reason("pcie_width").Action)

	p.s.Numbers[reading.PCIeWidth] = Some[float64](16)
	p.poll(2)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: p.now})
	p.poll(1)
	assert.Equal(t, Some(100), p.verdict.Score)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 31, Time: p.now})
	p.poll(1)
	assert.Equal(t, Some(80), p.verdict.Score)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 999, Time: p.now})
	p.poll(1)
	assert.Equal(t, Some(10), p.verdict.Score)
	assert.Equal(t, ActionService, p.reason("xid_999").Action)

	p = newPatientOf(t, r)
	p.s.Reason = ReasonLost
	p.poll(3)
	assert.Equal(t, StateUnknown, p.verdict.State, "a rule that is off leaves a GPU without a reading")
}

func TestALossThatCapsLittleIsNoEvidence(t *testing.T) {
	r := DefaultRubric()
	require.NoError(t, r.OverrideRule("gpu_lost", Override{Cap: new(60)}))
	p := newPatientOf(t, r)
	p.s.Reason = ReasonLost
	p.poll(2)
	assert.Equal(t, Some(60), p.verdict.Score)
	p.poll(1)
	assert.Equal(t, StateUnknown, p.verdict.State)
}

// TestACapOf100IsAReasonOnly: a rule that is to lower nothing is still reported.
func TestACapOf100IsAReasonOnly(t *testing.T) {
	r := DefaultRubric()
	for _, name := range []string{"gpu_lost", "pcie_width"} {
		require.NoError(t, r.OverrideRule(name, Override{Cap: new(NoCap)}))
	}
	p := newPatientOf(t, r)
	p.s.Numbers[reading.PCIeWidth] = Some[float64](8)
	p.poll(1)
	assert.Equal(t, Some(100), p.verdict.Score)
	assert.NotNil(t, p.reason("pcie_width"))
	p.s.Reason = ReasonLost
	p.poll(3)
	assert.Equal(t, StateUnknown, p.verdict.State, "a GPU that is lost is not measured")
	assert.NotNil(t, p.reason("gpu_lost"))
}

func TestThresholdsAndTimesAreOverridden(t *testing.T) {
	r := DefaultRubric()
	require.NoError(t, r.OverrideRule("pcie_replays", Override{Threshold: new(100.0), ClearAfter: new(2 * time.Minute)}))
	require.NoError(t, r.OverrideXid(144, Override{ClearAfter: new(time.Minute)}))
	p := newPatientOf(t, r)
	p.s.Numbers[reading.PCIeReplays] = Some[float64](0)
	active := func(name string) bool { return p.reason(name) != nil }
	grow := func(replays float64) {
		p.s.Numbers[reading.PCIeReplays].V += replays
		p.poll(1)
	}
	p.poll(8)
	grow(50)
	assert.False(t, active("pcie_replays"), "8 per minute are the default")
	grow(101)
	assert.True(t, active("pcie_replays"))
	began := p.now
	for active("pcie_replays") && p.now.Sub(began) < time.Hour {
		p.poll(1)
	}
	assert.InDelta(t, (3 * time.Minute).Seconds(), p.now.Sub(began).Seconds(), 30, "a minute until the rate is down, and two")

	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 144, Time: p.now})
	p.poll(1)
	assert.True(t, active("xid_144"))
	began = p.now
	for active("xid_144") && p.now.Sub(began) < 2*time.Hour {
		p.poll(1)
	}
	assert.LessOrEqual(t, p.now.Sub(began), 90*time.Second)
}

func TestOverrideMistakes(t *testing.T) {
	r := DefaultRubric()
	err := r.OverrideRule("pcie", Override{Cap: new(101), Action: "kick"})
	require.ErrorContains(t, err, `no rule is called "pcie"; the rules are gpu_lost, gpu_missing, remap_failed`)
	require.ErrorContains(t, err, "a cap of 101 is not a score")
	require.ErrorContains(t, err, `"kick" is no action; the actions are ["none" "restart_app" "check_fabric_manager" "reset_gpu" "reboot" "run_diagnostics" "service"]`)
	require.ErrorContains(t, r.OverrideXid(1, Override{Cap: new(-1)}), "a cap of -1")
	require.ErrorContains(t, r.OverrideXid(13, Override{Action: ActionResetGPU}), `the action "reset_gpu" would be in no reason, as Xid 13 has no cap`)
	require.ErrorContains(t, r.OverrideXid(94, Override{Action: ActionResetGPU, Cap: new(NoCap)}), "has to have a cap below 100 too")
	assert.Equal(t, ActionRestartApp, r.Xid(94).Action, "a mistake changes nothing")
	require.NoError(t, r.OverrideXid(13, Override{Action: ActionResetGPU, Cap: new(80)}))
	require.ErrorContains(t, r.OverrideRule("nvml_hang", Override{Cap: new(10)}), "can only be turned off")
	require.ErrorContains(t, r.OverrideRule("pcie_width", Override{Threshold: new(3.0)}), "has no threshold")
	require.ErrorContains(t, r.OverrideRule("remap_failed", Override{ClearAfter: new(time.Hour)}), "does not clear with time")
	require.ErrorContains(t, r.OverrideRule("pcie_replays", Override{Threshold: new(math.NaN())}), "a threshold of NaN is none")
	require.ErrorContains(t, r.OverrideRule("pcie_replays", Override{ClearAfter: new(-time.Second)}), "-1s is no time to be away")
	require.ErrorContains(t, r.OverrideXid(144, Override{Threshold: new(3.0)}), "an Xid has no threshold")
	require.ErrorContains(t, r.OverrideXid(48, Override{ClearAfter: new(time.Hour)}), "Xid 48 says does not clear with time")
	require.NoError(t, r.OverrideRule("nvml_hang", Override{Enabled: new(false)}))
}

func TestMonitorIsBounded(t *testing.T) {
	m := NewMonitor(DefaultRubric())
	s := healthySample()
	for i := range maxTracks + 3 {
		s.UUID = fmt.Sprint("GPU-", i)
		m.Observe(&s, testStart.Add(time.Duration(i)))
	}
	assert.Len(t, m.tracks, maxTracks)
	assert.NotContains(t, m.tracks, "GPU-0")
	assert.Equal(t, uint64(3), m.Dropped())
	assert.False(t, m.Acknowledge("GPU-0", Opt[uint64]{}))
}

// The score is always the least cap of the reasons, and the same events give the
// same verdicts.
func TestVerdictsFollowFromWhatHappened(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := NewMonitor(DefaultRubric()), NewMonitor(DefaultRubric())
		now := testStart
		gpu := healthySample()
		slice := Sample{Identity: Identity{UUID: testMIG}, Reason: ReasonOK}
		slice.Parent, slice.GPUInstance = testUUID, Some[uint32](1)
		slice.Numbers[reading.MemoryLimit] = Some[float64](1)
		names := make([]string, 0, len(ruleCases))
		for _, r := range DefaultRubric().Rules() {
			if _, ok := ruleCases[r.Name]; ok {
				names = append(names, r.Name)
			}
		}
		generation := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{1, 10, 60, 900, 4000, -5}).Draw(t, "seconds")) * time.Second)
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				ev := XidEvent{UUID: testUUID, Code: rapid.Uint64Range(0, 180).Draw(t, "code"), Time: now}
				if rapid.Bool().Draw(t, "instance") {
					ev.GPUInstance = Some(rapid.Uint32Range(0, 2).Draw(t, "gi"))
				}
				a.ObserveXid(ev)
				b.ObserveXid(ev)
			case 1:
				generation++
				a.Opened(DriverLoad{}, true, now)
				b.Opened(DriverLoad{}, true, now)
			case 2:
				gpu = healthySample()
			case 3, 4:
				ruleCases[rapid.SampledFrom(names).Draw(t, "ill")].ill(&gpu)
			case 5:
				ruleCases[rapid.SampledFrom(names).Draw(t, "well")].well(&gpu)
			case 6:
				slice.Reason = rapid.SampledFrom([]Reason{ReasonOK, ReasonLost, ReasonError}).Draw(t, "reason")
			}
			for _, s := range []*Sample{&gpu, &slice} {
				x, y := *s, *s
				va, vb := a.Observe(&x, now), b.Observe(&y, now)
				least := NoCap
				for i, r := range va.Reasons {
					least = min(least, r.Cap)
					if i > 0 && r.Cap < va.Reasons[i-1].Cap {
						t.Fatalf("not in order: %v", va.Reasons)
					}
				}
				if va.Score.OK && (va.Score.V != least || va.State != StateOf(least)) || va.Score.OK == (va.State == StateUnknown) {
					t.Fatalf("score %v, state %s, reasons %v", va.Score, va.State, va.Reasons)
				}
				if fmt.Sprint(va) != fmt.Sprint(vb) {
					t.Fatalf("%v is not %v", va, vb)
				}
			}
		}
	})
}

func TestObserveDoesNotAllocate(t *testing.T) {
	m := NewMonitor(DefaultRubric())
	s, now := healthySample(), testStart
	m.Observe(&s, now)
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		now = now.Add(pollEvery)
		m.Observe(&s, now)
	}))
}

func TestForget(t *testing.T) {
	p := newPatient(t)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 48, Time: p.now})
	p.poll(1)
	before := p.kept()
	assert.Equal(t, Verdict{UUID: testUUID, State: StateUnknown, Previous: StateUnhealthy, Changed: true, Since: p.now}, p.m.Forget(testUUID, p.now))
	assert.NotEqual(t, before, p.kept())
	assert.Empty(t, p.m.Known())
	assert.Equal(t, Verdict{UUID: testUUID, State: StateUnknown, Since: p.now}, p.m.Forget(testUUID, p.now), "a GPU is forgotten once")
}
