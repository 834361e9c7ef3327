// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A part of a node that loses a tenth is found by the agent alone and by the gateway, and
// named. `make eval` plays more of it.
func TestSiblings(t *testing.T) {
	cases := slices.DeleteFunc(SiblingCases(), func(c SiblingCase) bool { return c.Name == "healthy" })
	for i := range cases {
		cases[i].Runs = 2
	}
	results, err := EvaluateSiblings(t.Context(), cases, 1, func(int, int, string) {})
	require.NoError(t, err)
	for _, o := range results {
		assert.Len(t, o.Found, o.Slow, o.Case.Name)
		assert.Len(t, o.Seen, o.Slow, o.Case.Name)
		assert.GreaterOrEqual(t, o.Named, o.Slow-1, o.Case.Name)
		assert.LessOrEqual(t, slices.Max(o.Found), 5*time.Minute, o.Case.Name)
		assert.LessOrEqual(t, o.Agent+o.Gateway, 1, o.Case.Name) // of 2 node-days
	}
}
