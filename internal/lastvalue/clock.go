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
	behind   time.Duration // the least of the reports that were off
	since    time.Duration // the first of them
	reports  uint8         // so many, up to clockReports
	reported bool
}

// observe takes by how much a report's newest time was before its receipt. It reports whether
// the clock was found to be wrong, or right again, just now.
func (c *clock) observe(behind, now time.Duration) bool {
	off := clockOff
	if c.reported {
		off /= 2 // a clock that is off by about that much is reported once
	}
	if behind.Abs() <= off {
		reported := c.reported
		c.reports, c.reported = 0, false
		return reported
	}
	if c.reported {
		return false
	}
	if c.reports == 0 || (behind < 0) != (c.behind < 0) {
		c.behind, c.since, c.reports = behind, now, 0
	}
	if behind.Abs() < c.behind.Abs() {
		c.behind = behind
	}
	c.reports = min(c.reports+1, clockReports)
	c.reported = c.reports == clockReports && now-c.since >= clockTime
	return c.reported
}

func (r *Report) reportClock(n *node) {
	names := Identify(n.names.attributes(n.attrs))
	if names.Node() != "" && r.table.set.OnClock != nil {
		r.clock = &Clock{Cluster: names.Cluster("", ""), Node: names.Node(), Behind: n.clock.behind, Right: !n.clock.reported}
	}
}
