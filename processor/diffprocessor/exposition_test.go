// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// window is an exposition extension.
type window struct {
	component.StartFunc
	component.ShutdownFunc
	delta.Exposition
	engines map[*delta.Engine]bool
}

func (w *window) Register(processor string, e *delta.Engine) func() {
	if processor != "diff" {
		return nil
	}
	w.engines[e] = true
	return func() { delete(w.engines, e) }
}

func TestExposition(t *testing.T) {
	id, w := component.MustNewID("exposition"), &window{engines: map[*delta.Engine]bool{}}
	cfg := createDefaultConfig().(*Config)
	cfg.Exposition = &id
	p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), &hop{})
	require.NoError(t, err)
	require.EqualError(t, p.Start(t.Context(), host{}), "`exposition` is \"exposition\", which `service::extensions` does not list")
	require.EqualError(t, p.Start(t.Context(), host{id: &ear{}}), "`exposition` is \"exposition\", must be a exposition extension")
	require.NoError(t, p.Start(t.Context(), host{id: w}))
	assert.Equal(t, map[*delta.Engine]bool{p.engine: true}, w.engines)
	require.NoError(t, p.Shutdown(t.Context()))
	assert.Empty(t, w.engines)
}
