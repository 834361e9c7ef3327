// SPDX-License-Identifier: Apache-2.0

package resync

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnswer(t *testing.T) {
	many := make([]string, MaxNodes+1)
	for i := range many {
		many[i] = fmt.Sprint("n", i)
	}
	for name, tt := range map[string]struct {
		asked []string
		want  string
	}{
		"nobody":                      {nil, ""},
		"one":                         {[]string{"n1"}, `"n1"`},
		"each once":                   {[]string{"n1", "n2", "n1"}, `"n1", "n2"`},
		"a quote":                     {[]string{`n"1\`}, `"n\"1\\"`},
		"as many as fit":              {many[:MaxNodes], `"` + strings.Join(many[:MaxNodes], `", "`) + `"`},
		"more than fit":               {many, `"` + strings.Join(many[:MaxNodes], `", "`) + `"`},
		"a name that no header holds": {[]string{"n1", "kühl"}, `"n1"`},
		"no name":                     {[]string{""}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, answer := ContextWithAnswer(t.Context())
			for _, n := range tt.asked {
				said := Ask(ctx, n)
				assert.Equal(t, slices.ContainsFunc(answer.Requests(), func(r Request) bool { return r.Node == n }), said, n)
			}
			text := answer.Header()
			assert.Equal(t, tt.want, text)
			if text == "" {
				return
			}
			requests, err := Parse([]string{text}, "c", "")
			require.NoError(t, err)
			assert.NotEmpty(t, requests)
			for _, r := range requests {
				assert.Contains(t, tt.asked, r.Node)
				assert.Empty(t, r.Cluster)
			}
		})
	}
}

// A header is no longer than 4 KiB, also of names that have to be escaped.
func TestAnAnswerOfLongNamesIsBounded(t *testing.T) {
	for name, long := range map[string]string{"plain": "n", "escaped": `"`} {
		t.Run(name, func(t *testing.T) {
			ctx, answer := ContextWithAnswer(t.Context())
			asked := 0
			for i := range MaxNodes {
				if Ask(ctx, fmt.Sprintf("%03d%s", i, strings.Repeat(long, 250))) {
					asked++
				}
			}
			text := answer.Header()
			assert.LessOrEqual(t, len(text), 4<<10)
			assert.Greater(t, len(text), 4<<10-520, "and as many as fit")
			requests, err := Parse([]string{text}, "", "")
			require.NoError(t, err)
			assert.Len(t, requests, asked)
		})
	}
}

func TestAskingTooLateOrNobody(t *testing.T) {
	assert.False(t, Ask(t.Context(), "n1"))
	ctx, answer := ContextWithAnswer(t.Context())
	assert.Empty(t, answer.Header())
	assert.False(t, Ask(ctx, "n1"))
	assert.Empty(t, answer.Header(), "the answer has left")
}

func TestEverythingIsAllThatThePushCouldHold(t *testing.T) {
	requests, err := Parse([]string{"?1"}, "c", "")
	require.NoError(t, err)
	assert.Equal(t, []Request{{}}, requests)
	requests, err = Parse([]string{"?1"}, "c", "n")
	require.NoError(t, err)
	assert.Equal(t, []Request{{Cluster: "c", Node: "n"}}, requests)
}

func TestParseKeepsWhatIsValid(t *testing.T) {
	for header, want := range map[string]struct {
		nodes []string
		err   string
	}{
		`?0`:                                     {nil, ""},
		`"n1", 5, "n2"`:                          {[]string{"n1", "n2"}, "neither"},
		`"", "n1"`:                               {[]string{"n1"}, "0 bytes"},
		`"` + strings.Repeat("x", 254) + `"`:     {nil, "254 bytes"},
		`("n1" "n2")`:                            {nil, "neither"},
		`"open`:                                  {nil, "structured-field"},
		strings.Repeat(`"n",`, MaxNodes) + `"n"`: {nil, "129 nodes"},
		strings.Repeat("x", 9000):                {nil, "9000 bytes"},
	} {
		requests, err := Parse([]string{header}, "c", "n")
		var nodes []string
		for _, r := range requests {
			nodes = append(nodes, r.Node)
		}
		assert.Equal(t, want.nodes, nodes, header)
		if want.err == "" {
			assert.NoError(t, err, header)
		} else {
			assert.ErrorContains(t, err, want.err, header)
		}
	}
}

func TestValidEpoch(t *testing.T) {
	for epoch, want := range map[string]bool{
		"": false, "x": true, strings.Repeat("x", MaxEpochLength): true, strings.Repeat("x", MaxEpochLength+1): false, "é": false, "a\nb": false,
	} {
		assert.Equal(t, want, ValidEpoch(epoch), "%q", epoch)
	}
}

// FuzzParse: whatever a next hop answers, the requests are few and their names
// valid.
func FuzzParse(f *testing.F) {
	for _, s := range []string{`?1`, `"n1", "n2"`, `"n";a=1`, `("a")`, `%"x`, `:aGk=:`, "@1"} {
		f.Add(s, "n")
	}
	f.Fuzz(func(t *testing.T, header, node string) {
		requests, _ := Parse([]string{header}, "c", node)
		require.LessOrEqual(t, len(requests), MaxNodes)
		for _, r := range requests {
			if r.Node == node || r == (Request{}) {
				continue
			}
			ctx, answer := ContextWithAnswer(t.Context())
			require.True(t, Ask(ctx, r.Node))
			require.NotEmpty(t, answer.Header())
		}
	})
}
