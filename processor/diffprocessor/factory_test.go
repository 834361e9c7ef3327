// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/processor/processortest"

	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

func TestFactory(t *testing.T) {
	f := NewFactory()
	assert.Equal(t, component.StabilityLevelDevelopment, f.MetricsStability())

	set := processortest.NewNopSettings(metadata.Type)
	p, err := f.CreateMetrics(t.Context(), set, f.CreateDefaultConfig(), consumertest.NewNop())
	require.NoError(t, err)
	assert.True(t, p.Capabilities().MutatesData, "points are removed in place")
	require.NoError(t, p.Shutdown(t.Context()))
}
