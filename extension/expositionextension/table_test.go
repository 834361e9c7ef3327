// SPDX-License-Identifier: Apache-2.0

package expositionextension

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
)

// TestFollows: a receiver compares pushes with the table of the one diff that gets all of
// them. Everything else is an error that names what would be right.
func TestFollows(t *testing.T) {
	type names = []any
	type pipelines = map[string]any
	pipe := func(receivers, processors names) map[string]any {
		return map[string]any{"receivers": receivers, "processors": processors, "exporters": names{"nop"}}
	}
	for name, tc := range map[string]struct {
		pipelines  pipelines
		registered string
		want       string
	}{
		"one":             {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"memory_limiter", "diff"}), "logs": pipe(names{"fleet_otlp"}, names{})}, "diff", ""},
		"more behind it":  {pipelines{"metrics/a": pipe(names{"fleet_otlp"}, names{"diff/x", "batch", "diff"})}, "diff/x", ""},
		"two pipelines":   {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"diff"}), "metrics/raw": pipe(names{"nop", "fleet_otlp"}, names{})}, "diff", "`fleet_otlp` feeds 2 pipelines of metrics (metrics, metrics/raw): it must feed one"},
		"no pipeline":     {pipelines{"metrics": pipe(names{"otlp"}, names{"diff"})}, "diff", "`fleet_otlp` feeds 0 pipelines of metrics ()"},
		"another between": {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"memory_limiter", "batch", "diff"})}, "diff", "the pipeline `metrics` has `batch` behind `fleet_otlp`: a diff with this `table` must come first, or behind memory_limiter alone"},
		"not this one's":  {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"diff"})}, "", "has `diff` behind `fleet_otlp`: a diff with this `table` must come first"},
		"a later one's":   {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"diff", "diff/x"})}, "diff/x", "has `diff` behind `fleet_otlp`: a diff with this `table` must come first"},
		"no diff":         {pipelines{"metrics": pipe(names{"fleet_otlp"}, names{"memory_limiter"})}, "diff", "the pipeline `metrics` has no diff with this `table`"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newTestExtension(t)
			require.NoError(t, e.NotifyConfig(t.Context(), confmap.NewFromStringMap(map[string]any{"service": map[string]any{"pipelines": tc.pipelines, "telemetry": "any"}})))
			var engine *otlp.Engine
			if tc.registered != "" {
				opened, release, err := e.Open(tc.registered, lastvalue.Settings{})
				require.NoError(t, err)
				defer release()
				engine = opened
			}
			got, err := e.Follows("fleet_otlp")
			if tc.want != "" {
				require.ErrorContains(t, err, tc.want)
				return
			}
			require.NoError(t, err)
			assert.Same(t, engine, got)
		})
	}
}

// The table forgets a while after the TTL, and where something finds no room well before it.
func TestTheTableIsSwept(t *testing.T) {
	for name, tt := range map[string]struct {
		maxNodes int
		after    time.Duration
	}{
		"at leisure":       {3, 12*time.Minute + 30*time.Second},
		"for want of room": {2, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := createDefaultConfig().(*Config)
				cfg.MaxNodes, cfg.ClusterShare = tt.maxNodes, 1
				engine, release, err := extensionOf(t, cfg).Open("diff", lastvalue.Settings{})
				require.NoError(t, err)
				defer release()
				push(t, engine, "a", "made up", 1)
				push(t, engine, "a", "made up too", 1)
				for at := time.Duration(0); at < tt.after; at += 10 * time.Second {
					push(t, engine, "a", "real", 1)
					time.Sleep(10 * time.Second)
				}
				assert.EqualValues(t, 1, engine.Table.Stats().Nodes, "the real one")
				assert.EqualValues(t, 2, engine.Table.Stats().EvictedNodes)
			})
		})
	}
}
