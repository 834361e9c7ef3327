// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const example = `{"header":{"id":"0x5d1c77a0b3e9f204","comm_name":"dp:17","rank":11,"n_ranks":64,"nnodes":8},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"x","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1781100012345678,"hostname":"n0","pid":48211},"coll_perf":{"coll":"ReduceScatter","coll_sn":1407,"coll_msg_size_bytes":33554432,"coll_exec_time_us":11874,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":180.85,"coll_busbw_gbs":178.02}}`

// what a record says, as values.
func said(r *Record) string {
	return fmt.Sprintf("%s %s %s %d/%d/%d %d B %d us %v %d", r.Communicator, r.Name, r.Operation, r.Rank, r.Ranks, r.Nodes, r.Bytes, r.Micros, r.BusBandwidth, r.Dumped)
}

func TestParse(t *testing.T) {
	for name, tt := range map[string]struct{ line, want string }{
		"of 2.30": {example, "0x5d1c77a0b3e9f204 dp:17 ReduceScatter 11/64/8 33554432 B 11874 us 178.02 1781100012345678"},
		"of 2.28, without a name": {
			strings.Replace(example, `"comm_name":"dp:17",`, "", 1),
			"0x5d1c77a0b3e9f204  ReduceScatter 11/64/8 33554432 B 11874 us 178.02 1781100012345678",
		},
		"an unset name": {
			strings.Replace(example, `dp:17`, "unknown", 1),
			"0x5d1c77a0b3e9f204  ReduceScatter 11/64/8 33554432 B 11874 us 178.02 1781100012345678",
		},
		"point to point": {
			strings.NewReplacer(`"coll_perf"`, `"p2p_perf"`, `"coll":"ReduceScatter"`, `"p2p":"Send","p2p_peer":3`, `"coll_`, `"p2p_`).Replace(example),
			"0x5d1c77a0b3e9f204 dp:17 Send 11/64/8 33554432 B 11874 us 178.02 1781100012345678",
		},
		"verbose": {
			strings.Replace(example, `"coll_busbw_gbs":178.02`, `"coll_busbw_gbs":178.02,"event_trace_ts":{"coll_start_ts":17,"kernel_events":[{"channel_id":0,"kernel_start_ts":"]}"},{"channel_id":1}]}`, 1),
			"0x5d1c77a0b3e9f204 dp:17 ReduceScatter 11/64/8 33554432 B 11874 us 178.02 1781100012345678",
		},
		"spaces and a quote in the name": {
			strings.NewReplacer(`:"dp:17"`, ` : "a\"b"`, `,"rank"`, ` , "rank"`).Replace(example),
			`0x5d1c77a0b3e9f204 a\"b ReduceScatter 11/64/8 33554432 B 11874 us 178.02 1781100012345678`,
		},
		"half a line":     {example[:200], ""},
		"its second half": {example[200:], ""},
		"not closed":      {example[:len(example)-1], ""},
		"garbage":         {"\x00\xff{{{", ""},
		"another object":  {`{"a":1}`, ""},
		"a list":          {`[1]`, ""},
		"no time":         {strings.Replace(example, "11874", "-1", 1), ""},
		"nothing":         {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var r Record
			got := ""
			if r.Parse([]byte(tt.line)) {
				got = said(&r)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(example[:100]))
	f.Add([]byte(`{"id":"a","coll":[[]],"x":{"y":{}}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var r Record
		if r.Parse(line) {
			require.Positive(t, r.Micros)
			p := NewProcess()
			p.Add(&r)
			p.Take()
		}
		var l Lines
		l.Add(line, func([]byte) {})
	})
}

func TestParseDoesNotAllocate(t *testing.T) {
	var r Record
	lines := [][]byte{[]byte(example), []byte(strings.Replace(example, "5d1c", "6e2d", 1))}
	p := NewProcess()
	take := func() { // now of one communicator, now of the other
		for _, line := range lines {
			r.Parse(line)
			p.Add(&r)
		}
	}
	take()
	assert.Zero(t, testing.AllocsPerRun(100, take))
}

// Lines come out the same however the file is read.
func TestLines(t *testing.T) {
	file := "one\ntwo\r\n\n\x00\x00\x00three\n" + strings.Repeat("x", MaxLine+1) + "\nfour\nhalf"
	want := []string{"one", "two", "three", "four"}
	for _, size := range []int{1, 2, 3, 7, 1000, MaxLine, len(file)} {
		var l Lines
		var got []string
		for at := 0; at < len(file); at += size {
			l.Add([]byte(file[at:min(at+size, len(file))]), func(line []byte) {
				if len(line) <= MaxLine {
					got = append(got, string(line))
				}
			})
		}
		assert.Equal(t, want, got, "%d bytes at a time", size)
		l.Add([]byte(" a line\n"), func(line []byte) { got = append(got, string(line)) })
		assert.Equal(t, "half a line", got[len(got)-1])
	}
	var l Lines
	l.Skip()
	l.Add([]byte("the rest of one\nwhole\n"), func(line []byte) { assert.Equal(t, "whole", string(line)) })
}

func TestProcess(t *testing.T) {
	p := NewProcess()
	add := func(id string, ms int64, at time.Duration, size int64) {
		p.Add(&Record{
			Communicator: []byte(id), Operation: []byte("AllReduce"), Ranks: 8, Nodes: 1, Rank: 3,
			Bytes: size, Micros: ms * 1000, BusBandwidth: 100, Dumped: at.Microseconds(),
		})
	}
	_, known := p.Take()
	assert.False(t, known, "nothing told")
	add("a", 500, 100*time.Second, 1000)
	_, known = p.Take()
	assert.False(t, known, "since when?")
	_, known = p.Take()
	assert.False(t, known, "nothing new")
	add("a", 2000, 105*time.Second, 1000)
	add("b", 3000, 110*time.Second, 1024)
	share, known := p.Take()
	assert.True(t, known)
	assert.InDelta(t, 0.5, share, 1e-9, "5 s of 10, of both communicators")
	require.Len(t, p.Sums, 2)
	s := p.Sums[Key{"a", "AllReduce", 512}]
	assert.Equal(t, int64(2), s.Operations)
	assert.Equal(t, int64(2000), s.Bytes)
	assert.Equal(t, 2500*time.Millisecond, s.Time)
	assert.InDelta(t, 100e9, s.Bandwidth, 1)
	assert.Equal(t, time.UnixMicro((110 * time.Second).Microseconds()).UTC(), p.Communicators["b"].Progress)

	for i := range 2 * MaxCommunicators {
		add(fmt.Sprint("c", i), 1, 111*time.Second, 1<<i%40)
	}
	assert.Len(t, p.Communicators, MaxCommunicators)
	assert.Equal(t, int64(MaxCommunicators+2), p.Dropped)
}

func BenchmarkRecord(b *testing.B) {
	line := []byte(example)
	p := NewProcess()
	var r Record
	b.ReportAllocs()
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if r.Parse(line) {
			p.Add(&r)
		}
	}
}
