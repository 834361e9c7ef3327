// SPDX-License-Identifier: Apache-2.0

package pushheaders

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseGroups(t *testing.T) {
	header, err := EncodeGroups([]string{"a", "", "b/c", "no\nnewline", strings.Repeat("x", MaxNameLength+1)})
	require.NoError(t, err)
	assert.Equal(t, `"a", "b/c"`, header)
	groups, err := ParseGroups([]string{header})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b/c"}, groups)

	empty, err := EncodeGroups(nil)
	require.NoError(t, err)
	assert.Empty(t, empty)

	many := make([]string, MaxGroups+5)
	for i := range many {
		many[i] = string(rune('a' + i))
	}
	header, err = EncodeGroups(many)
	require.NoError(t, err)
	groups, err = ParseGroups([]string{header})
	require.NoError(t, err)
	assert.Equal(t, many[:MaxGroups], groups)

	for name, bad := range map[string][]string{
		"too many":  {strings.Repeat(`"a",`, MaxGroups) + `"b"`},
		"too long":  {`"` + strings.Repeat("a", MaxHeaderBytes) + `"`},
		"no string": {`17`},
		"garbage":   {"\x00\xff"},
		"long name": {`"` + strings.Repeat("a", MaxNameLength+1) + `"`},
	} {
		_, err := ParseGroups(bad)
		assert.Error(t, err, name)
	}
}

func FuzzParseGroups(f *testing.F) {
	f.Add(`"a", "b/c"`)
	f.Fuzz(func(t *testing.T, header string) {
		groups, err := ParseGroups([]string{header})
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(groups), MaxGroups)
		for _, g := range groups {
			require.True(t, ValidName(g))
		}
	})
}
