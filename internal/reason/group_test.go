// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// newGroup returns a fleet whose nodes n0 to n5 are slow together and n6 to n11 are not.
func newGroup(t *testing.T) (f *fleet, slow, others []string) {
	t.Helper()
	f = &fleet{t: t, store: New(Config{MaxNodes: 400, MaxBytes: 1 << 30, Retention: time.Hour}), now: epoch}
	for i := range 12 {
		f.healthy(f.node(i))
		if name := fmt.Sprintf("n%d", i); i < 6 {
			slow = append(slow, name)
		} else {
			others = append(others, name)
		}
	}
	f.now = f.now.Add(10 * time.Minute)
	return f, slow, others
}

func (f *fleet) explainGroup(slow, others []string) Finding {
	return f.store.ExplainGroup("c", slow, slices.Values(others), f.now.Add(-30*time.Second), f.now)
}

// A fact of most slow nodes that the others lack explains all slow nodes.
func TestAGroupIsExplained(t *testing.T) {
	for _, test := range []struct {
		name        string
		braked      int
		shared      int
		all         bool // the others as well
		reason      Reason
		action      Action
		observation bool
	}{
		{"all", 6, 5, false, "hw_power_brake", ActionCheckPower, false},
		{"half", 3, 3, false, "hw_power_brake", ActionCheckPower, false},
		{"few", 2, 0, false, Unexplained, ActionCheckShared, false},
		{"none", 0, 0, false, Unexplained, ActionCheckShared, false},
		{"the others too", 6, 5, true, "hw_power_brake", ActionCheckPower, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			f, slow, others := newGroup(t)
			for i := range test.braked {
				f.put(f.node(i), i, reading.PowerBrake, 1)
			}
			if test.all {
				for i := 6; i < 12; i++ {
					f.put(f.node(i), 0, reading.PowerBrake, 1)
				}
			}
			// One of them has something else, a remapping that failed.
			f.put(f.node(5), 0, reading.RemapFailed, 1)
			got := f.explainGroup(slow, append(others, slow...))
			assert.Equal(t, 6, got.Asked)
			assert.Equal(t, test.shared, got.Shared)
			assert.Equal(t, test.reason, got.Reason)
			assert.Equal(t, test.action, got.Action)
			assert.NotEmpty(t, got.Advice)
			assert.Empty(t, got.GPU)
			assert.Equal(t, test.observation, got.Observation)
			if test.reason == Unexplained {
				assert.Empty(t, got.Evidence)
				return
			}
			e := got.Evidence[0]
			assert.Equal(t, Evidence{Fact: PowerBrake, Value: 1, Peers: one(test.all), HasPeers: true}, e)
		})
	}
}

// A group of any size costs what 32 nodes do; a group without a known fact is
// unexplained.
func TestAGroupIsBounded(t *testing.T) {
	f, _, others := newGroup(t)
	var slow []string
	for i := 12; i < 112; i++ {
		n := f.node(i)
		f.healthy(n)
		f.put(n, 0, reading.HWThermal, 1)
		slow = append(slow, fmt.Sprintf("n%d", i))
	}
	got := f.explainGroup(slow, others)
	assert.Equal(t, Reason("hw_thermal"), got.Reason)
	assert.Equal(t, [2]int{32, 32}, [2]int{got.Shared, got.Asked})
	got = f.explainGroup([]string{"x", "y"}, others)
	assert.Equal(t, Unexplained, got.Reason)
	got = f.explainGroup(nil, others)
	assert.Equal(t, Unexplained, got.Reason)
}
