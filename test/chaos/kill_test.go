// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestKill ends processes as a crash does, at any moment, and starts them
// again. At last a node that really is slow has to be found.
func TestKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{})
	compares := func() {
		pushes, _ := process.Scrape(t, w.shard.Telemetry).Value("otelcol_receiver_fleet_otlp_pushes", process.Labels{"read": "bytes"})
		require.Positive(t, pushes, "the shard compares pushes before it decodes them")
	}
	compares()
	w.recovered(t)
	victims := w.members()[:len(w.members())-1]
	for round := range pick(1, 3) {
		w.rnd.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		for _, m := range victims {
			t.Run(m.name, func(t *testing.T) {
				t.Logf("round %d", round)
				w.suffer(func() { crash(time.Duration(w.rnd.Int64N(int64(pick(2*interval, 4*interval)))), m) })
				w.recovered(t)
			})
		}
	}
	t.Run("all at once", func(t *testing.T) {
		w.suffer(func() { crash(0, w.members()...) })
		w.recovered(t)
	})
	t.Run("a slow node is found", w.findsSlow)
	compares()
}

// findsSlow makes one node slower by a quarter and requires that it is named, and
// no other.
func (w *world) findsSlow(t *testing.T) {
	w.innocent(t)
	slow := w.rnd.IntN(numNodes)
	w.fleet.setSlow(slow)
	w.await(t, "the slow node is named", w.named(slow))
	w.fleet.setSlow(-1)
	for _, line := range w.accusations() {
		assert.Contains(t, line, nodeName(slow))
	}
}

func (w *world) named(node int) func(*testing.T) string {
	return func(t *testing.T) string {
		t.Helper()
		s := process.Scrape(t, w.gateway.Prom)
		if !s.Is(1, "gpu_node_straggler", process.Labels{"host_name": nodeName(node)}) || len(w.gateway.Log.Lines("Straggler "+nodeName(node))) == 0 {
			return nodeName(node) + " is not named"
		}
		return ""
	}
}
