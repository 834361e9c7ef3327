// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensioncapabilities"
	"go.opentelemetry.io/collector/processor"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/extension/expositionextension"
	"github.com/gpu-collector/gpu-collector/extension/thresholdextension"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor"
)

// sender is what pushes at the end of an agent's pipeline, in this process:
// diff with its table, the OTLP exporter and the threshold extension.
type sender struct {
	consumer.Metrics
	threshold.Source
}

// senderOptions are the configurations of a sender's components, in YAML;
// without diff the pushes are full state.
type senderOptions struct{ extension, exporter, diff string }

type senderHost map[component.ID]component.Component

func (h senderHost) GetExtensions() map[component.ID]component.Component { return h }

func newSender(t *testing.T, o senderOptions) *sender {
	t.Helper()
	host := senderHost{}
	run := func(c component.Component, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, c.Start(t.Context(), host))
		t.Cleanup(func() { require.NoError(t, c.Shutdown(context.WithoutCancel(t.Context()))) })
	}

	ef := thresholdextension.NewFactory()
	id := component.NewID(ef.Type())
	ext, err := ef.Create(t.Context(), extension.Settings{ID: id, TelemetrySettings: componenttest.NewNopTelemetrySettings()}, configured(t, ef, o.extension))
	run(ext, err)
	require.NoError(t, ext.(extensioncapabilities.PipelineWatcher).Ready()) // pushes wait for it
	host[id] = ext

	xf := otlpexporter.NewFactory()
	exp, err := xf.CreateMetrics(t.Context(), exporter.Settings{ID: component.NewID(xf.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings()},
		configured(t, xf, o.exporter+`
tls: {insecure: true}
middlewares: [{id: straggler_threshold}]
retry_on_failure: {enabled: false}
sending_queue: {enabled: false}
`))
	run(exp, err)
	s := &sender{Metrics: exp, Source: ext.(threshold.Source)}
	if o.diff == "" {
		return s
	}

	tf := expositionextension.NewFactory()
	tid := component.NewID(tf.Type())
	table, err := tf.Create(t.Context(), extension.Settings{ID: tid, TelemetrySettings: componenttest.NewNopTelemetrySettings()}, tf.CreateDefaultConfig())
	run(table, err)
	host[tid] = table
	pf := diffprocessor.NewFactory()
	diff, err := pf.CreateMetrics(t.Context(), processor.Settings{ID: component.NewID(pf.Type()), TelemetrySettings: componenttest.NewNopTelemetrySettings()},
		configured(t, pf, "table: exposition\n"+o.diff), exp)
	run(diff, err)
	s.Metrics = diff
	return s
}

// configured reads a component's configuration over its defaults.
func configured(t *testing.T, f component.Factory, text string) component.Config {
	t.Helper()
	var raw map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &raw))
	cfg := f.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(raw).Unmarshal(cfg))
	return cfg
}
