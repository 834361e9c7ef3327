// SPDX-License-Identifier: Apache-2.0

package dcgmnames

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// same are pairs of units, the catalogue's and dcgm-exporter's, that differ in name alone.
var same = map[[2]string]bool{
	{"{lane}", "lanes"}: true,
	{"Cel", "C"}:        true, {"W", "W"}: true, {"1", "1"}: true, {"1", "code"}: true, {"By/s", "B/s"}: true,
	{"{replay}", "retries"}: true, {"{row}", "rows"}: true, {"{page}", "pages"}: true, {"{error}", "errors"}: true,
}

// TestEachNameIsMappedOrHasAReason holds the names against the receiver: it has the metric,
// the attributes with these values, and a unit from which there is a factor.
func TestEachNameIsMappedOrHasAReason(t *testing.T) {
	text, err := os.ReadFile("../../../receiver/nvmlreceiver/metadata.yaml")
	require.NoError(t, err)
	var receiver struct {
		Attributes map[string]struct {
			Name string `yaml:"name_override"`
			Enum []string
		}
		Metrics map[string]struct {
			Unit       string
			Attributes []string
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &receiver))
	var all []string
	for _, n := range All {
		all = append(all, n.DCGM)
		if n.Metric == "" {
			assert.NotEmpty(t, n.Note, n.DCGM)
			continue
		}
		for _, metric := range append([]string{n.Metric}, n.Less...) {
			assert.Contains(t, receiver.Metrics, metric, n.DCGM)
			assert.NotNil(t, reading.ByName(metric), "%s: %s", n.DCGM, metric)
		}
		m := receiver.Metrics[n.Metric]
		units := [2]string{m.Unit, n.Unit}
		_, known := factors[units]
		assert.NotEqual(t, known, same[units], "%s: from %q to %q", n.DCGM, m.Unit, n.Unit)
		for _, a := range n.Attributes {
			assert.True(t, slices.ContainsFunc(m.Attributes, func(name string) bool {
				def := receiver.Attributes[name]
				return (def.Name == a.Key || name == a.Key) && slices.Contains(def.Enum, a.Value)
			}), "%s: %s has no %s=%s", n.DCGM, n.Metric, a.Key, a.Value)
		}
	}
	slices.Sort(all)
	require.Len(t, slices.Compact(slices.Clone(all)), len(all), "a name is there twice")
}
