// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestAttributesComeBack(t *testing.T) {
	for text, want := range map[string]map[string]string{
		"":                   nil,
		"b=2,a=1":            {"a": "1", "b": "2"},
		`a=x\,y,b=c=d`:       {"a": "x,y", "b": "c=d"},
		`k\=\,\\=v`:          {`k=,\`: "v"},
		`path=C:\temp\,disk`: {"path": `C:\temp,disk`},
		`end=\`:              {"end": `\`}, // of before values were escaped
		"flag,a=":            {"flag": "", "a": ""},
	} {
		assert.Equal(t, want, SplitAttributes(text), text)
	}
	text := rapid.StringOfN(rapid.RuneFrom([]rune(`ab=,\`)), 0, 5, -1)
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.MapOfN(text, text, 1, 4).Draw(t, "attributes")
		var pairs []string
		for k, v := range want {
			pairs = append(pairs, Pair(k, v))
		}
		assert.Equal(t, want, SplitAttributes(JoinAttributes(pairs)))
	})
}
