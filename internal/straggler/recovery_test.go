// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// eight plays ticks of eight nodes, n3 with a loss, and returns what is told.
func eight(e *Engine, at *time.Time, ticks int, loss float64) (told []Event) {
	for range ticks {
		*at = at.Add(10 * time.Second)
		for n := range 8 {
			o := Observation{Cluster: "c", Node: fmt.Sprint("n", n), Peers: []string{"j"}, HasState: true}
			x := 10 + 0.05*float64((n+int(at.Unix()/10))%3)
			if n == 3 {
				x *= 1 - loss
			}
			o.Values.Set(nodesignal.Throughput, x)
			_ = e.Observe(&o, *at)
		}
		told = append(told, e.Tick(*at).Events...)
	}
	return told
}

// TestRecoveryIsNoLesserSeverity: on its way to the end a gap becomes smaller.
func TestRecoveryIsNoLesserSeverity(t *testing.T) {
	e, at := New(DefaultConfig()), time.Unix(1e9, 0)
	require.Empty(t, eight(e, &at, 30, 0))
	told := eight(e, &at, 60, 0.4)
	require.Len(t, told, 1)
	assert.Equal(t, SeverityCritical, told[0].Severity)
	told = eight(e, &at, 60, 0.15)
	require.Len(t, told, 1, "still slow, but less")
	assert.Equal(t, EventSeverity, told[0].Kind)
	assert.Equal(t, SeverityMajor, told[0].Severity)
	told = eight(e, &at, 100, 0)
	require.Len(t, told, 1)
	assert.Equal(t, EventEnd, told[0].Kind)
	assert.Equal(t, CauseRecovered, told[0].Cause)
}

// TestEpisodesWithoutABeginningDiffer: two engines, one after the other, find
// a node that was slow all the time.
func TestEpisodesWithoutABeginningDiffer(t *testing.T) {
	ids := map[string]bool{}
	at := time.Unix(1e9, 0)
	for range 2 {
		told := eight(New(DefaultConfig()), &at, 60, 0.3)
		require.Len(t, told, 1)
		ids[told[0].ID] = true
	}
	assert.Len(t, ids, 2)
}
