// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"math"
	"runtime/debug"
	"strconv"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

func TestLimit(t *testing.T) {
	const none, gib = math.MaxInt64, 1 << 30
	for name, tt := range map[string]struct{ goLimit, cgroup, want int64 }{
		"without a limit":    {none, 0, 2 * gib},
		"GOMEMLIMIT":         {800, 0, 800},
		"the cgroup":         {none, gib, gib / 100 * 80},
		"GOMEMLIMIT is less": {800, gib, 800},
		"the cgroup is less": {4 * gib, gib, gib / 100 * 80},
	} {
		root := fstest.MapFS{}
		if tt.cgroup > 0 {
			root["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("0::/\n")}
			root["sys/fs/cgroup/memory.max"] = &fstest.MapFile{Data: []byte(strconv.FormatInt(tt.cgroup, 10))}
		}
		got, known := limit(tt.goLimit, root)
		assert.Equal(t, tt.want, got, name)
		assert.Equal(t, tt.want != withoutLimit, known, name)
	}
}

func TestPercent(t *testing.T) {
	before := debug.SetMemoryLimit(100 << 20)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	assert.EqualValues(t, 25<<20, Percent(25))
	debug.SetMemoryLimit(1 << 20)
	assert.EqualValues(t, 1<<20, Percent(25), "enough to work at all")
}

func TestCgroupMemory(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, tt := range map[string]struct {
		files fstest.MapFS
		want  int64
	}{
		"none": {fstest.MapFS{}, 0},
		"version 2, in a container": {fstest.MapFS{
			"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("2147483648\n"),
		}, 2 << 30},
		"version 2, a unit within a slice": {fstest.MapFS{
			"proc/self/cgroup": file("0::/system.slice/gateway.service\n"),
			"sys/fs/cgroup/system.slice/gateway.service/memory.max": file("1073741824\n"), "sys/fs/cgroup/system.slice/memory.max": file("max\n"),
		}, 1 << 30},
		"version 2, the slice has less": {fstest.MapFS{
			"proc/self/cgroup": file("0::/system.slice/gateway.service\n"),
			"sys/fs/cgroup/system.slice/gateway.service/memory.max": file("max\n"), "sys/fs/cgroup/system.slice/memory.max": file("1048576\n"),
		}, 1 << 20},
		"version 2, no limit": {fstest.MapFS{"proc/self/cgroup": file("0::/\n"), "sys/fs/cgroup/memory.max": file("max\n")}, 0},
		"version 1": {fstest.MapFS{
			"proc/self/cgroup": file("5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n"), "sys/fs/cgroup/memory/a/memory.limit_in_bytes": file("209715200\n"),
			"sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 200 << 20},
		"version 1, a path of the host": {fstest.MapFS{
			"proc/self/cgroup": file("4:memory:/docker/1234\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("209715200\n"),
		}, 200 << 20},
		"version 1, no limit": {fstest.MapFS{
			"proc/self/cgroup": file("4:memory:/\n"), "sys/fs/cgroup/memory/memory.limit_in_bytes": file("9223372036854771712\n"),
		}, 0},
		"garbage": {fstest.MapFS{"proc/self/cgroup": file("x\n0::/../..\n"), "sys/fs/cgroup/memory.max": file("-1\n")}, 0},
	} {
		got, ok := cgroupMemory(tt.files)
		assert.Equal(t, tt.want, got, name)
		assert.Equal(t, tt.want > 0, ok, name)
	}
}
