// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/connector"
	"go.opentelemetry.io/collector/connector/connectortest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.yaml.in/yaml/v3"
)

func TestWrongNames(t *testing.T) {
	nvml, forward, health := component.MustNewType("nvml"), component.MustNewType("forward"), component.MustNewType("healthcheck")
	factories := otelcol.Factories{
		Receivers: map[component.Type]receiver.Factory{
			nvml: receivertest.NewNopFactory(), component.MustNewType("otlp"): receivertest.NewNopFactory(), component.MustNewType("fleet_otlp"): receivertest.NewNopFactory(),
		},
		Connectors: map[component.Type]connector.Factory{forward: connectortest.NewNopFactory()},
		Extensions: map[component.Type]extension.Factory{health: extensiontest.NewNopFactory()},
	}
	for text, want := range map[string]string{
		`{receivers: {nvml: , " nvml / a": }, connectors: {forward: }, service: {pipelines: {metrics: {receivers: [nvml, nvml/a, forward], exporters: [forward]}}}}`: "",
		`{receivers: {1: , nvml: 7}, exporters: , service: {extensions: [1], pipelines: {metrcis: {receivrs: [gone]}}}}`:                                             "",
		`{receivers: {otlp: , fleet_otlp: }, connectors: {forward: }, service: {pipelines: {metrics: {receivers: [fleet_otlp], exporters: [forward]}}}}`: "" +
			"`receivers` has \"otlp\", which no pipeline lists: give its settings to `fleet_otlp`, see docs/upgrading.md",
		`{receivers: {otlp: , fleet_otlp: }, service: {pipelines: {metrics: {receivers: [fleet_otlp]}, logs: {receivers: [otlp]}}}}`: "",
		`{receivers: {nvlm/a: }, extensions: {health: }, service: {pipelines: {metrics: {receivers: [nvml/a]}}}}`: "`extensions` has \"health\", which is no extension of this distribution\n" +
			"`receivers` has \"nvlm/a\", which is no receiver of this distribution: did you mean nvml?",
		`{receivers: {nvml/a: , nvml/x1: }, connectors: {forward: }, extensions: {healthcheck: },
			service: {extensions: [healthchek], pipelines: {metrics: {receivers: [nvml/b], processors: [forward], exporters: [forwad]}}}}`: "" +
			"`service::extensions` lists \"healthchek\", which is not configured: did you mean healthcheck?\n" +
			"`service::pipelines::metrics::receivers` lists \"nvml/b\", which is not configured: did you mean nvml/a?\n" +
			"`service::pipelines::metrics::processors` lists \"forward\", which is not configured\n" +
			"`service::pipelines::metrics::exporters` lists \"forwad\", which is not configured: did you mean forward?",
	} {
		var settings map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(text), &settings))
		conf := confmap.NewFromStringMap(settings)
		_, names := usedComponents(conf, factories)
		if err := errors.Join(wrongNames(conf, names, factories)...); want == "" {
			assert.NoError(t, err, text)
		} else {
			assert.EqualError(t, err, want)
		}
	}
}
