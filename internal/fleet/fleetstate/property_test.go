// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// model is what a node's view should be, kept the plain way.
type model struct {
	gpus   map[string]map[reading.Field]float64
	health map[string]Health
	reason map[string]map[string]bool
}

// TestViewEqualsModel applies any sequence of full reports, differences and
// ends of series to the store and to a model.
func TestViewEqualsModel(t *testing.T) {
	fields := []reading.Field{reading.Temperature, reading.Power, reading.Utilization}
	uuids := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		s := New(DefaultConfig())
		k := Key{"c", "n"}
		m := model{gpus: map[string]map[reading.Field]float64{}, health: map[string]Health{}, reason: map[string]map[string]bool{}}
		now := t0
		var held []View // views that readers hold never change
		var heldText []string
		for range rapid.IntRange(1, 30).Draw(t, "reports") {
			now = now.Add(time.Second)
			u, ok := s.Begin(k, now)
			require.True(t, ok)
			for range rapid.IntRange(0, 12).Draw(t, "points") {
				uuid := rapid.SampledFrom(uuids).Draw(t, "gpu")
				f := rapid.SampledFrom(fields).Draw(t, "field")
				v := float64(rapid.IntRange(0, 3).Draw(t, "value")) / 4
				switch rapid.IntRange(0, 4).Draw(t, "what") {
				case 0, 1:
					u.SetGPU(u.GPU(uuid), f, v)
					m.gpu(uuid)[f] = v
				case 2:
					if i := u.KnownGPU(uuid); i >= 0 {
						u.SetGPU(i, f, math.NaN())
					}
					if g, ok := m.gpus[uuid]; ok {
						delete(g, f)
					}
				case 3:
					h := Health(rapid.IntRange(1, 3).Draw(t, "health"))
					on := rapid.Bool().Draw(t, "on")
					u.SetHealth(u.GPU(uuid), h, on)
					m.gpu(uuid)
					if on {
						m.health[uuid] = h
					} else if m.health[uuid] == h {
						m.health[uuid] = HealthUnknown
					}
				case 4:
					r := rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "reason")
					on := rapid.Bool().Draw(t, "on")
					u.SetThrottle(u.GPU(uuid), r, on)
					u.SetReason(u.GPU(uuid), HealthReason{Reason: r}, on)
					m.gpu(uuid)
					if m.reason[uuid] == nil {
						m.reason[uuid] = map[string]bool{}
					}
					delete(m.reason[uuid], r)
					if on {
						m.reason[uuid][r] = true
					}
				}
			}
			u.Commit(now)
			v, ok := s.Node(k, now)
			require.True(t, ok)
			m.check(t, v)
			held, heldText = append(held, v), append(heldText, fmt.Sprintf("%+v", *v.Node))
		}
		for i, v := range held {
			require.Equal(t, heldText[i], fmt.Sprintf("%+v", *v.Node), "a view changed under its reader")
		}
	})
}

func (m *model) gpu(uuid string) map[reading.Field]float64 {
	if m.gpus[uuid] == nil {
		m.gpus[uuid] = map[reading.Field]float64{}
	}
	return m.gpus[uuid]
}

func (m *model) check(t require.TestingT, v View) {
	worst := HealthUnknown
	for _, g := range v.GPUs {
		values, ok := m.gpus[g.UUID]
		require.True(t, ok, g.UUID)
		for _, f := range GPUNumbers {
			x, known := values[f]
			if !known {
				require.Nil(t, g.Get(f))
				continue
			}
			require.NotNil(t, g.Get(f))
			require.InDelta(t, x, *g.Get(f), 0)
		}
		require.Equal(t, m.health[g.UUID], g.Health)
		worst = max(worst, g.Health)
		want := slices.Sorted(maps.Keys(m.reason[g.UUID]))
		require.Len(t, g.Throttles(), len(want))
		for i, r := range want {
			require.Equal(t, r, g.Throttles()[i])
			require.Equal(t, r, g.Reasons()[i].Reason)
		}
	}
	require.Equal(t, worst, v.Health)
	// A GPU may be left out once nothing at all is known of it.
	for uuid, values := range m.gpus {
		if len(values) > 0 {
			require.True(t, slices.ContainsFunc(v.GPUs, func(g GPU) bool { return g.UUID == uuid }))
		}
	}
}
