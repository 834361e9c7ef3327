// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.yaml.in/yaml/v3"
)

func TestUnlistedOTLP(t *testing.T) {
	for text, wrong := range map[string]bool{
		`{receivers: {otlp: , fleet_otlp: }, service: {pipelines: {metrics: {receivers: [fleet_otlp]}}}}`:                            true,
		`{receivers: {otlp: , fleet_otlp: }, service: {pipelines: {metrics: {receivers: [fleet_otlp]}, logs: {receivers: [otlp]}}}}`: false,
		`{receivers: {otlp: }, service: {pipelines: {metrics: {receivers: [nvml]}}}}`:                                                false,
	} {
		var settings map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(text), &settings))
		conf := confmap.NewFromStringMap(settings)
		_, names := usedComponents(conf, otelcol.Factories{})
		assert.Equal(t, wrong, unlistedOTLP(conf, names) != nil, text)
	}
}

// TestWrongTables: with one of them the start fails.
func TestWrongTables(t *testing.T) {
	diff, fleetOTLP := component.MustNewType("diff"), component.MustNewType("fleet_otlp")
	factories := otelcol.Factories{
		Receivers:  map[component.Type]receiver.Factory{fleetOTLP: receivertest.NewNopFactory()},
		Processors: map[component.Type]processor.Factory{diff: processortest.NewNopFactory(), component.MustNewType("other"): processortest.NewNopFactory()},
		Extensions: map[component.Type]extension.Factory{component.MustNewType("exposition"): extensiontest.NewNopFactory()},
	}
	for name, tt := range map[string]struct{ diff, extensions, want string }{
		"right":               {"exposition/a", "[health, exposition/a]", ""},
		"right with spaces":   {"' exposition / a '", "[exposition/a]", ""},
		"none":                {"", "[exposition]", ""},
		"no name":             {"7", "[exposition]", ""},
		"misspelt":            {"expositoin", "[health, exposition]", "`processors::diff/b::table` is \"expositoin\", which `service::extensions` does not list: there is exposition"},
		"nothing alike":       {"x", "[exposition, exposition/a]", "`processors::diff/b::table` is \"x\", which `service::extensions` does not list: there is exposition, exposition/a"},
		"another type":        {"health", "[health, exposition]", "`processors::diff/b::table` is \"health\", must be an extension of type exposition: there is exposition"},
		"not in the service":  {"exposition", "[health]", "`processors::diff/b::table` is \"exposition\", which `service::extensions` does not list"},
		"no exposition there": {"health", "[health]", "`processors::diff/b::table` is \"health\", must be an extension of type exposition"},
	} {
		var settings map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(`{
			processors: {diff/b: {table: `+tt.diff+`}, diff/unused: {table: gone}, other: {table: gone}},
			service: {extensions: `+tt.extensions+`, pipelines: {metrics: {processors: [diff/b, other]}}}}`), &settings), name)
		if err := errors.Join(wrongTables(usedComponents(confmap.NewFromStringMap(settings), factories))...); tt.want == "" {
			assert.NoError(t, err, name)
		} else {
			assert.EqualError(t, err, tt.want, name)
		}
	}

	conf := confmap.NewFromStringMap(map[string]any{
		"receivers": map[string]any{"fleet_otlp": map[string]any{"table": "exposition"}},
		"service": map[string]any{
			"pipelines": map[string]any{"metrics": map[string]any{"receivers": []any{"fleet_otlp"}}},
			"telemetry": map[string]any{"metrics": map[string]any{"level": "none"}},
		},
	})
	err := checks{func() (otelcol.Factories, error) { return factories, nil }, io.Discard}.Convert(t.Context(), conf)
	require.ErrorContains(t, err, "`receivers::fleet_otlp::table` is \"exposition\", which `service::extensions` does not list")
}
