// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/packed/packedtest"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

const packedAs = "node"

func (r *rig) packed() []byte {
	c := packed.NewWriter(nil, packedAs, SaveVersion)
	r.n.Pack(c)
	return c.Seal()
}

// rebooted is the node as another process finds it, later.
func (r *rig) rebooted(state []byte, later time.Duration) *rig {
	c, err := packed.NewReader(state, packedAs, SaveVersion)
	require.NoError(r.t, err)
	n := NewNode(r.cfg, r.plan)
	n.Pack(c)
	require.NoError(r.t, c.End())
	return &rig{t: r.t, cfg: r.cfg, plan: r.plan, n: n, now: r.now.Add(later)}
}

// TestTheLastThresholdOutlivesTheProcess: a node judges itself by it as it would have without
// a restart, for as long as Config.CachedTTL from when the gateway told it.
func TestTheLastThresholdOutlivesTheProcess(t *testing.T) {
	r := newRig(t)
	var told threshold.Received
	for range r.cfg.CalibrationSamples + 2 {
		told = *r.fresh(0.93, 1.0/19)
		told.Signals = []threshold.SignalParams{{Signal: nodesignal.Throughput}}
		r.step(&told, of(StepDuration, 19))
	}
	state := r.packed()
	age := r.now.Sub(told.At)
	for name, tt := range map[string]struct {
		later     time.Duration
		mode      Mode
		threshold float64
	}{
		"at once":           {0, ModeCached, 0.93},
		"at its last":       {r.cfg.CachedTTL - age, ModeCached, 0.93},
		"too late":          {r.cfg.CachedTTL - age + 1, ModeLocal, 0.85},
		"the clock is back": {-age - 1, ModeLocal, 0.85},
	} {
		t.Run(name, func(t *testing.T) {
			after := r.rebooted(state, tt.later)
			kept, known := after.n.Kept(after.now)
			assert.Equal(t, tt.mode == ModeCached, known)
			assert.False(t, known && kept.Fresh(after.now), "this process has not heard it")
			res := after.step(nil, of(StepDuration, 19))
			assert.Equal(t, tt.mode, res.Mode)
			assert.InDelta(t, tt.threshold, res.Threshold, 1e-9)
			assert.False(t, res.BySignals)
		})
	}
	t.Run("a slow node", func(t *testing.T) {
		after := r.rebooted(state, time.Minute)
		for i := range r.cfg.EnterTicks {
			res := after.step(nil, of(StepDuration, 21))
			assert.Equal(t, i+1 == r.cfg.EnterTicks, res.Straggler, "19/21 is below .93, not below its own .85")
		}
	})
	t.Run("until the gateway answers", func(t *testing.T) {
		after := r.rebooted(state, time.Minute)
		after.step(nil, of(StepDuration, 19))
		res := after.step(after.fresh(0.5, 1.0/19), of(StepDuration, 19))
		assert.Equal(t, ModeFleet, res.Mode)
		assert.InDelta(t, 0.5, res.Threshold, 0)
	})
	t.Run("an idle node", func(t *testing.T) {
		after := r.rebooted(state, 0)
		for range 8 {
			after.step(nil, of(Utilization, 0))
		}
		res := after.step(nil, of(Utilization, 0))
		assert.Equal(t, straggler.StateIdle, res.State)
		_, known := after.n.Kept(after.now)
		assert.False(t, known, "its next work is another")
	})
	t.Run("an older release", func(t *testing.T) {
		// Version 2 adds its fields at the end.
		var at time.Time
		c := packed.NewWriter(nil, packedAs, SaveVersion)
		c.Time(&told.At)
		added := len(packedtest.Body(packedAs, c.Seal()))
		body := packedtest.Body(packedAs, state)
		after := r.rebooted(packedtest.Frame(packedAs, 1, body[:len(body)-added]), 0)
		assert.Equal(t, at, after.n.peersAt)
		assert.Equal(t, ModeLocal, after.step(nil, of(StepDuration, 19)).Mode, "of unknown age")
	})
}

// FuzzPack: of any bytes, a node is read that can be evaluated, or none.
func FuzzPack(f *testing.F) {
	cfg := DefaultConfig()
	plan := NewPlan(&cfg.Measures)
	fresh := packed.NewWriter(nil, packedAs, SaveVersion)
	NewNode(&cfg, plan).Pack(fresh)
	f.Add(packedtest.Body(packedAs, fresh.Seal()), uint8(SaveVersion))
	f.Fuzz(func(t *testing.T, body []byte, version uint8) {
		c, err := packed.NewReader(packedtest.Frame(packedAs, version%(SaveVersion+1), body), packedAs, SaveVersion)
		require.NoError(t, err)
		n := NewNode(&cfg, plan)
		if n.Pack(c); c.End() != nil {
			return
		}
		if kept, known := n.Kept(start); known {
			require.True(t, kept.QuorumMet && kept.Threshold >= 0 && kept.Threshold <= 1)
		}
		res := n.Evaluate(start, threshold.Received{}, false)
		require.False(t, res.Straggler)
	})
}
