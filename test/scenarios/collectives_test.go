// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A GPU that computes 10 % longer is found and named by the time that it does not wait,
// where the step times of all ranks are one. Slow links accuse no node. `make eval` plays
// more of it.
func TestCollectives(t *testing.T) {
	cases := slices.DeleteFunc(CollectiveCases(), func(c CollectiveCase) bool {
		return !slices.Contains([]string{"gpu", "rail", "fabric", "phases", "checkpoints"}, c.Name)
	})
	require.Len(t, cases, 5)
	for i := range cases {
		cases[i].Runs = 3
		cases[i].Hours = min(cases[i].Hours, 1)
	}
	results, err := EvaluateCollectives(t.Context(), cases, 1, func(int, int, string) {})
	require.NoError(t, err)
	for _, o := range results {
		assert.Len(t, o.Found, o.Faults, o.Case.Name)
		assert.Equal(t, o.Faults, o.Named, o.Case.Name)
		assert.Zero(t, o.ByThroughput, o.Case.Name)
		assert.Zero(t, o.Onsets+o.Parts, o.Case.Name)
		if o.Case.Loss == 0 {
			assert.Zero(t, o.Faults, o.Case.Name)
		}
	}
}
