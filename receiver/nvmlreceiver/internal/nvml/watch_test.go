// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

func watched(s *scripted, xids *[]gpuhealth.XidEvent) *Poller {
	s.events = make(chan gpuhealth.XidEvent, 8)
	return NewPoller(Config{Library: s, Deadline: testDeadline, Retry: testRetry, OnXid: func(ev gpuhealth.XidEvent) {
		s.set(func() { *xids = append(*xids, ev) })
	}})
}

func TestXidsAreHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(2)
		var xids []gpuhealth.XidEvent
		p := watched(s, &xids)
		p.Poll(t.Context())
		assert.ElementsMatch(t, []string{"GPU-0", "GPU-1"}, s.registers)
		s.events <- gpuhealth.XidEvent{Code: 2}
		s.events <- gpuhealth.XidEvent{UUID: "GPU-1", Code: 79}
		synctest.Wait()
		require.Len(t, xids, 2)
		assert.Empty(t, xids[0].UUID, "an Xid without a GPU is counted as lost")
		assert.Equal(t, "GPU-1", xids[1].UUID)
		require.NoError(t, p.Close(time.Second))
		assert.Equal(t, 1, s.freed)
		assert.False(t, s.freedBusy)
	})
}

func TestWaitsThatFailAreSpaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(1)
		s.waitCode = GPUIsLost
		var xids []gpuhealth.XidEvent
		p := watched(s, &xids)
		p.Poll(t.Context())
		synctest.Wait()
		s.set(func() { s.waitCode = Success })
		s.events <- gpuhealth.XidEvent{UUID: "GPU-0", Code: 79}
		began := time.Now()
		time.Sleep(eventPause)
		synctest.Wait()
		require.Len(t, xids, 1, "the others are still listened to")
		assert.Equal(t, eventPause, xids[0].Time.Sub(began))
		require.NoError(t, p.Close(time.Second))
	})
}

func TestSlowReadingsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := script(6)
		p := poller(s)
		p.Poll(t.Context())
		for range 6 {
			time.Sleep(10 * time.Second)
			before := 0
			for _, g := range s.gpus {
				before += g.slow
			}
			p.Poll(t.Context())
			after := 0
			for _, g := range s.gpus {
				after += g.slow
			}
			assert.Equal(t, 1, after-before, "one GPU at a time, each once a minute")
		}
		require.NoError(t, p.Close(time.Second))
		for _, g := range s.gpus {
			assert.Equal(t, 1, g.slow)
			assert.Equal(t, 1, g.closed)
		}
	})
}
