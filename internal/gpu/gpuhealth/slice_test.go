// SPDX-License-Identifier: Apache-2.0

package gpuhealth

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// sliced is a GPU in MIG mode with its slices.
type sliced struct {
	*patient
	slices []Sample
}

func newSliced(t *testing.T, slices ...Sample) *sliced {
	s := &sliced{patient: newPatient(t)}
	s.s.Numbers[reading.ModeMIG] = Flag(true)
	s.cut(slices...)
	return s
}

func sliceOf(uuid string, gi, ci uint32) Sample {
	s := Sample{Identity: Identity{UUID: uuid}, Reason: ReasonOK}
	s.Parent, s.GPUInstance, s.ComputeInstance = testUUID, Some(gi), Some(ci)
	s.Numbers[reading.MemoryLimit] = Some[float64](10 << 30)
	return s
}

// cut makes the slices those that there are and polls.
func (s *sliced) cut(slices ...Sample) map[string]int {
	s.slices = slices
	return s.report()
}

// report polls the GPU and its slices, and returns their scores.
func (s *sliced) report() map[string]int {
	s.poll(1)
	scores := map[string]int{"": s.verdict.Score.V}
	for i := range s.slices {
		scores[s.slices[i].UUID] = s.m.Observe(&s.slices[i], s.now).Score.V
	}
	return scores
}

func (s *sliced) xid(code uint64, gi, ci Opt[uint32]) {
	s.m.ObserveXid(XidEvent{UUID: testUUID, Code: code, Time: s.now, GPUInstance: gi, ComputeInstance: ci})
}

// TestXidOfASliceEndsWithIt: it never becomes one of the GPU, nor of the slice
// that has the instance ids afterwards.
func TestXidOfASliceEndsWithIt(t *testing.T) {
	nine, two := sliceOf("MIG-9", 9, 0), sliceOf("MIG-2", 2, 0)
	t.Run("MIG mode ends", func(t *testing.T) {
		s := newSliced(t, nine)
		s.xid(95, Some[uint32](9), Some[uint32](0))
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 20}, s.report())
		s.s.Numbers[reading.ModeMIG] = Flag(false)
		assert.Equal(t, map[string]int{"": 100}, s.cut())
		s.s.Numbers[reading.ModeMIG] = Flag(true)
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 100}, s.cut(nine))
	})
	t.Run("MIG mode ends before the next poll", func(t *testing.T) {
		s := newSliced(t, two)
		s.xid(95, Some[uint32](2), Some[uint32](0))
		s.xid(48, Some[uint32](9), Some[uint32](0)) // of a slice that was never seen
		s.s.Numbers[reading.ModeMIG] = Flag(false)
		assert.Equal(t, map[string]int{"": 100}, s.cut())
	})
	t.Run("another slice has its ids", func(t *testing.T) {
		for _, before := range []bool{false, true} {
			s := newSliced(t, nine, two)
			s.xid(95, Some[uint32](9), Some[uint32](0))
			if before {
				assert.Equal(t, map[string]int{"": 100, "MIG-9": 20, "MIG-2": 100}, s.report())
			}
			anew := sliceOf("MIG-new", 9, 0)
			assert.Equal(t, map[string]int{"": 100, "MIG-new": 100, "MIG-2": 100}, s.cut(anew, two))
			s.xid(94, Some[uint32](9), Some[uint32](0))
			assert.Equal(t, map[string]int{"": 100, "MIG-new": 50, "MIG-2": 100}, s.report())
			assert.Len(t, s.m.tracks[testUUID].events, 1, "nothing is left of the old one")
		}
	})
	t.Run("the slice goes", func(t *testing.T) {
		s := newSliced(t, nine, two)
		s.xid(95, Some[uint32](9), Some[uint32](0))
		s.report()
		s.cut(two)
		assert.Equal(t, 20, s.cut(nine, two)["MIG-9"], "a slice that was not read once is not gone")
		for range cleanPolls + 1 {
			s.cut(two)
		}
		assert.Empty(t, s.m.tracks[testUUID].events)
		assert.Equal(t, 100, s.cut(nine, two)["MIG-9"])
	})
	t.Run("the mode is not known for a while", func(t *testing.T) {
		s := newSliced(t, nine)
		s.xid(95, Some[uint32](9), Some[uint32](0))
		s.s.Numbers[reading.ModeMIG] = Opt[float64]{}
		for range 5 {
			assert.Equal(t, 100, s.cut()[""])
		}
		s.s.Numbers[reading.ModeMIG] = Flag(true)
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 20}, s.cut(nine))
	})
}

// TestXidOfASliceThatIsNotSeenYet comes between two polls, or before the first.
func TestXidOfASliceThatIsNotSeenYet(t *testing.T) {
	nine := sliceOf("MIG-9", 9, 0)
	t.Run("cut since the last poll", func(t *testing.T) {
		s := newSliced(t)
		s.xid(95, Some[uint32](9), Some[uint32](0))
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 20}, s.cut(nine))
		s.report()
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 20}, s.report(), "it stays")
		assert.Len(t, s.m.tracks[testUUID].events, 1)
	})
	t.Run("MIG mode since the last poll", func(t *testing.T) {
		p := newPatient(t)
		p.s.Numbers[reading.ModeMIG] = Flag(false)
		p.poll(1)
		s := &sliced{patient: p}
		s.xid(95, Some[uint32](9), Some[uint32](0))
		s.s.Numbers[reading.ModeMIG] = Flag(true)
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 20}, s.cut(nine))
	})
	t.Run("never seen", func(t *testing.T) {
		s := newSliced(t)
		s.xid(95, Some[uint32](9), Some[uint32](0))
		s.report()
		s.report()
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 100}, s.cut(nine), "too late to be its own")
		assert.Empty(t, s.m.tracks[testUUID].events)
	})
	t.Run("all compute instances of a GPU instance", func(t *testing.T) {
		s := newSliced(t, sliceOf("MIG-a", 1, 0), sliceOf("MIG-b", 1, 1), nine)
		s.xid(95, Some[uint32](1), Opt[uint32]{})
		want := map[string]int{"": 100, "MIG-a": 20, "MIG-b": 20, "MIG-9": 100}
		assert.Equal(t, want, s.report())
		assert.Equal(t, want, s.report())
	})
	t.Run("a GPU without MIG", func(t *testing.T) {
		p := newPatient(t)
		p.m = NewMonitor(DefaultRubric())
		p.s.Numbers[reading.ModeMIG] = Opt[float64]{}
		p.m.ObserveXid(XidEvent{UUID: testUUID, Code: 48, Time: p.now, GPUInstance: Some[uint32](0), ComputeInstance: Some[uint32](0)})
		p.poll(5)
		assert.Equal(t, Some(20), p.verdict.Score)
	})
}

func TestXidOfASliceSurvivesARestart(t *testing.T) {
	nine := sliceOf("MIG-9", 9, 0)
	s := newSliced(t, nine)
	s.m.Opened(bootA, false, testStart)
	s.xid(95, Some[uint32](9), Some[uint32](0))
	data, err := s.m.Snapshot()
	require.NoError(t, err)
	for _, known := range []bool{true, false} {
		s.m = NewMonitor(DefaultRubric())
		require.NoError(t, s.m.Restore(data, s.now))
		s.m.Opened(bootA, false, s.now.Add(time.Second))
		s.s.Numbers[reading.ModeMIG] = Opt[float64]{V: 1, OK: known}
		s.report()
		s.s.Numbers[reading.ModeMIG] = Flag(true)
		assert.Equal(t, map[string]int{"": 100, "MIG-9": 20}, s.report())
	}
	s.s.Numbers[reading.ModeMIG] = Flag(false)
	assert.Equal(t, map[string]int{"": 100}, s.cut())
}

func TestPlacesAreBounded(t *testing.T) {
	s := newSliced(t)
	for i := range uint32(2 * MaxSlices) {
		slice := sliceOf(string(rune('a'+i)), i, 0)
		s.m.Observe(&slice, s.now)
	}
	assert.Len(t, s.m.tracks[testUUID].migSlices, MaxSlices)
}
