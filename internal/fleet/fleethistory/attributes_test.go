// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestAttributesComeBack(t *testing.T) {
	text := rapid.SampledFrom([]string{"a", "b", `"a":"b"`, `\`, ",", "=", "<", ""})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOfN(text, text, 0, 3).Draw(t, "attributes")
		joined, key, value := JoinAttributes(want), text.Draw(t, "key"), text.Draw(t, "value")
		assert.Len(t, SplitAttributes(joined), len(want))
		for k, v := range want {
			assert.Equal(t, v, SplitAttributes(joined)[k])
		}
		v, there := want[key]
		assert.Equal(t, there && v == value, HasAttribute(joined, key, value))
	})
}
