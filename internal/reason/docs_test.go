// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the tables of docs/reasons.md")

const docsFile = "../../docs/reasons.md"

func reasonTable() string {
	var b strings.Builder
	b.WriteString("| Reason | When | Evidence | Action: what to do | Source |\n|---|---|---|---|---|\n")
	for _, r := range rules {
		var evidence []string
		for _, t := range r.Tests {
			evidence = append(evidence, "**`"+t.Fact.String()+"`**")
		}
		for _, f := range r.Evidence {
			if slices.ContainsFunc(r.Tests, func(t Test) bool { return t.Fact == f }) {
				continue // listed whether it decides or not
			}
			evidence = append(evidence, "`"+f.String()+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s`: %s | %s |\n",
			r.Reason, r.When, strings.Join(evidence, ", "), r.Action, r.Advice, r.Source)
	}
	fmt.Fprintf(&b, "| `%s` | none of these | | `%s`: %s | |\n", Unexplained, ActionBurnIn, unexplainedAdvice)
	return b.String()
}

func factList() string {
	var b strings.Builder
	of := map[scope]string{ofAdapter: ", of an adapter", ofNode: ", of the node"}
	for f := range NumFacts {
		fmt.Fprintf(&b, "- `%s` (`%s`): %s%s\n", f, f.Unit(), facts[f].what, of[facts[f].scope])
	}
	return b.String()
}

// The tables of the documentation are the rules. `go test -run TestDocs -update
// ./internal/reason` writes them.
func TestDocsTables(t *testing.T) {
	text, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	want := string(text)
	for name, table := range map[string]string{"reasons": reasonTable(), "facts": factList()} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		head, rest, ok := strings.Cut(want, begin)
		require.True(t, ok, begin)
		_, tail, ok := strings.Cut(rest, end)
		require.True(t, ok, end)
		want = head + begin + table + end + tail
	}
	if *update {
		require.NoError(t, os.WriteFile(docsFile, []byte(want), 0o600))
	}
	assert.Equal(t, want, string(text), "run: go test ./internal/reason -run TestDocs -update")
}
