// SPDX-License-Identifier: Apache-2.0

package expositionextension

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpu-collector/gpu-collector/internal/delta"
)

// TestFollows: a receiver compares pushes with the table of the one diff that gets all of
// them. Everything else is an error that says what would be right.
func TestFollows(t *testing.T) {
	type names = []any
	type pipelines = map[string]any
	pipe := func(receivers, processors names) map[string]any {
		return map[string]any{"receivers": receivers, "processors": processors, "exporters": names{"nop"}}
	}
	for name, tc := range map[string]struct {
		pipelines  pipelines
		registered []string
		want       string
	}{
		"one":             {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"memory_limiter", "diff"}), "logs": pipe(names{"fleet_otlp"}, names{})}, []string{"diff"}, ""},
		"more behind it":  {pipelines{"metrics/a": pipe(names{"fleet_otlp"}, names{"diff/x", "batch", "diff"})}, []string{"diff", "diff/x"}, ""},
		"two pipelines":   {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"diff"}), "metrics/raw": pipe(names{"nop", "fleet_otlp"}, names{})}, []string{"diff"}, "`fleet_otlp` feeds 2 pipelines of metrics (metrics, metrics/raw): it must feed one"},
		"no pipeline":     {pipelines{"metrics": pipe(names{"otlp"}, names{"diff"})}, []string{"diff"}, "`fleet_otlp` feeds 0 pipelines of metrics ()"},
		"another between": {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"memory_limiter", "batch", "diff"})}, []string{"diff"}, "the pipeline `metrics` has `batch` behind `fleet_otlp`: a diff with this `exposition` must come first, or behind memory_limiter alone"},
		"not this one's":  {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"diff"})}, nil, "has `diff` behind `fleet_otlp`: a diff with this `exposition` must come first"},
		"no diff":         {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"memory_limiter"})}, []string{"diff"}, "the pipeline `metrics` has no diff with this `exposition`"},
		"one diff twice":  {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"diff"}), "metrics/b": pipe(names{"otlp"}, names{"diff"})}, []string{"diff", "diff"}, "`diff` is in 2 pipelines: the one behind `fleet_otlp` must have a name of its own, such as `diff/door`"},
	} {
		t.Run(name, func(t *testing.T) {
			e := &exposition{}
			require.NoError(t, e.NotifyConfig(t.Context(), confmap.NewFromStringMap(map[string]any{"service": map[string]any{"pipelines": tc.pipelines, "telemetry": "any"}})))
			engines := map[string]*delta.Engine{}
			for _, processor := range tc.registered {
				engines[processor] = &delta.Engine{}
				defer e.Register(processor, engines[processor])()
			}
			got, err := e.Follows("fleet_otlp")
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			assert.Contains(t, engines, map[bool]string{true: "diff", false: "diff/x"}[got == engines["diff"]])
		})
	}
}
