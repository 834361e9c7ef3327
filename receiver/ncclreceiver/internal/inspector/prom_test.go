// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func dump(t testing.TB, name string) []byte {
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	return text
}

// saidOf is a kind in one line.
func saidOf(all []Kind) (said []string) {
	for _, k := range all {
		said = append(said, fmt.Sprintf("%s|%s %s %d/%d/%d %d B each %s %v GB/s, %d in %s",
			k.Communicator, k.Name, k.Operation, k.Rank, k.Ranks, k.Nodes, k.Bytes, k.Each, k.BusBandwidth, k.Operations, k.Time))
	}
	return said
}

// The files hold the labels and families of each release's own writer.
func TestParseDump(t *testing.T) {
	for name, want := range map[string][]string{
		"2.29.prom": {
			"0x5d1c77a0b3e9f204| AllReduce 4/8/1 2147483648 B each 12.5ms 310.25 GB/s, 0 in 0s",
			"0x77aa| ReduceScatter 1/64/8 524 B each 40µs 3.5 GB/s, 0 in 0s",
		},
		"2.30.prom": {
			"|dp:17 AllReduce 0/64/8 33554432 B each 11.874ms 178.02 GB/s, 0 in 0s",
			"|pp Send 0/2/2 4194304 B each 900µs 42 GB/s, 0 in 0s",
			"|tp:3 AllGather 0/8/1 8192 B each 25.5µs 12.25 GB/s, 0 in 0s",
			"|tp:3 AllGather 0/8/1 8192 B each 30µs 10.5 GB/s, 0 in 0s",
		},
		"counts.prom": {
			"0xa|tp AllReduce 3/8/1 33554000 B each 2ms 100 GB/s, 500 in 1s",
			"0xb|pp Recv 0/2/2 1048576 B each 1ms 5 GB/s, 20 in 20ms",
			"0xb|pp Recv 0/2/2 1048576 B each 3ms 4 GB/s, 10 in 30ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, bad := ParseDump(dump(t, name))
			assert.Zero(t, bad)
			assert.ElementsMatch(t, want, saidOf(all))
		})
	}
}

func TestParseBadDumps(t *testing.T) {
	const line = `nccl_collective_exec_time_microseconds{comm_name="tp",nranks="8",n_nodes="1",collective="AllReduce",message_size="1-2MB"} `
	for name, tt := range map[string]struct {
		text string
		want int
		bad  int
	}{
		"nothing":                      {"", 0, 0},
		"half a line":                  {line + "5\n" + line[:50], 1, 0},
		"not one whole line":           {line + "5", 0, 0},
		"another program's":            {"node_load1 3\n", 0, 0},
		"garbage":                      {"\x00\xff{{{\n" + line + "5\n", 1, 1},
		"a page":                       {"<html>\n", 0, 1},
		"NULs before":                  {strings.Repeat("\x00", 100) + line + "5\n", 1, 0},
		"not a number":                 {line + "NaN\n", 0, 0},
		"negative":                     {line + "-5\n", 0, 0},
		"without end":                  {line + "+Inf\n", 1, 0},
		"more than anything lasts":     {line + "1e300\n", 1, 0},
		"the time is not there":        {strings.Replace(line, "collective_exec_time_microseconds", "bus_bandwidth_gbs", 1) + "5\n", 0, 0},
		"no ranks":                     {strings.Replace(line, `nranks="8"`, `nranks="x"`, 1) + "5\n", 0, 0},
		"a size that nobody has heard": {strings.Replace(line, "1-2MB", "huge", 1) + "5\n", 1, 0},
		"no name":                      {"# HELP x y\n{}\n", 0, 1},
		"no label":                     {"nccl_bus_bandwidth_gbs{=\"a\"} 1\n", 0, 1},
		"no value of a label":          {"nccl_bus_bandwidth_gbs{a=} 1\n", 0, 1},
		"a label without end":          {"nccl_bus_bandwidth_gbs{a=\"} 1\n", 0, 1},
		"labels without end":           {"nccl_bus_bandwidth_gbs{a=\"b\"\n", 0, 1},
		"no number":                    {line + "five\n", 0, 1},
		"a quote in the name":          {strings.Replace(line, `"tp"`, `"t\"p"`, 1) + "5\n", 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			all, bad := ParseDump([]byte(tt.text))
			assert.Len(t, all, tt.want)
			assert.Equal(t, tt.bad, bad)
		})
	}
}

func TestSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0B": 0, "512B": 512, "1-2B": 1, "8-9KB": 8 << 10, "2.00GB": 2 << 30, "1.50KB": 1536, "32-33MB": 32 << 20,
		"": 0, "MB": 0, "1-2XB": 0, "99999999999TB": 0, "-1MB": 0,
	} {
		assert.Equal(t, want, size(text), text)
	}
}

// Means say nothing of a share; with counts it is exact.
func TestDump(t *testing.T) {
	at := time.Unix(1000, 0)
	for name, share := range map[string]float64{"2.29.prom": 0, "2.30.prom": 0, "counts.prom": (1 + 0.05) / 30} {
		p := NewProcess()
		kinds, _ := ParseDump(dump(t, name))
		p.Dump(kinds, at)
		_, known := p.Take()
		assert.False(t, known, "since when?")
		p.Renew()
		p.Dump(kinds, at.Add(30*time.Second))
		got, known := p.Take()
		assert.Equal(t, share > 0, known, name)
		assert.InDelta(t, share, got, 1e-9, name)
		assert.Equal(t, 30*time.Second, p.Longest)
		for id, c := range p.Communicators {
			assert.Equal(t, name == "2.30.prom", c.Unidentified)
			assert.Equal(t, at.Add(30*time.Second).UTC(), c.Progress)
			_, _, main := p.Main(id)
			assert.False(t, main, "a mean is not the links' own")
		}
		for _, s := range p.Sums {
			assert.Positive(t, s.Each)
			assert.Positive(t, s.Bandwidth)
		}
	}
	p := NewProcess()
	kinds, _ := ParseDump(dump(t, "2.30.prom"))
	p.Dump(kinds, at)
	s := p.Sums[Key{"tp:3 8/1", "AllGather", 8192}]
	assert.Equal(t, 27750*time.Nanosecond, s.Each, "of two algorithms")
	assert.Zero(t, s.Operations)
	for i := range 2 * MaxCommunicators {
		p.Dump([]Kind{{Name: strconv.Itoa(i), Operation: "Send", Ranks: 2, Each: 1}}, at)
	}
	assert.Len(t, p.Communicators, MaxCommunicators)
	assert.Positive(t, p.Dropped)
}

func FuzzParseDump(f *testing.F) {
	for _, name := range []string{"2.29.prom", "2.30.prom", "counts.prom"} {
		f.Add(dump(f, name))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, _ := ParseDump(text)
		p := NewProcess()
		for _, k := range all {
			require.Positive(t, k.Each)
			require.GreaterOrEqual(t, k.Time, time.Duration(0))
			require.GreaterOrEqual(t, k.Bytes, int64(0))
		}
		p.Dump(all, time.Unix(1, 0))
		p.Take()
	})
}

func BenchmarkDump(b *testing.B) {
	text := dump(b, "2.30.prom")
	p := NewProcess()
	kinds := 0
	b.ReportAllocs()
	for b.Loop() {
		all, _ := ParseDump(text)
		p.Dump(all, time.Unix(1, 0))
		kinds = len(all)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(kinds), "ns/record")
}
