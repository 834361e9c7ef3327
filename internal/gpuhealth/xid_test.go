// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// NVIDIA's buckets, written down apart from the catalogue.
var xidClasses = map[XidClass][]uint64{
	XidApplication: {
		8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89,
		96, 97, 98, 99, 100, 101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139,
	},
	XidInformational:    {37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161},
	XidSecondary:        {45, 154, 171, 172},
	XidContainedMemory:  {94},
	XidReset:            {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
	XidUncorrectableECC: {48},
	XidNVLink:           {74, 144, 145, 146, 147, 148, 149, 150},
	XidNode:             {79, 151},
	XidHardware:         {54, 142, 162, 163, 164, 165, 166, 167, 168, 169, 170},
}

func TestXidClasses(t *testing.T) {
	r := DefaultRubric()
	n := 0
	for class, codes := range xidClasses {
		for _, code := range codes {
			assert.Equal(t, class, r.Xid(code).Class, "Xid %d", code)
			assert.Equal(t, code, r.Xid(code).Code)
		}
		n += len(codes)
	}
	assert.Len(t, r.Xids(), n, "no code that is in no bucket")
	for _, code := range []uint64{0, 1, 81, 90, 159, 173, 1 << 63} {
		assert.Equal(t, XidUnknown, r.Xid(code).Class, "Xid %d", code)
	}
}

func TestXidEffects(t *testing.T) {
	never, hour := time.Duration(0), time.Hour
	for _, tt := range []struct {
		codes  []uint64
		state  State
		score  int
		action Action
		// quiet is after how long without another it no longer counts; never by itself when 0.
		quiet time.Duration
	}{
		{xidClasses[XidApplication], StateHealthy, 100, "", never},
		{[]uint64{37, 38, 43, 44, 63, 66, 67, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}, StateHealthy, 100, "", never},
		{xidClasses[XidSecondary], StateHealthy, 100, "", never},
		{[]uint64{92}, StateDegraded, 70, ActionNone, hour},
		{[]uint64{94}, StateDegraded, 50, ActionRestartApp, hour},
		{xidClasses[XidReset], StateUnhealthy, 20, ActionResetGPU, never},
		{[]uint64{48, 74}, StateUnhealthy, 20, ActionResetGPU, never},
		{[]uint64{144, 145, 146, 147, 148, 149, 150}, StateDegraded, 50, ActionRestartApp, hour},
		{[]uint64{79}, StateUnhealthy, 0, ActionReboot, never},
		{[]uint64{151}, StateUnhealthy, 20, ActionReboot, never},
		{[]uint64{54}, StateUnhealthy, 20, ActionService, never},
		{[]uint64{142, 162, 163, 164, 165, 166, 167, 168, 169, 170}, StateDegraded, 50, ActionNone, hour},
		{[]uint64{173, 1 << 40}, StateDegraded, 50, ActionNone, hour},
	} {
		for _, code := range tt.codes {
			p := newPatient(t)
			at := p.now
			x := p.m.ObserveXid(XidEvent{UUID: testUUID, Code: code, Time: at})
			p.poll(1)
			assert.Equal(t, tt.state, p.verdict.State, "Xid %d", code)
			assert.Equal(t, Some(tt.score), p.verdict.Score, "Xid %d", code)
			assertMinOfCaps(t, p.verdict)
			if tt.action == "" {
				assert.Empty(t, p.verdict.Reasons, "Xid %d", code)
				continue
			}
			assert.Equal(t, []ActiveReason{{Reason: x.Reason(), Action: tt.action, Cap: tt.score, Since: at}}, p.verdict.Reasons)

			p.now = at.Add(hour - time.Nanosecond)
			p.poll(1)
			assert.Equal(t, tt.state, p.verdict.State, "Xid %d counts for an hour", code)
			p.now = at.Add(hour)
			p.poll(1)
			if tt.quiet == hour {
				assert.Equal(t, StateHealthy, p.verdict.State, "Xid %d is forgotten", code)
				continue
			}
			assert.Equal(t, tt.state, p.verdict.State, "Xid %d is not forgotten", code)
			p.m.Opened(DriverLoad{}, true, p.now)
			p.poll(1)
			assert.Equal(t, StateHealthy, p.verdict.State, "a new load of the driver ends Xid %d", code)
		}
	}
}

func TestXidQuietBeginsWithTheLastEvent(t *testing.T) {
	p := newPatient(t)
	first := p.now
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: first})
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: first.Add(30 * time.Minute)})
	p.now = first.Add(time.Hour)
	p.poll(1)
	require.NotNil(t, p.reason("xid_94"))
	assert.Equal(t, first, p.reason("xid_94").Since)
	p.now = first.Add(90 * time.Minute)
	p.poll(1)
	assert.Nil(t, p.reason("xid_94"))
}

func TestXid94LastsAsLongAsTheRemapping(t *testing.T) {
	p := newPatient(t)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: p.now})
	p.s.RemappedRows.Pending = Some(true)
	p.poll(1)
	p.now = p.now.Add(24 * time.Hour)
	p.poll(1)
	require.NotNil(t, p.reason("xid_94"), "the remapping is still pending")
	p.s.RemappedRows.Pending = Some(false)
	p.poll(1)
	assert.Nil(t, p.reason("xid_94"))

	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: p.now})
	p.poll(2)
	require.NotNil(t, p.reason("xid_94"), "nothing was pending yet")
	p.s.RemappedRows.Pending = Some(true)
	p.poll(1)
	p.s.RemappedRows.Pending = Some(false)
	p.poll(1)
	assert.Nil(t, p.reason("xid_94"), "the hour is not over, but the remapping is done")
}

func TestXid79EndsWhenTheGPUAnswersAgain(t *testing.T) {
	p := newPatient(t)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 79, Time: p.now})
	p.s.Reason = ReasonLost
	p.poll(5)
	assert.Equal(t, Some(0), p.verdict.Score, "lost is known, not unknown")
	assert.Equal(t, HardwareFailed, p.verdict.Hardware)
	p.s.Reason = ReasonOK
	p.poll(1)
	assert.NotNil(t, p.reason("xid_79"), "one answer may be chance")
	p.poll(1)
	assert.Equal(t, Some(100), p.verdict.Score)
}

func TestXidOfAnOlderGenerationHasNoEffect(t *testing.T) {
	p := newPatient(t)
	start := p.now
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 48, Time: start.Add(time.Millisecond)})
	p.m.Opened(DriverLoad{}, true, start)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 62, Time: start.Add(-time.Millisecond)})
	p.poll(1)
	assert.NotNil(t, p.reason("xid_48"), "it came after the driver was opened, before that was told")
	assert.Nil(t, p.reason("xid_62"), "it came late from the driver before")
	p.m.Opened(DriverLoad{}, false, p.now)
	p.poll(1)
	assert.NotNil(t, p.reason("xid_48"), "the same load is no news")
}

func TestXid64AsksForServiceOnceARemappingFailed(t *testing.T) {
	p := newPatient(t)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 64, Time: p.now})
	p.poll(1)
	assert.Equal(t, ActionResetGPU, p.reason("xid_64").Action)
	p.s.RemappedRows.Failed = Some(true)
	p.poll(2)
	assert.Equal(t, ActionService, p.reason("xid_64").Action)
	assert.Equal(t, HardwarePredictedFailure, p.verdict.Hardware)
}

func TestXidsAreBounded(t *testing.T) {
	p := newPatient(t)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 1_000, Time: p.now})
	for code := range uint64(maxEvents + 10) {
		p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 10_000 + code, Time: p.now})
	}
	assert.Equal(t, uint64(11), p.m.Dropped())
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 48, Time: p.now})
	p.poll(1)
	assert.Len(t, p.verdict.Reasons, maxEvents)
	assert.Equal(t, Some(20), p.verdict.Score, "the grave takes the place of the slight")
}

// TestEachXidCanBeOverridden: also a Xid without effect, and an unknown Xid.
func TestEachXidCanBeOverridden(t *testing.T) {
	codes := []uint64{0, 173, 4_000_000_000}
	for _, x := range DefaultRubric().Xids() {
		codes = append(codes, x.Code)
	}
	for _, code := range codes {
		enter := func(o Override) *patient {
			r := DefaultRubric()
			require.NoError(t, r.OverrideXid(code, o))
			p := newPatientOf(t, r)
			x := p.m.ObserveXid(XidEvent{UUID: testUUID, Code: code, Time: p.now})
			assert.Equal(t, DefaultRubric().Xid(code).Class, x.Class, "the class is NVIDIA's")
			p.poll(1)
			return p
		}
		name := DefaultRubric().Xid(code).Reason()
		p := enter(Override{Cap: Some(37), Action: ActionReboot})
		require.NotNil(t, p.reason(name))
		assert.Equal(t, ActionReboot, p.reason(name).Action)
		assert.Equal(t, Some(37), p.verdict.Score)
		assert.Equal(t, StateHealthy, enter(Override{Off: true}).verdict.State)
		assert.Equal(t, StateHealthy, enter(Override{Cap: Some(NoCap)}).verdict.State)
	}
}
