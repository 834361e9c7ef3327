// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Target is who has a fault: one node, by its number, or a share of all.
type Target struct {
	Node int
	// Share in (0, 1] is in place of Node.
	Share float64
}

// Validate returns what is wrong with a Target among so many nodes, or, with 0
// nodes, whatever their number.
func (t Target) Validate(nodes int) error {
	switch {
	case t.Share != 0 && !(t.Share > 0 && t.Share <= 1):
		return fmt.Errorf("share is %v %%, must be more than 0 %% and at most 100 %%", 100*t.Share)
	case t.Share != 0 && t.Node != 0:
		return fmt.Errorf("node is %d and share %v %%, must be one of the two", t.Node, 100*t.Share)
	case t.Node < 0 || nodes > 0 && t.Node >= nodes:
		return fmt.Errorf("node is %d, must be one of the %d nodes, which count from 0", t.Node, nodes)
	}
	return nil
}

// Nodes returns the numbers of the nodes among so many. A share is at least one
// node and spread evenly, so that each job, whose nodes are neighbours, has its
// part of it.
func (t Target) Nodes(nodes int) []int {
	if t.Share == 0 {
		return []int{t.Node}
	}
	hit := make([]int, max(1, int(t.Share*float64(nodes)+0.5)))
	for i := range hit {
		hit[i] = i * nodes / len(hit)
	}
	return hit
}

// ParseFault reads `kind:node[:gpu][@from[-until]][=severity]`, as in
// thermal_throttle:12:3@5m-10m=0.8, where nodes and GPUs count from 0 and times
// from the start. A share of the nodes, as in slow_node:30%, may be in place of
// the node. Without a GPU the fault is one of all of them.
func ParseFault(text string) (on Target, f Fault, err error) {
	rest, severity, hasSeverity := strings.Cut(text, "=")
	where, when, hasTime := strings.Cut(rest, "@")
	parts := strings.Split(where, ":")
	bad := func(format string, args ...any) error {
		return fmt.Errorf("fault %q: %w", text, fmt.Errorf(format, args...))
	}
	if len(parts) < 2 || len(parts) > 3 {
		return Target{}, Fault{}, bad("must be `kind:node[:gpu][@from[-until]][=severity]`, where node may be a share as in 30%%")
	}
	f = Fault{Kind: Kind(parts[0]), GPU: AllGPUs}
	if on, err = target(parts[1]); err != nil {
		return Target{}, Fault{}, bad("%w", err)
	}
	if len(parts) == 3 {
		if f.GPU, err = index(parts[2]); err != nil {
			return Target{}, Fault{}, bad("gpu %w", err)
		}
	}
	if hasTime {
		from, until, ends := strings.Cut(when, "-")
		if f.From, err = duration(from); err != nil {
			return Target{}, Fault{}, bad("begin %w", err)
		}
		if ends {
			if f.Until, err = duration(until); err != nil {
				return Target{}, Fault{}, bad("end %w", err)
			}
			if f.Until == 0 {
				return Target{}, Fault{}, bad("end is 0, must be after the begin, or left out for a fault that lasts")
			}
		}
	}
	if hasSeverity {
		if f.Severity, err = strconv.ParseFloat(severity, 64); err != nil {
			return Target{}, Fault{}, bad("severity is %q, must be a number", severity)
		}
		if f.Severity == 0 {
			return Target{}, Fault{}, bad("severity is 0, must be more, or left out for the kind's default")
		}
	}
	if err := f.Validate(0); err != nil {
		return Target{}, Fault{}, bad("%w", err)
	}
	return on, f, nil
}

func target(text string) (Target, error) {
	percent, isShare := strings.CutSuffix(text, "%")
	if !isShare {
		n, err := index(text)
		if err != nil {
			return Target{}, fmt.Errorf("node %w, or a share as in 30%%", err)
		}
		return Target{Node: n}, nil
	}
	share, err := strconv.ParseFloat(percent, 64)
	if share /= 100; err != nil || !(share > 0 && share <= 1) {
		return Target{}, fmt.Errorf("share is %q, must be a number above 0%% and up to 100%%", text)
	}
	return Target{Share: share}, nil
}

func index(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("is %q, must be a number from 0", text)
	}
	return int(n), nil
}

func duration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("is %q, must be a time as in 5m", text)
	}
	return d, nil
}
