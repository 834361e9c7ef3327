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

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

var update = flag.Bool("update", false, "write the tables of docs/reasons.md")

const docsFile = "../../../docs/reasons.md"

func reasonTable() string {
	var b strings.Builder
	b.WriteString("| Reason | When | Evidence | Action: what to do | Source |\n|---|---|---|---|---|\n")
	for _, r := range contrasts {
		var evidence []string
		for _, t := range r.tests {
			evidence = append(evidence, "**`"+t.fact.name+"`**")
		}
		for _, f := range r.evidence {
			if slices.ContainsFunc(r.tests, func(t test) bool { return t.fact == f }) {
				continue // listed whether it decides or not
			}
			evidence = append(evidence, "`"+f.name+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s`: %s | %s |\n",
			r.reason, r.when, strings.Join(evidence, ", "), r.action, r.action.Advice(), r.source)
	}
	fmt.Fprintf(&b, "| `%s` | none of these | | `%s`: %s | |\n", Unexplained, gpuhealth.ActionBurnIn, gpuhealth.ActionBurnIn.Advice())
	return b.String()
}

func factList() string {
	var b strings.Builder
	of := map[scope]string{ofLink: ", of an adapter", ofNode: ", of the node"}
	for _, f := range facts {
		fmt.Fprintf(&b, "- `%s` (`%s`): %s%s\n", f.name, f.unit, f.what, of[f.scope])
	}
	return b.String()
}

func actionList() string {
	var b strings.Builder
	for _, a := range slices.Concat(gpuhealth.Actions, gpuhealth.NodeActions) {
		fmt.Fprintf(&b, "- `%s`: %s\n", a, a.Advice())
	}
	return b.String()
}

// The tables of the documentation are the rules. `go test -run TestDocs -update
// ./internal/verdict/reason` writes them.
func TestDocsTables(t *testing.T) {
	text, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	want := string(text)
	for name, table := range map[string]string{"reasons": reasonTable(), "facts": factList(), "actions": actionList()} {
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
	assert.Equal(t, want, string(text), "run: go test ./internal/verdict/reason -run TestDocs -update")
}
