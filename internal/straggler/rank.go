// SPDX-License-Identifier: Apache-2.0

package straggler

// ranking keeps the most suspicious rows of report.Nodes, worst first.
type ranking struct {
	rows []int
	most int
}

// worse orders by suspicion, then by loss; of two alike the first by name is first.
func worse(a, b *NodeReport) bool {
	if a.Suspicion != b.Suspicion {
		return a.Suspicion > b.Suspicion
	}
	return a.Gap > b.Gap
}

// offer takes a row into the list if it belongs there.
func (r *ranking) offer(nodes []NodeReport, row int) {
	at := len(r.rows)
	if at == r.most {
		if !worse(&nodes[row], &nodes[r.rows[at-1]]) {
			return
		}
		at--
	} else {
		r.rows = append(r.rows, 0)
	}
	for ; at > 0 && worse(&nodes[row], &nodes[r.rows[at-1]]); at-- {
		r.rows[at] = r.rows[at-1]
	}
	r.rows[at] = row
}

// list appends the ranks to the report.
func (r *ranking) list(report *Report) {
	for k, row := range r.rows {
		report.Ranks = append(report.Ranks, Rank{Rank: k + 1, NodeReport: report.Nodes[row]})
	}
	r.rows = r.rows[:0]
}
