// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

const pollEvery = 10 * time.Second

var testStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// healthySample is an H100 at work with nothing wrong.
func healthySample() Sample {
	s := Sample{Identity: Identity{UUID: testUUID, Model: "NVIDIA H100 80GB HBM3"}, Reason: ReasonOK}
	for f := reading.None + 1; f < reading.EndNumbers; f++ {
		s.Numbers[f] = Some(0.0)
	}
	s.Numbers[reading.MemoryLimit], s.Numbers[reading.Utilization], s.Numbers[reading.ModeECC] = Some[float64](80<<30), Some(0.9), Flag(true)
	s.Numbers[reading.MaxMemoryTemperature], s.Numbers[reading.SlowdownMargin] = Some(95.0), Some(-2.0)
	s.Numbers[reading.PCIeWidth], s.Numbers[reading.PCIeWidthLimit] = Some(16.0), Some(16.0)
	s.Numbers[reading.PCIeGeneration], s.Numbers[reading.PCIeGenerationLimit] = Some(5.0), Some(5.0)
	s.PerformanceState, s.Throttle = Some[uint32](0), Some[uint64](0)
	for e := range NumECCErrors {
		for c := range NumECCCounters {
			s.ECC[e][c] = Some[uint64](0)
		}
	}
	s.RecoveryAction = Some(RecoveryNone)
	s.RepairPending = [NumRepairs]Opt[bool]{Some(false), Some(false)}
	s.NVLink.Up, s.NVLink.Down = Some[uint32](18), Some[uint32](0)
	for e := range NumNVLinkErrors {
		s.NVLink.Errors[e] = Some[uint64](0)
	}
	s.Fabric.State, s.Fabric.Summary = Some(FabricCompleted), Some(FabricSummaryHealthy)
	return s
}

// patient is one GPU, polled by hand.
type patient struct {
	*testing.T
	m       *Monitor
	s       Sample
	now     time.Time
	verdict Verdict
	// others are the other GPUs of the node, and verdicts the last on them.
	others   []Sample
	verdicts []Verdict
	// entered and left are the reasons that came and went.
	entered, left map[string]bool
}

func newPatient(t *testing.T) *patient { return newPatientOf(t, DefaultRubric()) }

func newPatientOf(t *testing.T, r *Rubric) *patient {
	p := &patient{T: t, m: NewMonitor(r), s: healthySample(), now: testStart}
	p.m.Opened(DriverLoad{}, true, p.now)
	p.poll(1)
	return p
}

func (p *patient) poll(n int) {
	for range n {
		p.verdicts = p.verdicts[:0]
		for _, s := range p.others {
			p.verdicts = append(p.verdicts, p.m.Observe(&s, p.now))
		}
		s := p.s
		require.Empty(p, s.Validate(), "a sample of a test has to be valid")
		p.verdict = p.m.Observe(&s, p.now)
		p.follow()
		p.now = p.now.Add(pollEvery)
	}
}

func (p *patient) follow() {
	if p.entered == nil {
		p.entered, p.left = map[string]bool{}, map[string]bool{}
	}
	for name := range p.entered {
		if p.reason(name) == nil {
			p.left[name] = true
		}
	}
	for _, r := range p.verdict.Reasons {
		p.entered[r.Reason] = true
	}
}

// each polls n times and changes the sample before each.
func (p *patient) each(n int, change func(*Sample)) {
	for range n {
		change(&p.s)
		p.poll(1)
	}
}

func (p *patient) reason(name string) *ActiveReason {
	for i := range p.verdict.Reasons {
		if p.verdict.Reasons[i].Reason == name {
			return &p.verdict.Reasons[i]
		}
	}
	return nil
}

func bump[N uint64 | float64](o *Opt[N], n N) { o.V += n }

const (
	pollsPerMinute     = int(time.Minute / pollEvery)
	pollsPerTenMinutes = 10 * pollsPerMinute
)

// ruleCase is how a rule is entered and left.
type ruleCase struct {
	// polls of ill enter the rule, one poll less does not; 0 is as 1.
	polls int
	// leave polls of well end the rule, one poll less does not; 0 is for a rule that no poll ends.
	leave     int
	ill, well func(*Sample)
	// generation: a new load of the driver ends it.
	generation bool
}

// turns is the case of a reading that is bad by one value and good by another.
func turns[T any](polls, leave int, of func(*Sample) *Opt[T], bad, good T) ruleCase {
	return ruleCase{
		polls: polls, leave: leave,
		ill:  func(s *Sample) { *of(s) = Some(bad) },
		well: func(s *Sample) { *of(s) = Some(good) },
	}
}

// grows is the case of a counter that is bad while it grows by so many a poll.
func grows[N uint64 | float64](polls, leave int, of func(*Sample) *Opt[N], by N) ruleCase {
	return ruleCase{polls: polls, leave: leave, ill: func(s *Sample) { bump(of(s), by) }, well: func(*Sample) {}}
}

var ruleCases = map[string]ruleCase{
	"gpu_lost":                {ill: because(ReasonLost), well: because(ReasonOK), leave: 2},
	"gpu_missing":             {ill: because(ReasonNotFound), well: because(ReasonOK), leave: 2},
	"reset_required":          {ill: because(ReasonResetRequired), well: because(ReasonOK), leave: 2},
	"nvml_hang":               {ill: because(ReasonHang), well: because(ReasonOK), leave: 1},
	"no_reading":              {ill: because(ReasonDriverNotLoaded), polls: 3, well: because(ReasonOK), leave: 1},
	"remap_failed":            turns(2, 0, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.RemapFailed] }, 1, 0),
	"sram_threshold_exceeded": turns(2, 0, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.SRAMThreshold] }, 1, 0),
	"retired_pages":           turns(2, 0, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.RetiredSBE] }, 63, 62),
	"recovery_reset":          {ill: recovers(RecoveryReset), well: recovers(RecoveryNone), leave: 2},
	"recovery_reboot":         {ill: recovers(RecoveryReboot), well: recovers(RecoveryNone), leave: 2},
	"recovery_drain_p2p":      {ill: recovers(RecoveryDrainP2P), well: recovers(RecoveryNone), leave: 2},
	"recovery_drain_reset":    {ill: recovers(RecoveryDrainReset), well: recovers(RecoveryNone), leave: 2},
	"recovery_imex":           {ill: recovers(RecoveryIMEX), well: recovers(RecoveryNone), leave: 2},
	"ecc_uncorrected": {
		ill:        func(s *Sample) { s.ECC[ECCUncorrected][ECCVolatile] = Some[uint64](1) },
		well:       func(s *Sample) { s.ECC[ECCUncorrected][ECCVolatile] = Some[uint64](0) },
		generation: true,
	},
	"nvlink_down": {
		ill:   func(s *Sample) { s.NVLink.Up, s.NVLink.Down = Some[uint32](17), Some[uint32](1) },
		well:  func(s *Sample) { s.NVLink.Up, s.NVLink.Down = Some[uint32](18), Some[uint32](0) },
		leave: 2,
	},
	"fabric_unhealthy": turns(1, 2,
		func(s *Sample) *Opt[FabricSummary] { return &s.Fabric.Summary }, FabricSummaryUnhealthy, FabricSummaryHealthy),
	"remap_pending":      turns(1, 2, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.RemapPending] }, 1, 0),
	"repair_pending":     turns(1, 2, func(s *Sample) *Opt[bool] { return &s.RepairPending[RepairTPC] }, true, false),
	"retirement_pending": turns(1, 2, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.RetirementPending] }, 1, 0),
	// The first poll of the GPU was the first of minute 0, so 6 minutes of heat
	// begin with the sixth of it. Ten minutes after minute 5 the last is forgotten.
	"hw_throttle_lasting": {
		ill:   func(s *Sample) { s.Throttle = Some(uint64(ThrottleHWThermal)) },
		polls: 5 * pollsPerMinute, // minutes 0 to 5
		well:  func(s *Sample) { s.Throttle = Some[uint64](0) },
		leave: 5 + 9*pollsPerMinute + 2,
	},
	"thermal_margin": turns(2, pollsPerTenMinutes,
		func(s *Sample) *Opt[float64] { return &s.Numbers[reading.TemperatureMargin] }, -3.0, -2.0),
	"nvlink_errors": grows(1, 5+pollsPerTenMinutes, func(s *Sample) *Opt[uint64] { return &s.NVLink.Errors[NVLinkReplay] }, 1),
	"nvlink_recovery_failed": grows(1, 5+pollsPerTenMinutes,
		func(s *Sample) *Opt[uint64] { return &s.NVLink.Errors[NVLinkRecoveryFailed] }, 1),
	"nvlink_crc": grows(6, pollsPerTenMinutes, func(s *Sample) *Opt[uint64] { return &s.NVLink.Errors[NVLinkCRC] }, 1000),
	"fabric_limited": turns(1, pollsPerTenMinutes,
		func(s *Sample) *Opt[FabricSummary] { return &s.Fabric.Summary }, FabricSummaryLimitedCapacity, FabricSummaryHealthy),
	"pcie_width":           turns(1, 2, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.PCIeWidth] }, 8, 16),
	"pcie_generation":      turns(2, 2, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.PCIeGeneration] }, 4, 5),
	"pcie_replays":         grows(3, 3+pollsPerTenMinutes, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.PCIeReplays] }, 3), // 9 in a minute
	"pcie_replay_rollover": grows(1, 5+pollsPerTenMinutes, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.PCIeRollovers] }, 1),
	"ecc_corrected_rate": grows(3, 3+6*pollsPerTenMinutes,
		func(s *Sample) *Opt[uint64] { return &s.ECC[ECCCorrected][ECCVolatile] }, 5), // 15 in a minute
	"hw_thermal_slowdown": {
		ill:   func(s *Sample) { s.Numbers[reading.HWThermalTime].V += 0.1 },
		well:  func(*Sample) {},
		leave: pollsPerTenMinutes,
	},
	// 7 polls of 10 s are more than 60 s; 60 polls later the window is down to 60 s.
	"sw_thermal_slowdown": {
		ill:   func(s *Sample) { s.Numbers[reading.SWThermalTime].V += 10 },
		polls: 7,
		well:  func(*Sample) {},
		leave: 53 + pollsPerTenMinutes,
	},
	"memory_hot": turns(1, pollsPerTenMinutes,
		func(s *Sample) *Opt[float64] { return &s.Numbers[reading.MemoryTemperature] }, 96.0, 95.0),
	"memory_history": turns(1, 2, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.RemappedUncorrected] }, 1, 0),
	"ecc_off":        turns(1, 2, func(s *Sample) *Opt[float64] { return &s.Numbers[reading.ModeECC] }, 0, 1),
}

// ownCases are of rules that need more than one change.
var ownCases = map[string]func(*testing.T) *patient{
	"nvlink_errors_rising": nvlinkErrorsRising,
	"fabric_not_joined":    fabricNotJoinedInTime,
	"nvlink_fewer":         fewerLinksFromTheStart,
	"application_xids":     faultsOfOneGPU,
}

func because(r Reason) func(*Sample) { return func(s *Sample) { s.Reason = r } }

func recovers(a RecoveryAction) func(*Sample) {
	return func(s *Sample) { s.RecoveryAction = Some(a) }
}

func TestRulesAreEnteredAndLeft(t *testing.T) {
	for _, rule := range DefaultRubric().Rules() {
		t.Run(rule.Name, func(t *testing.T) {
			var p *patient
			defer func() {
				if p != nil {
					assert.True(t, p.entered[rule.Name], "never entered")
					assert.True(t, p.left[rule.Name], "never left")
				}
			}()
			tt, ok := ruleCases[rule.Name]
			if !ok {
				own := ownCases[rule.Name]
				require.NotNil(t, own, "no rule without a case that enters and leaves it")
				p = own(t)
				return
			}
			p = newPatient(t)
			require.Equal(t, StateHealthy, p.verdict.State)
			require.Equal(t, Some(100), p.verdict.Score)

			polls := max(tt.polls, 1)
			p.each(polls-1, tt.ill)
			require.Nil(t, p.reason(rule.Name), "entered early")
			p.each(1, tt.ill)
			r := p.reason(rule.Name)
			require.NotNil(t, r, "not entered: %v", p.verdict.Reasons)
			assert.Equal(t, rule.Cap, r.Cap)
			assert.Equal(t, rule.Action, r.Action)
			assert.Equal(t, p.now.Add(-pollEvery), r.Since)
			assertMinOfCaps(t, p.verdict)
			if rule.Unknown {
				assert.Equal(t, StateUnknown, p.verdict.State)
				assert.False(t, p.verdict.Score.OK)
			} else {
				assert.LessOrEqual(t, p.verdict.Score.V, rule.Cap)
			}

			switch {
			case tt.generation:
				p.each(500, tt.well)
				require.NotNil(t, p.reason(rule.Name), "left without a new generation")
				p.m.Opened(DriverLoad{}, true, p.now)
				p.poll(1)
			case tt.leave == 0:
				p.each(500, tt.well)
				p.m.Opened(DriverLoad{}, true, p.now)
				p.poll(1)
				require.NotNil(t, p.reason(rule.Name), "left without service")
				require.True(t, p.m.Acknowledge(testUUID, Opt[uint64]{}))
				p.poll(1)
			default:
				p.each(tt.leave-1, tt.well)
				require.NotNil(t, p.reason(rule.Name), "left early")
				p.each(1, tt.well)
			}
			assert.Nil(t, p.reason(rule.Name), "not left")
		})
	}
}

// TestWhatIsNotReadAnewIsNoPoll: neither enters nor leaves a rule.
func TestWhatIsNotReadAnewIsNoPoll(t *testing.T) {
	p := newPatient(t)
	p.each(1, func(s *Sample) {
		s.Numbers[reading.RemapFailed], s.Numbers[reading.RemapPending] = Flag(true), Flag(true)
	})
	require.NotNil(t, p.reason("remap_pending"))
	p.each(100, func(s *Sample) { s.Cached = true })
	assert.Nil(t, p.reason("remap_failed"), "seen once")
	p.each(1, func(s *Sample) { s.Cached = false })
	assert.NotNil(t, p.reason("remap_failed"))

	p.each(1, func(s *Sample) { s.Numbers[reading.RemapPending] = Flag(false) })
	p.each(100, func(s *Sample) { s.Cached = true })
	assert.NotNil(t, p.reason("remap_pending"), "over once")
	p.each(1, func(s *Sample) { s.Cached = false })
	assert.Nil(t, p.reason("remap_pending"))
}

// Either repair is one, CRC errors count by the one counter where there is one,
// and each counter by itself is enough.
func TestRepairsAndCRC(t *testing.T) {
	p := newPatient(t)
	p.each(1, func(s *Sample) { s.RepairPending[RepairChannel] = Some(true) })
	require.NotNil(t, p.reason("repair_pending"))

	for _, kind := range []NVLinkError{NVLinkCRCFlit, NVLinkCRCData, NVLinkCRC} {
		p = newPatient(t)
		for _, other := range []NVLinkError{NVLinkCRCFlit, NVLinkCRCData, NVLinkCRC} {
			if other != kind {
				p.s.NVLink.Errors[other] = Opt[uint64]{}
			}
		}
		p.poll(pollsPerMinute)
		p.each(pollsPerMinute, func(s *Sample) { bump(&s.NVLink.Errors[kind], 1000) })
		assert.NotNil(t, p.reason("nvlink_crc"), "kind %d", kind)
	}

	p = newPatient(t)
	p.each(pollsPerMinute, func(s *Sample) {
		bump(&s.NVLink.Errors[NVLinkCRC], 600)
		bump(&s.NVLink.Errors[NVLinkCRCFlit], 600)
	})
	assert.Nil(t, p.reason("nvlink_crc"), "the same errors are not counted twice")
}

func TestStateOf(t *testing.T) {
	for score, want := range map[int]State{100: StateHealthy, 90: StateHealthy, 89: StateDegraded, 50: StateDegraded, 49: StateUnhealthy, 0: StateUnhealthy} {
		assert.Equal(t, want, StateOf(score), score)
	}
}

func assertMinOfCaps(t *testing.T, v Verdict) {
	t.Helper()
	if !v.Score.OK {
		assert.Equal(t, StateUnknown, v.State)
		return
	}
	least := NoCap
	for _, r := range v.Reasons {
		least = min(least, r.Cap)
	}
	assert.Equal(t, least, v.Score.V)
	assert.Equal(t, StateOf(least), v.State)
}
