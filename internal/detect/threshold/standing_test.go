// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"testing"

	"github.com/dunglas/httpsfv"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
)

func TestStandingCrossesTheWire(t *testing.T) {
	s := Standing{Node: `odd "name"`, Group: `a \ b`, Active: 2, Needed: 3, Why: unjudged.FewPeers}
	for why := range unjudged.Count {
		s.Why = why
		text := s.Encode()
		got, err := ParseStanding([]string{text})
		require.NoError(t, err)
		assert.Equal(t, &s, got)
		list, err := httpsfv.UnmarshalList([]string{text})
		require.NoError(t, err)
		again, err := httpsfv.Marshal(list)
		require.NoError(t, err)
		assert.Equal(t, again, text, "RFC 9651's canonical form")
	}
	got, err := ParseStanding([]string{(&Standing{}).Encode()})
	require.NoError(t, err)
	assert.Equal(t, &Standing{}, got, "a node that the gateway does not know")
	got, err = ParseStanding(nil)
	require.NoError(t, err)
	assert.Nil(t, got, "the next hop does not tell")
	for _, bad := range []string{`"n";g="a";n=-2;need=3`, `"n";g="a";n=2;need=3;why=unheard_of`, `("n" "m");g=1`, `"n"`, "\xff"} {
		got, err = ParseStanding([]string{bad})
		assert.Error(t, err, "%+v", got)
	}
}
