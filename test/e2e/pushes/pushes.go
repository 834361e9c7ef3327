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

	last map[string]time.Time
}

// See takes the time of a node's last report.
func (c *Count) See(node string, report time.Time) {
	if c.last == nil {
		c.last, c.Missed = map[string]time.Time{}, map[string]int{}
	}
	if before, ok := c.last[node]; ok {
		c.Missed[node] = max(c.Missed[node], int((report.Sub(before)+resolution)/c.Interval)-1)
	}
	c.last[node] = report
}

// Forget takes note that the view does not have the node: its next report follows no other.
func (c *Count) Forget(node string) { delete(c.last, node) }
