// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import "time"

// A clock that is off by clockOff is wrong, far more than a report takes on its way. Reports
// may have waited for the network, so it takes clockReports of them within clockTime or more.
const (
	clockOff     = 30 * time.Second
	clockReports = 3
	clockTime    = 10 * time.Second
)

// Clock is a node's clock that is found to be wrong.
type Clock struct {
	Cluster, Node string
	Behind        time.Duration // the least of some reports, negative for a clock that is ahead
	Right         bool          // it is right again; Behind is how it was
}

// clock is how a node's clock is found to be wrong.
type clock struct {
	behind  time.Duration // the least of the reports that were off
	since   time.Duration // the first of them
	reports uint8         // so many, up to clockReports
	told    bool
}

// hear takes by how much a report's newest time was before its receipt. It reports whether
// there is news to tell: the clock is wrong, or is right again.
func (c *clock) hear(behind, now time.Duration) bool {
	off := clockOff
	if c.told {
		off /= 2 // a clock that is off by about that much is told once
	}
	if behind.Abs() <= off {
		told := c.told
		c.reports, c.told = 0, false
		return told
	}
	if c.told {
		return false
	}
	if c.reports == 0 || (behind < 0) != (c.behind < 0) {
		c.behind, c.since, c.reports = behind, now, 0
	}
	if behind.Abs() < c.behind.Abs() {
		c.behind = behind
	}
	c.reports = min(c.reports+1, clockReports)
	c.told = c.reports == clockReports && now-c.since >= clockTime
	return c.told
}

func (r *Report) tellClock(n *node) {
	names := Identify(n.names.attributes(n.attrs))
	if names.Node() != "" && r.table.set.OnClock != nil {
		r.clock = &Clock{Cluster: names.Cluster("", ""), Node: names.Node(), Behind: n.clock.behind, Right: !n.clock.told}
	}
}
