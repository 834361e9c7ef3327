// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"pgregory.net/rapid"
)

// Whatever came before it, a set has its own hash.
func TestMemoIsTheHash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var m memo
		for range 20 {
			attrs := pcommon.NewMap()
			require.NoError(t, attrs.FromRaw(anyAttributes(t, 1)))
			for k := range rapid.MapOfN(rapid.SampledFrom([]string{"c", "d", "e"}), rapid.Bool(), 0, 3).Draw(t, "more") {
				attrs.PutInt(k, rapid.Int64Range(0, 1).Draw(t, "number"))
			}
			at := rapid.SampledFrom([]int{0, 1, memoPoints - 1, memoPoints}).Draw(t, "position")
			assert.Equal(t, attributesHash(attrs), m.attributes(at, attrs))
		}
		m.forget()
		for _, a := range m.attrs {
			assert.Zero(t, a, "no report is kept")
		}
	})
}
