// SPDX-License-Identifier: Apache-2.0

// Command dcgmdoc writes the table of docs/coming-from-dcgm-exporter.md from the mapping of
// the names and the catalogue of metrics.
//
//	go run ./tools/dcgmdoc docs/coming-from-dcgm-exporter.md
package main

import (
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/dcgmnames"
)

const begin, end = "<!-- begin names -->\n", "<!-- end names -->"

func main() {
	log.SetFlags(0)
	page, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, ends := strings.Cut(rest, end)
	if !found || !ends {
		log.Fatalf("%s has no part between %q and %q", os.Args[1], begin, end)
	}
	if err := os.WriteFile(os.Args[1], []byte(before+begin+table()+end+after), 0o600); err != nil {
		log.Fatal(err)
	}
}

// table is dense: each of its spaces makes a word.
func table() string {
	var out strings.Builder
	out.WriteString("|dcgm-exporter|Unit|Here|×|Note|\n|-|-|-|-|-|\n")
	for i := range dcgmnames.All {
		n := &dcgmnames.All[i]
		name := "`" + n.DCGM + "`"
		if n.Default {
			name = "**" + name + "**"
		}
		if n.Metric == "" {
			fmt.Fprintf(&out, "|%s||none||%s|\n", name, n.Note)
			continue
		}
		var points []string
		for _, a := range n.Attributes {
			points = append(points, a.Key+"="+a.Value)
		}
		here := "`" + n.Metric + "`"
		if len(points) > 0 {
			here = "`" + n.Metric + "{" + strings.Join(points, ",") + "}`"
		}
		if len(n.Less) > 0 {
			here += "-`" + strings.Join(n.Less, "`-`") + "`"
		}
		fmt.Fprintf(&out, "|%s|%s|%s|%s|%s|\n", name, n.Unit, here, factor(n.Factor), n.Note)
	}
	return out.String()
}

func factor(f float64) string {
	if f < 1 {
		return "1/" + strconv.FormatFloat(1/f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'g', -1, 64)
}
