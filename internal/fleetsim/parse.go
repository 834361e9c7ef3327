// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseFault reads `kind:node[:gpu][@from[-until]][=severity]`, as in
// thermal_throttle:12:3@5m-10m=0.8, where nodes and GPUs count from 0 and times
// from the start. Without a GPU the fault is one of all of them.
func ParseFault(text string) (node int, f Fault, err error) {
	rest, severity, hasSeverity := strings.Cut(text, "=")
	where, when, hasTime := strings.Cut(rest, "@")
	parts := strings.Split(where, ":")
	bad := func(format string, args ...any) error {
		return fmt.Errorf("fault %q: %w", text, fmt.Errorf(format, args...))
	}
	if len(parts) < 2 || len(parts) > 3 {
		return 0, Fault{}, bad("must be `kind:node[:gpu][@from[-until]][=severity]`")
	}
	f = Fault{Kind: Kind(parts[0]), GPU: AllGPUs}
	if node, err = index(parts[1]); err != nil {
		return 0, Fault{}, bad("node %w", err)
	}
	if len(parts) == 3 {
		if f.GPU, err = index(parts[2]); err != nil {
			return 0, Fault{}, bad("gpu %w", err)
		}
	}
	if hasTime {
		from, until, ends := strings.Cut(when, "-")
		if f.From, err = duration(from); err != nil {
			return 0, Fault{}, bad("begin %w", err)
		}
		if ends {
			if f.Until, err = duration(until); err != nil {
				return 0, Fault{}, bad("end %w", err)
			}
			if f.Until == 0 {
				return 0, Fault{}, bad("end is 0, must be after the begin, or left out for a fault that lasts")
			}
		}
	}
	if hasSeverity {
		if f.Severity, err = strconv.ParseFloat(severity, 64); err != nil {
			return 0, Fault{}, bad("severity is %q, must be a number", severity)
		}
		if f.Severity == 0 {
			return 0, Fault{}, bad("severity is 0, must be more, or left out for the kind's default")
		}
	}
	if err := f.Validate(0); err != nil {
		return 0, Fault{}, bad("%w", err)
	}
	return node, f, nil
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
