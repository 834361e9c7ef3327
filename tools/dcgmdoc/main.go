// SPDX-License-Identifier: Apache-2.0

// Command dcgmdoc writes the tables of docs/coming-from-dcgm.md from the names' table and
// the catalogue of metrics.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/dcgmnames"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

func main() {
	old, err := os.ReadFile(os.Args[1])
	if err == nil {
		var text string
		if text, err = document(string(old)); err == nil {
			err = os.WriteFile(os.Args[1], []byte(text), 0o644)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// document is the page with its tables written anew.
func document(page string) (string, error) {
	for name, standard := range map[string]bool{"default names": true, "other names": false} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		i, j := strings.Index(page, begin), strings.Index(page, end)
		if i < 0 || j < i {
			return "", fmt.Errorf("the page has no part between %q and %q", begin, end)
		}
		rows, err := table(standard)
		if err != nil {
			return "", err
		}
		page = page[:i+len(begin)] + rows + page[j:]
	}
	return page, nil
}

func table(standard bool) (string, error) {
	var out strings.Builder
	out.WriteString("| dcgm-exporter | Unit there | Here | Unit here | × | Note |\n|---|---|---|---|---|---|\n")
	for i := range dcgmnames.All {
		n := &dcgmnames.All[i]
		if n.Default != standard {
			continue
		}
		if n.Metric == "" {
			fmt.Fprintf(&out, "| `%s` | | none | | | %s |\n", n.DCGM, n.Note)
			continue
		}
		m := reading.ByName(n.Metric)
		if m == nil {
			return "", fmt.Errorf("%s is %s, which the catalogue does not have", n.DCGM, n.Metric)
		}
		here := "`" + n.Metric + "`"
		var labels strings.Builder
		for _, a := range n.Attributes {
			labels.WriteString(" `" + a.Key + "=" + a.Value + "`")
		}
		here += labels.String()
		if n.Use == dcgmnames.UseRate {
			here = "rate of " + here
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | `%s` | %s | %s |\n", n.DCGM, n.Unit, here, m.Unit, factor(n), n.Note)
	}
	return out.String(), nil
}

func factor(n *dcgmnames.Name) string {
	if n.Factor < 1 {
		return "1/" + strconv.FormatFloat(1/n.Factor, 'f', -1, 64)
	}
	return strconv.FormatFloat(n.Factor, 'g', -1, 64)
}
