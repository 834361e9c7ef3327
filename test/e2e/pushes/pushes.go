// SPDX-License-Identifier: Apache-2.0

// Package pushes counts the pushes that a fleet view missed. It counts by the times
// that the nodes gave their reports: a slow machine shows a report late, and does not
// change its time.
package pushes // import "github.com/gpu-collector/gpu-collector/test/e2e/pushes"

import "time"

// resolution is that of a heartbeat, which has whole seconds.
const resolution = time.Second

// Count counts for nodes that push once in Interval.
type Count struct {
	Interval time.Duration
	// Missed is the most that a node missed in a row.
	Missed map[string]int

	last, lost map[string]time.Time
}

// See takes the time of a node's last report.
func (c *Count) See(node string, report time.Time) {
	if c.last == nil {
		c.last, c.Missed = map[string]time.Time{}, map[string]int{}
	}
	if at, ok := c.lost[node]; ok {
		c.Missed[node] = max(c.Missed[node], int(report.Sub(at)/c.Interval))
		delete(c.lost, node)
	}
	if before, ok := c.last[node]; ok {
		c.Missed[node] = max(c.Missed[node], int((report.Sub(before)+resolution)/c.Interval)-1)
	}
	c.last[node] = report
}

// Forget takes note that reports may have come and gone: the node's next one follows no other.
func (c *Count) Forget(node string) { delete(c.last, node) }

// Lose takes note that the view answers, since at, and does not have the node: the
// node has missed each push after that and before its next report.
func (c *Count) Lose(node string, at time.Time) {
	if c.lost == nil {
		c.lost = map[string]time.Time{}
	}
	c.Forget(node)
	if _, ok := c.lost[node]; !ok {
		c.lost[node] = at
	}
}
