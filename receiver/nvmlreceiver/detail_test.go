// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvmlreceiver

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// models are those whose reports show what the standard detail leaves out.
var models = map[string]func(gpus int) *fakenvml.State{
	"H100": fakenvml.NewH100, "B200": fakenvml.NewB200, "A100 in slices": fakenvml.NewA100MIG, "T4": fakenvml.NewT4,
}

// reports are those of a GPU of each model, at both details.
func reports(t *testing.T) (standard, full map[string]pmetric.Metrics) {
	t.Helper()
	library := fakenvml.Library(t)
	standard, full = map[string]pmetric.Metrics{}, map[string]pmetric.Metrics{}
	for model, state := range models {
		state(1).Install(t)
		for detail, into := range map[Detail]map[string]pmetric.Metrics{DetailStandard: standard, DetailFull: full} {
			n := startNode(t, func(cfg *Config) { cfg.LibraryPath, cfg.Detail = library, detail })
			into[model] = n.first()
			n.shutdown()
		}
	}
	return standard, full
}

// series of a metric, as the values of its attributes without those that name the GPU.
func series(md pmetric.Metrics) map[string][][]string {
	out := map[string][][]string{}
	for _, m := range all(md) {
		if m.Name() == "hw.gpu.info" {
			continue
		}
		for _, p := range pointsOf(m) {
			var values []string
			for key, v := range p.Attributes().All() {
				if !slices.Contains([]string{"hw.id", "hw.parent", "hw.type", "hw.sensor_location"}, key) {
					values = append(values, v.Str())
				}
			}
			out[m.Name()] = append(out[m.Name()], values)
		}
	}
	return out
}

// leftOut is, by metric, the values that the standard detail does not have on some model.
func leftOut(t *testing.T) map[string]map[string]bool {
	t.Helper()
	standard, full := reports(t)
	out := map[string]map[string]bool{}
	for model := range full {
		less := series(standard[model])
		for metric, all := range series(full[model]) {
			here := slices.Concat(less[metric]...)
			for _, value := range slices.Concat(all...) {
				if !slices.Contains(here, value) {
					if out[metric] == nil {
						out[metric] = map[string]bool{}
					}
					out[metric][value] = true
				}
			}
		}
	}
	return out
}

var quoted = regexp.MustCompile("`([^`]+)`")

// The docs list each value that the standard detail leaves out.
func TestDocsSayWhatIsLeftOut(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "<!-- begin detail -->\n")
	require.True(t, ok)
	table, _, ok := strings.Cut(rest, "<!-- end detail -->")
	require.True(t, ok)
	logged := map[string][]string{}
	for row := range strings.Lines(table) {
		cells := strings.Split(row, " | ")
		if !strings.HasPrefix(row, "| `") {
			continue
		}
		for _, metric := range quoted.FindAllStringSubmatch(cells[0], -1) {
			for _, value := range quoted.FindAllStringSubmatch(cells[1], -1) {
				logged[metric[1]] = append(logged[metric[1]], value[1])
			}
			slices.Sort(logged[metric[1]])
		}
	}
	is := map[string][]string{}
	for metric, values := range leftOut(t) {
		is[metric] = slices.Sorted(maps.Keys(values))
	}
	assert.Equal(t, is, logged, "the table between the marks of \"detail\" in docs/metrics.md must list, by metric, the values that standard leaves out: edit its rows")
}
