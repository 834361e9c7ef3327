// SPDX-License-Identifier: Apache-2.0

package memorybudget

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPartsAreNoMoreThanTheWhole(t *testing.T) {
	for tier, d := range map[string]Division{
		"agent":                    {Parts: []Part{Pushes}},
		"shard":                    {Parts: []Part{Pushes, Table, Pending}},
		"gateway":                  {Parts: []Part{Pushes, Table, History, Views, Comparison}},
		"gateway that pushes":      {Parts: []Part{Pushes, Table, History, Views, Comparison, Table, Pending}},
		"gateway with a large key": {Parts: []Part{Pushes, Table, History, Views}, Fixed: 300 << 20},
	} {
		for _, limit := range []int64{320 << 20, 400 << 20, 1638 << 20, 64 << 30} {
			d.Limit = limit
			sum := d.Fixed
			for _, p := range d.Parts {
				sum += d.Of(p)
				assert.LessOrEqual(t, d.Of(p), p.Of(limit), tier)
				assert.Greater(t, d.Of(p), int64(1<<20), tier)
			}
			assert.LessOrEqual(t, sum, limit, tier)
			if len(d.Parts) > 1 {
				assert.Greater(t, sum, limit/10*9, tier)
			}
		}
	}
}

func TestDivide(t *testing.T) {
	t.Cleanup(func() { current.Store(nil) })
	Divide(Division{Limit: 800 << 20, Parts: []Part{Pushes, Table}})
	assert.EqualValues(t, 400<<20, Pushes.Bytes())
	assert.EqualValues(t, 200<<20, Table.Bytes(), "what nobody claims goes to nobody")
	Divide(Division{Limit: 800 << 20, Fixed: 400 << 20, Parts: []Part{Pushes, Table, Pending}})
	assert.EqualValues(t, 200<<20, Pushes.Bytes(), "half of the rest")
	Divide(Division{Limit: 1 << 20, Fixed: 400 << 20, Parts: []Part{Pushes}})
	assert.EqualValues(t, 1<<20, Pushes.Bytes(), "enough to work at all")
}

func TestCheck(t *testing.T) {
	t.Cleanup(func() { current.Store(nil) })
	Divide(Division{Limit: 800, Fixed: 900, Known: true})
	require.EqualError(t, Table.Check(900), "900 bytes are more than the 800 that the process may take: "+
		"the least of what `memory_limiter` allows, GOMEMLIMIT and 80 % of its cgroup; set less, or 0 for 25 % of that")
	require.ErrorContains(t, Table.Check(500), "500 bytes make 900 with those of other keys, more than the 800 that the process may take")
	require.NoError(t, Table.Check(0))
	Divide(Division{Limit: 800, Fixed: 800, Known: true})
	require.NoError(t, Table.Check(800))
	Divide(Division{Limit: 800, Fixed: 1000})
	require.NoError(t, Table.Check(1000), "nobody has set the limit")
}

func TestLimit(t *testing.T) {
	const none, gib = math.MaxInt64, 1 << 30
	for name, tt := range map[string]struct{ allowed, goLimit, memory, want int64 }{
		"nobody has set one":        {0, none, 0, 2 * gib},
		"GOMEMLIMIT":                {0, 800, 0, 800},
		"the cgroup":                {0, none, gib, gib / 100 * 80},
		"the configuration":         {320, none, 0, 320},
		"the configuration is less": {320, 800, gib, 320},
		"GOMEMLIMIT is less":        {1200, 800, gib, 800},
		"the cgroup is less":        {8 * gib, 4 * gib, gib, gib / 100 * 80},
	} {
		got, known := limit(tt.allowed, tt.goLimit, tt.memory)
		assert.Equal(t, tt.want, got, name)
		assert.Equal(t, tt.want != withoutLimit, known, name)
	}
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
