// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// unlimited is what a cgroup of version 1 reports without a limit, less its page size.
const unlimited = math.MaxInt64 - 1<<20

// cgroupMemory is the least limit of the process' memory cgroup and of those above it,
// in cgroups of both versions (cgroups(7)). memory_limiter reads the uppermost one
// alone, and misses a systemd unit's MemoryMax=.
func cgroupMemory(root fs.FS) (int64, bool) {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	least := int64(unlimited)
	for line := range strings.Lines(string(text)) {
		// hierarchy:controllers:path; version 2 has no controllers.
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if f[1] != "" {
			if !slices.Contains(strings.Split(f[1], ","), "memory") {
				continue
			}
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// In a container the path may be one of the host, which is not there: its own
		// cgroup is the mount.
		for at := path.Clean("/" + f[2]); ; at = path.Dir(at) {
			if text, err := fs.ReadFile(root, path.Join(mount, at, file)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
					least = min(least, n)
				}
			}
			if at == "/" {
				break
			}
		}
	}
	if least >= unlimited {
		return 0, false
	}
	return least, true
}
