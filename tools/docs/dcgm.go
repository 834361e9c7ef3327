// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/dcgmnames"
)

// dcgmTable has the names of dcgm-exporter beside ours. It is dense: each space makes a word.
func dcgmTable() string {
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
