// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// TestXidEffects holds what each code does to what the rubric has of it, and an unknown code.
func TestXidEffects(t *testing.T) {
	for _, x := range append(DefaultRubric().Xids(), DefaultRubric().Xid(1<<20)) {
		p := newPatient(t)
		at := p.now
		require.True(t, x.Cap == NoCap || x.Class != XidInformational && x.Immediate != "IGNORE", "Xid %d is information", x.Code)
		assert.Equal(t, x, p.m.ObserveXid(XidEvent{UUID: testUUID, Code: x.Code, Time: at}))
		p.poll(1)
		assert.Equal(t, Some(x.Cap), p.verdict.Score, "Xid %d", x.Code)
		assertMinOfCaps(t, p.verdict)
		if x.Cap == NoCap {
			assert.Empty(t, p.verdict.Reasons, "Xid %d", x.Code)
			continue
		}
		assert.Equal(t, []ActiveReason{{Reason: x.Reason(), Action: x.Action, Cap: x.Cap, Since: at}}, p.verdict.Reasons)
		p.now = at.Add(time.Hour - time.Nanosecond)
		p.poll(1)
		assert.Equal(t, Some(x.Cap), p.verdict.Score, "Xid %d counts for an hour", x.Code)
		p.now = at.Add(time.Hour)
		p.poll(1)
		if x.Clears.After == time.Hour {
			assert.Equal(t, StateHealthy, p.verdict.State, "Xid %d is forgotten", x.Code)
			continue
		}
		assert.Equal(t, Some(x.Cap), p.verdict.Score, "Xid %d is not forgotten", x.Code)
		p.m.Opened(DriverLoad{}, true, p.now)
		p.poll(1)
		assert.Equal(t, StateHealthy, p.verdict.State, "a new load of the driver ends Xid %d", x.Code)
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
	p.s.Numbers[reading.RemapPending] = Flag(true)
	p.poll(1)
	p.now = p.now.Add(24 * time.Hour)
	p.poll(1)
	require.NotNil(t, p.reason("xid_94"), "the remapping is still pending")
	p.s.Numbers[reading.RemapPending] = Flag(false)
	p.poll(1)
	assert.Nil(t, p.reason("xid_94"))

	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 94, Time: p.now})
	p.poll(2)
	require.NotNil(t, p.reason("xid_94"), "nothing was pending yet")
	p.s.Numbers[reading.RemapPending] = Flag(true)
	p.poll(1)
	p.s.Numbers[reading.RemapPending] = Flag(false)
	p.poll(1)
	assert.Nil(t, p.reason("xid_94"), "the hour is not over, but the remapping is done")
}

// TestXid162EndsThatOf163: power smoothing is engaged again.
func TestXid162EndsThatOf163(t *testing.T) {
	p := newBootedPatient(t)
	p.xid(162)
	p.poll(1)
	require.Equal(t, Some(100), p.verdict.Score, "alone it is information")
	p.xid(163)
	p.xid(164)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 162, Time: p.now.Add(-time.Second)})
	p.poll(1)
	require.NotNil(t, p.reason("xid_163"), "an older event ends nothing")
	p.xid(162)
	p.restart(bootA)
	p.poll(1)
	assert.Nil(t, p.reason("xid_163"))
	assert.NotNil(t, p.reason("xid_164"), "another finding is not ended")
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
	assert.NotNil(t, p.reason("xid_48"), "it came after the driver was opened, before Opened was called")
	assert.Nil(t, p.reason("xid_62"), "it came late from the driver before")
	p.m.Opened(DriverLoad{}, false, p.now)
	p.poll(1)
	assert.NotNil(t, p.reason("xid_48"), "the same load is not a new one")
}

func TestXid64AsksForServiceOnceARemappingFailed(t *testing.T) {
	p := newPatient(t)
	p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 64, Time: p.now})
	p.poll(1)
	assert.Equal(t, ActionResetGPU, p.reason("xid_64").Action)
	p.s.Numbers[reading.RemapFailed] = Flag(true)
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
	assert.Equal(t, Some(20), p.verdict.Score, "the grave one replaces the slight one")
}
