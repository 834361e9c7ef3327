// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// ear is an extension that hears the next hop.
type ear struct {
	component.StartFunc
	component.ShutdownFunc
	fn func(resync.Request)
}

func (e *ear) Subscribe(fn func(resync.Request)) func() {
	e.fn = fn
	return func() { e.fn = nil }
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

var extensionID = component.MustNewID("straggler_threshold")

func withExtension(t *testing.T, next *hop, ext component.Component) (*diffProcessor, error) {
	cfg := createDefaultConfig().(*Config)
	cfg.ThresholdExtension = &extensionID
	p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), next)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Shutdown(context.Background())) })
	h := host{}
	if ext != nil {
		h[extensionID] = ext
	}
	return p, p.Start(t.Context(), h)
}

func TestRequestedStateIsSentWithTheNextReport(t *testing.T) {
	next, ext := &hop{}, &ear{}
	p, err := withExtension(t, next, ext)
	require.NoError(t, err)
	push := func(node string) int {
		require.NoError(t, p.ConsumeMetrics(t.Context(), report(node, 0, 1, 2)))
		return next.took()
	}
	push("a")
	push("b")
	ext.fn(resync.Request{Node: "a"})
	assert.Equal(t, []int{2, 0, 0}, []int{push("a"), push("a"), push("b")})
	ext.fn(resync.Request{})
	assert.Equal(t, []int{2, 2, 0, 0}, []int{push("a"), push("b"), push("a"), push("b")})
	require.NoError(t, p.Shutdown(t.Context()))
	assert.Nil(t, ext.fn, "the subscription ends with the processor")
}

// The next hop restarts while it answers: the answer tells of the new epoch, and
// what it answered does not count.
func TestEpochThatChangesUnderWay(t *testing.T) {
	next, ext := &hop{}, &ear{}
	p, err := withExtension(t, next, ext)
	require.NoError(t, err)
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1, 2)))
	next.lose = func() error { next.state = nil; ext.fn(resync.Request{}); return nil }
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1, 3)))
	next.lose = nil
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1, 3)))
	assert.Equal(t, map[string]float64{"a/m/GPU-0": 1, "a/m/GPU-1": 3}, next.state)
}

func TestStartNamesWhatIsWrongWithTheExtension(t *testing.T) {
	_, err := withExtension(t, &hop{}, nil)
	require.EqualError(t, err, "`threshold_extension` is \"straggler_threshold\", which `service::extensions` does not list")
	_, err = withExtension(t, &hop{}, struct {
		component.StartFunc
		component.ShutdownFunc
	}{})
	require.EqualError(t, err, "`threshold_extension` is \"straggler_threshold\", must be a straggler_threshold extension")
}

func TestWholeNodeGranularity(t *testing.T) {
	next := &hop{}
	p := newTestProcessor(t, next, func(c *Config) { c.Granularity = GranularityNode })
	for i, tt := range []struct {
		values []float64
		want   int
	}{{[]float64{1, 2}, 2}, {[]float64{1, 2}, 0}, {[]float64{1, 3}, 2}, {[]float64{1, 3}, 0}} {
		require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, tt.values...)))
		assert.Equal(t, tt.want, next.took(), "report %d", i)
	}
	next.refuse = func() error { return errors.New("no") }
	require.Error(t, p.ConsumeMetrics(t.Context(), report("a", 0, 5, 3)))
	next.refuse = nil
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("a", 0, 1, 3)))
	assert.Equal(t, 2, next.took())

	// Deltas go whatever else there is, and take the node with them.
	md := report("a", 0, 1, 3)
	m := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().AppendEmpty()
	m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
	m.Sum().DataPoints().AppendEmpty().SetIntValue(1)
	counted := 0
	p.next = hopFunc(func(_ context.Context, md pmetric.Metrics) error { counted = md.DataPointCount(); return nil })
	require.NoError(t, p.ConsumeMetrics(t.Context(), md))
	assert.Equal(t, 4, counted, "two points, the delta, the heartbeat")
}

var _ component.Host = host(nil)
