// SPDX-License-Identifier: Apache-2.0

package reason

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// Tables returns the rules, the facts and the actions as docs/reasons.md has them.
func Tables() map[string]string {
	return map[string]string{"reasons": reasonTable(), "facts": factList(), "actions": actionList()}
}

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
