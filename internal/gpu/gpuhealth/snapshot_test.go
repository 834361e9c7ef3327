// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

var bootA = DriverLoad{BootID: "a", Module: "1", Version: "570.1"}

// newBootedPatient is one whose monitor knows the load of the driver.
func newBootedPatient(t *testing.T) *patient {
	p := &patient{T: t, m: NewMonitor(DefaultRubric()), s: healthySample(), now: testStart}
	require.True(t, p.m.Opened(bootA, false, p.now), "the first load is a new one")
	p.poll(1)
	return p
}

// restart goes on with a monitor that knows what the one before has kept, and
// opens NVML on the load.
func (p *patient) restart(load DriverLoad) {
	p.Helper()
	data, err := p.m.Snapshot()
	require.NoError(p, err)
	p.m = NewMonitor(DefaultRubric())
	require.NoError(p, p.m.Restore(data, p.now))
	p.m.Opened(load, false, p.now)
}

// kept is what a restart would not forget.
func (p *patient) kept() string {
	data, err := p.m.Snapshot()
	require.NoError(p, err)
	return string(data)
}

func (p *patient) xid(code uint64) { p.m.ObserveXid(XidEvent{UUID: testUUID, Code: code, Time: p.now}) }

func TestRestartBetweenEventAndClear(t *testing.T) {
	for _, tt := range []struct {
		name   string
		load   DriverLoad
		counts ECCError
		after  uint64
		reset  bool
		ends   bool
	}{
		{name: "same load", load: bootA},
		{name: "reboot", load: DriverLoad{BootID: "b", Module: "1", Version: "570.1"}, ends: true},
		{name: "GPU reset while the agent was away", load: bootA, counts: ECCUncorrected, reset: true, ends: true},
		{name: "the same of a GPU with corrected errors alone, one more since", load: bootA, counts: ECCCorrected, after: 1, reset: true, ends: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newBootedPatient(t)
			at := p.now
			p.s.ECC[tt.counts][ECCVolatile] = Some[uint64](2)
			p.xid(48)
			p.poll(1)
			before := p.verdict
			const reason = "xid_48"
			require.NotNil(t, p.reason(reason))
			if tt.reset {
				p.s.ECC[tt.counts][ECCVolatile] = Some(tt.after)
			}
			p.restart(tt.load)
			p.poll(1)
			if tt.ends {
				assert.Nil(t, p.reason(reason))
				assert.Equal(t, StateHealthy, p.verdict.State)
				assert.True(t, p.verdict.Changed, "the end is a change")
				assert.Equal(t, before.State, p.verdict.Previous)
				return
			}
			require.NotNil(t, p.reason(reason))
			assert.Equal(t, at, p.reason(reason).Since)
			assert.Equal(t, before.State, p.verdict.State)
			assert.Equal(t, before.Score, p.verdict.Score)
			assert.False(t, p.verdict.Changed, "a restart is no change")
		})
	}
}

func TestRestartKeepsBaselines(t *testing.T) {
	p := newBootedPatient(t)
	p.s.Numbers[reading.RetiredDBE] = Some[float64](15)
	p.poll(1)
	p.restart(bootA)
	p.s.Numbers[reading.RetiredDBE] = Some[float64](17)
	p.poll(2)
	assert.NotNil(t, p.reason("retired_pages"), "two within the week, and a restart between")

	p = newBootedPatient(t)
	p.s.Numbers[reading.RemapFailed] = Flag(true)
	p.poll(2)
	p.restart(bootA)
	p.s.Numbers[reading.RemapFailed] = Opt[float64]{}
	p.poll(100)
	assert.NotNil(t, p.reason("remap_failed"), "never by itself")

	p = newBootedPatient(t)
	p.each(5*pollsPerMinute, func(s *Sample) { s.Throttle = Some(uint64(ThrottleHWThermal)) })
	require.NotNil(t, p.reason("hw_throttle_lasting"))
	p.restart(bootA)
	p.s.Throttle = Some[uint64](0)
	p.poll(cleanPolls + 1)
	assert.NotNil(t, p.reason("hw_throttle_lasting"), "until ten minutes without")

	p = newBootedPatient(t)
	p.each(3, func(s *Sample) { bump(&s.Numbers[reading.PCIeReplays], 3) })
	p.now = p.now.Add(time.Hour)
	p.restart(bootA)
	p.poll(pollsPerTenMinutes)
	assert.NotNil(t, p.reason("pcie_replays"), "ten clean minutes were not seen")
	p.poll(1)
	assert.Nil(t, p.reason("pcie_replays"))

	p = newBootedPatient(t)
	p.xid(79)
	p.s.Reason = ReasonLost
	p.poll(1)
	p.restart(bootA)
	p.s.Reason = ReasonOK
	p.poll(2)
	assert.Nil(t, p.reason("xid_79"), "it was lost before the restart, and answered after")
}

// TestSameLoadIsNoReset: NVML that was closed and opened has reset nothing.
func TestSameLoadIsNoReset(t *testing.T) {
	volatile := func(e ECCError, n uint64) func(*Sample) {
		return func(s *Sample) { s.ECC[e][ECCVolatile] = Some(n) }
	}
	for _, tt := range []struct {
		name          string
		before, after func(*Sample)
		reset         bool
	}{
		{name: "nothing", before: func(*Sample) {}, after: func(*Sample) {}},
		{name: "more errors", before: volatile(ECCUncorrected, 1), after: volatile(ECCUncorrected, 2)},
		{name: "counts that cannot be read", before: volatile(ECCUncorrected, 1), after: func(s *Sample) { s.ECC[ECCUncorrected][ECCVolatile] = Opt[uint64]{} }},
		{name: "uncorrected count begins again", before: volatile(ECCUncorrected, 2), after: volatile(ECCUncorrected, 0), reset: true},
		{name: "corrected count begins again", before: volatile(ECCCorrected, 2), after: volatile(ECCCorrected, 1), reset: true},
		{name: "recovery done", before: recovers(RecoveryReset), after: recovers(RecoveryNone), reset: true},
		{name: "drain and reset done", before: recovers(RecoveryDrainReset), after: recovers(RecoveryNone), reset: true},
		{name: "recovery that needs no reset", before: recovers(RecoveryIMEX), after: recovers(RecoveryNone)},
		{
			name: "remapping done", before: func(s *Sample) { s.Numbers[reading.RemapPending] = Flag(true) },
			after: func(s *Sample) { s.Numbers[reading.RemapPending] = Flag(false) }, reset: true,
		},
		{
			name: "retirement done", before: func(s *Sample) { s.Numbers[reading.RetirementPending] = Flag(true) },
			after: func(s *Sample) { s.Numbers[reading.RetirementPending] = Flag(false) }, reset: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newBootedPatient(t)
			p.xid(119)
			tt.before(&p.s)
			p.poll(1)
			tt.after(&p.s)
			require.False(t, p.m.Opened(bootA, true, p.now), "the module is the same, whatever was seen")
			p.poll(1)
			assert.Equal(t, tt.reset, p.reason("xid_119") == nil)

			p = newBootedPatient(t)
			p.xid(119)
			tt.before(&p.s)
			p.poll(1)
			tt.after(&p.s)
			p.poll(1)
			assert.NotNil(t, p.reason("xid_119"), "a GPU cannot be reset while NVML is open")
		})
	}
}

func TestDriverLoads(t *testing.T) {
	unknown := DriverLoad{BootID: "a", Version: "570.1"}
	for _, tt := range []struct {
		name          string
		first, second DriverLoad
		gone, loaded  bool
	}{
		{name: "the same", first: bootA, second: bootA},
		{name: "unknown module", first: unknown, second: unknown},
		{name: "unknown module, seen gone", first: unknown, second: unknown, gone: true, loaded: true},
		{name: "module unknown once, seen gone", first: bootA, second: unknown, gone: true, loaded: true},
		{name: "nothing known", first: DriverLoad{}, second: DriverLoad{}},
		{name: "boot", first: bootA, second: DriverLoad{BootID: "b", Module: "1", Version: "570.1"}, loaded: true},
		{name: "module", first: bootA, second: DriverLoad{BootID: "a", Module: "2", Version: "570.1"}, loaded: true},
		{name: "version", first: unknown, second: DriverLoad{Version: "570.2"}, loaded: true},
	} {
		m := NewMonitor(DefaultRubric())
		require.True(t, m.Opened(tt.first, false, testStart))
		assert.Equal(t, tt.loaded, m.Opened(tt.second, tt.gone, testStart), tt.name)
	}
	m := NewMonitor(DefaultRubric())
	m.Opened(bootA, false, testStart)
	m.Opened(DriverLoad{}, false, testStart)
	assert.True(t, m.Opened(DriverLoad{BootID: "b"}, false, testStart), "what could not be read once is not forgotten")
}

func TestAcknowledgeXid(t *testing.T) {
	p := newBootedPatient(t)
	p.xid(48)
	p.xid(62)
	p.poll(1)
	before := p.kept()
	require.True(t, p.m.Acknowledge(testUUID, Some[uint64](48)))
	assert.NotEqual(t, before, p.kept(), "a restart must not bring it back")
	p.poll(1)
	assert.Nil(t, p.reason("xid_48"))
	assert.NotNil(t, p.reason("xid_62"))
	assert.True(t, p.m.Acknowledge(testUUID, Some[uint64](48)), "it need not have the Xid")
	assert.False(t, p.m.Acknowledge("GPU-other", Some[uint64](48)))
}

// TestWhatChangesTheSnapshot: a quiet GPU costs no write, and each change is one.
func TestWhatChangesTheSnapshot(t *testing.T) {
	p := newBootedPatient(t)
	bump(&p.s.ECC[ECCCorrected][ECCVolatile], 1<<10)
	p.poll(2)
	still := p.kept()
	p.each(100, func(s *Sample) {
		s.Numbers[reading.Temperature] = Some(50 + float64(p.now.Unix()%10))
		bump(&s.ECC[ECCCorrected][ECCVolatile], 1)
	})
	assert.Equal(t, still, p.kept())
	for name, change := range map[string]func(){
		"xid":            func() { p.xid(48) },
		"same xid":       func() { p.xid(48) },
		"rule":           func() { p.s.Numbers[reading.PCIeWidth] = Some[float64](8) },
		"links":          func() { p.s.NVLink.Up, p.s.NVLink.Down = Some[uint32](18), Some[uint32](0) },
		"volatile count": func() { p.s.ECC[ECCUncorrected][ECCVolatile] = Some(p.s.ECC[ECCUncorrected][ECCVolatile].V + 1) },
		"acknowledged":   func() { p.m.Acknowledge(testUUID, Opt[uint64]{}) },
		"load":           func() { p.m.Opened(DriverLoad{BootID: "b"}, false, p.now) },
	} {
		if name == "links" {
			p.s.NVLink.Up, p.s.NVLink.Down = Some[uint32](17), Some[uint32](0)
			p.m.Acknowledge(testUUID, Opt[uint64]{})
			p.poll(3)
		}
		p.xid(94)
		p.poll(1)
		before := p.kept()
		change()
		p.poll(1)
		assert.NotEqual(t, before, p.kept(), name)
	}
}

func TestSnapshotsThatAreNone(t *testing.T) {
	p := newBootedPatient(t)
	p.xid(48)
	p.poll(1)
	good, err := p.m.Snapshot()
	require.NoError(t, err)
	edit := func(from, to string) []byte {
		require.Contains(t, string(good), from)
		return []byte(strings.Replace(string(good), from, to, 1))
	}
	for name, tt := range map[string]struct {
		data []byte
		want string
	}{
		"nothing":         {[]byte{}, "corrupt"},
		"half":            {good[:len(good)/2], "corrupt"},
		"other version":   {edit(`"Version":1`, `"Version":2`), "of another version"},
		"no version":      {[]byte(`{}`), "of another version"},
		"another's types": {edit(`"Code":48`, `"Code":"48"`), "corrupt"},
	} {
		m := NewMonitor(DefaultRubric())
		require.ErrorContains(t, m.Restore(tt.data, p.now), tt.want, name)
		assert.Empty(t, m.tracks, name)
	}
}

// TestSnapshotOfAClockThatWasAhead: what is in the future is of now.
func TestSnapshotOfAClockThatWasAhead(t *testing.T) {
	p := newBootedPatient(t)
	p.now = p.now.Add(365 * 24 * time.Hour)
	p.s.Numbers[reading.RetiredDBE] = Some[float64](15)
	p.xid(94)
	p.xid(31)
	p.poll(1)
	p.now = testStart.Add(time.Hour)
	p.restart(bootA)
	require.Zero(t, p.m.tracks[testUUID].Faults, "they would count for a year")
	p.poll(1)
	require.NotNil(t, p.reason("xid_94"))
	assert.Equal(t, testStart.Add(time.Hour), p.reason("xid_94").Since)
	p.now = p.now.Add(time.Hour)
	p.poll(1)
	assert.Nil(t, p.reason("xid_94"))
	p.s.Numbers[reading.RetiredDBE] = Some[float64](16)
	p.now = p.now.Add(5 * 24 * time.Hour)
	p.poll(1)
	p.s.Numbers[reading.RetiredDBE] = Some[float64](17)
	p.now = p.now.Add(5 * 24 * time.Hour)
	p.poll(1)
	assert.Nil(t, p.reason("retired_pages"), "days go on: one within the week")
}

// TestRestoreIsAsIfNothingHappened: a life with restarts ends as one without,
// for all that is no rate.
func TestRestoreIsAsIfNothingHappened(t *testing.T) {
	codes := []uint64{13, 48, 62, 74, 79, 94, 119, 151, 999}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		a, b := newBootedPatient(t), newBootedPatient(t)
		for range 60 {
			change := rng.IntN(8)
			code := codes[rng.IntN(len(codes))]
			for _, p := range []*patient{a, b} {
				switch change {
				case 0:
					p.xid(code)
				case 1:
					p.s.Numbers[reading.RemapPending] = Flag(!p.s.On(reading.RemapPending).V)
				case 2:
					p.s.Numbers[reading.RemapFailed] = Flag(true)
				case 3:
					bump(&p.s.Numbers[reading.RetiredDBE], 1)
				case 4:
					p.m.Acknowledge(testUUID, Opt[uint64]{})
				case 5:
					p.now = p.now.Add(20 * time.Minute)
				}
			}
			if change == 6 {
				b.restart(bootA)
				a.m.Opened(bootA, false, a.now)
			}
			a.poll(2) // the two clean polls are not in the snapshot
			b.poll(2)
			require.Equal(t, a.verdict.State, b.verdict.State, "seed %d", seed)
			require.Equal(t, fmt.Sprint(a.verdict.Reasons), fmt.Sprint(b.verdict.Reasons), "seed %d", seed)
		}
	}
}

func FuzzRestore(f *testing.F) {
	m := NewMonitor(DefaultRubric())
	m.Opened(bootA, false, testStart)
	s := healthySample()
	m.ObserveXid(XidEvent{UUID: testUUID, Code: 48, Time: testStart})
	m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: testStart, GPUInstance: Some[uint32](1)})
	s.Numbers[reading.RemapPending] = Flag(true)
	m.Observe(&s, testStart)
	good, err := m.Snapshot()
	require.NoError(f, err)
	f.Add(good)
	f.Add(bytes.Replace(good, []byte(`"Day":20454`), []byte(`"Day":-9`), 1))
	f.Add(good[:len(good)-1])
	f.Add([]byte(`{"Version":1,"GPUs":[{"UUID":"GPU-1"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := NewMonitor(DefaultRubric())
		if err := m.Restore(data, testStart); err != nil {
			assert.Empty(t, m.tracks)
			return
		}
		s := healthySample()
		for i := range 10 {
			v := m.Observe(&s, testStart.Add(time.Duration(i)*pollEvery))
			assertMinOfCaps(t, v)
		}
		m.Opened(DriverLoad{BootID: "z"}, false, testStart.Add(time.Hour))
		again, err := m.Snapshot()
		require.NoError(t, err)
		require.NoError(t, NewMonitor(DefaultRubric()).Restore(again, testStart.Add(time.Hour)))
	})
}
