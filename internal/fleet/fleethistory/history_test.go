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
		want := rapid.MapOfN(text, text, 1, 3).Draw(t, "attributes")
		assert.Equal(t, want, SplitAttributes(JoinAttributes(want)))
	})
	assert.Nil(t, SplitAttributes(JoinAttributes(nil)))
}
