// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// mortal is a next hop that may begin a new life, which its answers tell.
type mortal struct {
	has    receiver
	beats  map[string]int
	calls  int
	reborn bool
	refuse func(call int) bool
	heard  func()
}

func (h *mortal) consume(_ context.Context, md pmetric.Metrics) error {
	h.calls++
	if h.refuse != nil && h.refuse(h.calls) {
		return errors.New("refused")
	}
	h.has.apply(md, md.DataPointCount())
	for _, rm := range md.ResourceMetrics().All() {
		host, _ := rm.Resource().Attributes().Get(gpusemconv.AttrHostName)
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() == gpusemconv.MetricNodeHeartbeat {
					h.beats[host.Str()]++
				}
			}
		}
	}
	if h.reborn {
		h.reborn = false
		h.heard()
	}
	return nil
}

// world is some nodes that push to a processor by a clock of their own.
type world struct {
	*mortal
	t     *testing.T
	p     *diffProcessor
	now   time.Duration
	truth map[seriesName]reading
}

func newWorld(t *testing.T, edit func(*Config)) *world {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.ResyncInterval = 0
	edit(cfg)
	w := &world{mortal: &mortal{has: receiver{}, beats: map[string]int{}}, t: t, truth: map[seriesName]reading{}}
	var err error
	w.p, err = newProcessor(cfg, processortest.NewNopSettings(metadata.Type), hopFunc(w.consume))
	require.NoError(t, err)
	start := time.Now()
	w.p.engine.Epoch, w.p.engine.Now = start, func() time.Time { return start.Add(w.now) }
	w.heard = func() { w.p.engine.Table.Resync("", "") }
	for _, node := range []string{"a", "b", "c"} {
		for gpu := range 3 {
			for _, kind := range kinds {
				w.truth[seriesName{node, kind, gpu}] = reading{value: float64(3 + gpu)}
			}
			w.truth[seriesName{node, "sum", gpu}] = reading{value: 7, start: pcommon.Timestamp(1 + gpu)}
		}
	}
	return w
}

func (w *world) names(node string) []seriesName { return (&fleet{truth: w.truth}).names(node) }

// push has each of the nodes report once.
func (w *world) push(nodes ...string) {
	w.t.Helper()
	w.now += 10 * time.Second
	for _, node := range nodes {
		require.NoError(w.t, w.p.ConsumeMetrics(w.t.Context(), encodeReport(node, w.now, w.names(node), w.truth)))
	}
	if w.p.buffer != nil {
		w.p.flush(w.t.Context(), nil)
	}
}

// rebirth has the next hop lose what it has.
func (w *world) rebirth() {
	clear(w.has)
	clear(w.beats)
	w.reborn = true
}

// whole requires that the next hop has all of a node's series but histograms.
func (w *world) whole(node string) {
	w.t.Helper()
	for _, name := range w.names(node) {
		if name.metric != "histogram" {
			require.Equal(w.t, w.truth[name], w.has[name], "%v", name)
		}
	}
}

func eachMode(t *testing.T, test func(t *testing.T, edit func(*Config))) {
	t.Helper()
	t.Run("inline", func(t *testing.T) { test(t, func(*Config) {}) })
	t.Run("conflating", func(t *testing.T) { test(t, byHand) })
}

// The answer to a push says that the next hop lost everything; it has the node's
// state with that very push, and the others' with theirs.
func TestTheNextHopIsWholeWithThePushThatTellsOfItsRestart(t *testing.T) {
	eachMode(t, func(t *testing.T, edit func(*Config)) {
		w := newWorld(t, edit)
		for range 5 {
			w.push("a", "b", "c")
		}
		changed := seriesName{"a", "integer", 1}
		w.truth[changed] = reading{value: 99}
		w.rebirth()
		w.push("a", "b")
		w.whole("a")
		w.whole("b")
		assert.Positive(t, w.beats["a"])
		for name := range w.has {
			require.NotEqual(t, "c", name.node, "a node that is silent is not spoken for")
		}

		clear(w.has)
		w.push("a", "b", "c")
		w.whole("c")
		for name := range w.has {
			known := name.node != "c" && name.metric != "histogram" && name != changed
			require.False(t, known, "%v was sent before", name)
		}
		clear(w.has)
		w.push("a", "b", "c")
		require.Empty(t, w.has)
	})
}

func TestWhatIsRefusedOfItComesWithTheNextPush(t *testing.T) {
	eachMode(t, func(t *testing.T, edit func(*Config)) {
		w := newWorld(t, edit)
		for range 3 {
			w.push("a")
		}
		w.rebirth()
		before := w.calls
		w.refuse = func(call int) bool { return call == before+2 }
		w.push("a")
		require.Empty(t, w.has)
		w.push("a")
		w.whole("a")
		assert.Contains(t, w.has, seriesName{"a", "histogram", 0})
	})
}

// Large nodes go one by one.
func TestWhatIsSentAgainIsBounded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.FlushInterval, c.MaxBatchBytes = time.Hour, 4<<10 })
	for gpu := range 300 {
		for _, node := range []string{"a", "b", "c"} {
			w.truth[seriesName{node, "integer", gpu}] = reading{value: 5}
		}
	}
	w.push("a", "b", "c")
	w.rebirth()
	before := w.calls
	w.push("a", "b", "c")
	assert.Equal(t, 1+3, w.calls-before)
	for _, node := range []string{"a", "b", "c"} {
		w.whole(node)
	}
}
