// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// board is a node's GPUs: how fast each is, what it is, and whether it has work.
type board struct {
	node  *Node
	plan  *Plan
	now   time.Time
	noise *rand.Rand
}

func newBoard(cfg *Config) *board {
	plan := NewPlan(&cfg.Measures)
	return &board{NewNode(cfg, plan), plan, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), rand.New(rand.NewPCG(1, 2))}
}

func (b *board) step(speeds []float64, models string) Result {
	var r Reading
	for g, speed := range speeds {
		of := nodesignal.Subject{GPU: fmt.Sprintf("GPU-%d", g)}
		put := func(metric, attr string, v float64) {
			for i, in := range b.plan.Inputs(metric) {
				if in.Attributes[0].Value == attr {
					r.Add(&b.plan.Inputs(metric)[i], of, v)
				}
			}
		}
		if models != "" {
			r.Works(of.GPU, models[g:g+1])
		}
		busy := 0.99
		if speed == 0 {
			busy = 0
		}
		put(gpusemconv.MetricGPUUtilization, "general", busy)
		put(gpusemconv.MetricGPUActivity, "sm", 0.5*speed*(1+0.01*b.noise.NormFloat64()))
		put(gpusemconv.MetricGPUClock, "sm", 1.7e9)
		put(gpusemconv.MetricGPUClockLimit, "sm", 2e9)
	}
	b.node.Observe(&r, b.now)
	res := b.node.Evaluate(b.now, threshold.Received{}, false)
	b.now = b.now.Add(10 * time.Second)
	return res
}

func TestSiblings(t *testing.T) {
	alike := []float64{1, 1, 1, 1, 1, 1, 1, 1}
	for name, tt := range map[string]struct {
		before, after []float64
		models        string
		slow          string
	}{
		"one of eight":                    {alike, []float64{1, 1, 1, 0.9, 1, 1, 1, 1}, "", "GPU-3"},
		"one of four":                     {alike[:4], []float64{1, 1, 0.9, 1}, "", "GPU-2"},
		"two are no peers":                {alike[:3], []float64{1, 1, 0.9}, "", ""},
		"another model has another speed": {[]float64{1, 1, 1, 1, 2, 2, 2, 2}, []float64{1, 1, 1, 1, 2, 1.8, 2, 2}, "AAAABBBB", "GPU-5"},
		"so has another pod's":            {[]float64{1, 1, 1, 1, 0.6, 0.6, 0.6, 0.6}, []float64{1, 1, 1, 1, 0.6, 0.6, 0.6, 0.6}, "AAAABBBB", ""},
		"one without work has no speed":   {[]float64{1, 1, 1, 1, 0, 0, 0, 0}, []float64{1, 0.9, 1, 1, 0, 0, 0, 0}, "", "GPU-1"},
		"all of them":                     {alike, []float64{0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			b := newBoard(&cfg)
			for range 90 {
				assert.Empty(t, b.step(tt.before, tt.models).Siblings)
			}
			began, found := b.now, ""
			var last Result
			for range 30 {
				last = b.step(tt.after, tt.models)
				for _, s := range last.Siblings {
					require.True(t, s.Slow)
					require.Empty(t, found, "one verdict")
					found = s.GPU
					assert.Equal(t, nodesignal.Throughput, s.Signal)
					assert.InDelta(t, 0.1, s.Gap, 0.03)
					assert.WithinDuration(t, began, s.Since, 20*time.Second)
					assert.LessOrEqual(t, b.now.Sub(began), 2*time.Minute)
				}
			}
			assert.Equal(t, tt.slow, found)
			assert.Equal(t, tt.slow, last.Culprit.GPU)
		})
	}
}

// The worst GPU holds its node down by all that it loses, and not by an eighth.
// A part that was slow from the first has no beginning to tell, and none of 1970.
func TestASiblingThatWasAlwaysSlow(t *testing.T) {
	cfg := DefaultConfig()
	b := newBoard(&cfg)
	for range 90 {
		for _, c := range b.step([]float64{1, 1, 0.6, 1}, "").Siblings {
			assert.Equal(t, "GPU-2", c.GPU)
			assert.True(t, c.Slow)
			assert.True(t, c.Since.IsZero(), c.Since)
			return
		}
	}
	require.Fail(t, "the slow part is not named")
}

func TestANodeCountsByItsWorstGPU(t *testing.T) {
	cfg := DefaultConfig()
	b := newBoard(&cfg)
	mean := func(speeds []float64) float64 {
		sum := 0.0
		for range 30 {
			sum += b.step(speeds, "").Signals.V[nodesignal.Throughput]
		}
		return sum / 30
	}
	mean([]float64{1, 1, 1, 1, 1, 1, 1, 1})
	well := mean([]float64{1, 1, 1, 1, 1, 1, 1, 1})
	assert.InDelta(t, 0.9, mean([]float64{1, 1, 1, 1, 1, 0.9, 1, 1})/well, 0.02)

	cfg.Siblings = false
	b = newBoard(&cfg)
	well = mean([]float64{1, 1, 1, 1, 1, 1, 1, 1})
	assert.InDelta(t, 1-0.1/8, mean([]float64{1, 1, 1, 1, 1, 0.9, 1, 1})/well, 0.005)
}

// TestSiblingsMemory holds what is counted against what is taken.
func TestSiblingsMemory(t *testing.T) {
	cfg := DefaultConfig()
	for _, gpus := range []int{4, 8, 64} {
		const nodes = 100
		boards := make([]*board, nodes)
		speeds := make([]float64, gpus)
		for i := range speeds {
			speeds[i] = 1
		}
		take := func() (taken, counted float64) {
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for i := range boards {
				boards[i] = newBoard(&cfg)
				for range 20 {
					boards[i].step(speeds, "")
				}
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			for _, b := range boards {
				counted += float64(b.node.Bytes()) / nodes
			}
			return float64(after.HeapAlloc-before.HeapAlloc) / nodes, counted
		}
		taken, counted := take()
		t.Logf("%d GPUs: %.0f bytes taken, %.0f counted", gpus, taken, counted)
		assert.Greater(t, counted*1.1, taken)
		assert.Less(t, counted, 2*taken)
		runtime.KeepAlive(boards)
		clear(boards)
	}
}
