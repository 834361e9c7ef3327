// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
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

func TestStartNamesWhatIsWrongWithTheExtension(t *testing.T) {
	_, err := withExtension(t, &hop{}, nil)
	require.EqualError(t, err, "`threshold_extension` is \"straggler_threshold\", which `service::extensions` does not list")
	_, err = withExtension(t, &hop{}, struct {
		component.StartFunc
		component.ShutdownFunc
	}{})
	require.EqualError(t, err, "`threshold_extension` is \"straggler_threshold\", must be a straggler_threshold extension")
}

var _ component.Host = host(nil)

// A push that a receiver has compared is not compared again, with and without a buffer;
// what finds no room comes again, and a refusal after the buffer took it, too.
func TestAPushThatWasCompared(t *testing.T) {
	for name, edit := range map[string]func(*Config){"inline": nil, "conflating": byHand} {
		t.Run(name, func(t *testing.T) {
			next := &hop{}
			p := newTestProcessor(t, next, edit)
			push := func(answered bool, values ...float64) int {
				msg, err := pmetricotlp.NewExportRequestFromMetrics(report("n", time.Second, values...)).MarshalProto()
				require.NoError(t, err)
				compared, out := p.engine.Compare(clientidentity.Identity{}, msg, nil)
				require.NotNil(t, compared)
				req := pmetricotlp.NewExportRequest()
				require.NoError(t, req.UnmarshalProto(out))
				err = compared.Consume(t.Context(), req.Metrics(), func(ctx context.Context, md pmetric.Metrics) error {
					if err := p.ConsumeMetrics(ctx, md); err != nil || answered {
						return err
					}
					return errors.New("after it went on")
				})
				assert.Equal(t, answered, err == nil)
				if p.buffer != nil {
					p.flush(t.Context(), nil)
				}
				return next.took()
			}
			assert.Equal(t, 3, push(true, 1, 2, 3))
			assert.Equal(t, 1, push(true, 1, 2, 4))
			assert.Zero(t, push(true, 1, 2, 4))
			assert.Equal(t, 1, push(false, 1, 9, 4), "it went on, and its sender was told that it did not")
			assert.Equal(t, 1, push(true, 1, 9, 4), "in doubt")
			assert.Zero(t, push(true, 1, 9, 4))
			require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 2*time.Second, 1, 9, 4)))
			if p.buffer != nil {
				p.flush(t.Context(), nil)
			}
			assert.Zero(t, next.took(), "one table for both ways in")
		})
	}
}
