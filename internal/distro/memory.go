// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
)

// limitMemory has Go collect garbage by the number that our components go by, unless
// GOMEMLIMIT is set: memory_limiter counts garbage, and would refuse pushes to a process
// that is well.
func limitMemory() {
	if limit, known := memorybudget.Limit(); known && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(limit)
	}
}

// memoryWarning tells where components may fill more memory than there is.
func memoryWarning(used []usedComponent, to io.Writer) {
	var sum int64
	var parts []string
	for _, c := range used {
		if holder, ok := c.config.(memorybudget.Holder); ok {
			parts, sum = append(parts, fmt.Sprintf("%s %d", c.id, holder.MemoryBytes()>>20)), sum+holder.MemoryBytes()
		}
	}
	if limit := memorybudget.Percent(100); sum > limit {
		slices.Sort(parts)
		_, _ = fmt.Fprintf(to, "warning: clients may fill %d MiB of memory, %d %% of the %d MiB that the process may take "+
			"(the least of GOMEMLIMIT and 80 %% of its cgroup, or 2 GiB): %s; set less in `max_bytes`, or give it more\n",
			sum>>20, sum*100/limit, limit>>20, strings.Join(parts, ", "))
	}
}
