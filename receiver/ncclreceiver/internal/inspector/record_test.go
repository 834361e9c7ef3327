// SPDX-License-Identifier: Apache-2.0

package inspector

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

const (
	header   = `"header":{"id":"0x5d1c77a0b3e9f2","comm_name":"dp:17","rank":11,"n_ranks":64,"nnodes":8}`
	metadata = `"metadata":{"inspector_output_format_version":"v4.0","git_rev":"x","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1781100012345678,"hostname":"n0","pid":48211}`
	perf     = `"coll_perf":{"coll":"ReduceScatter","coll_sn":1407,"coll_msg_size_bytes":33554432,"coll_exec_time_us":11874,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":180.85,"coll_busbw_gbs":178.02}`
)

func TestParse(t *testing.T) {
	full := Record{
		Communicator: "0x5d1c77a0b3e9f2", Name: "dp:17", Operation: "ReduceScatter", Collective: true,
		Rank: 11, Ranks: 64, Nodes: 8, Bytes: 33554432, Micros: 11874, Bandwidth: 178.02e9, Dumped: 1781100012345678,
	}
	with := func(change func(*Record)) *Record { r := full; change(&r); return &r }
	line := func(parts ...string) string { return "{" + strings.Join(parts, ",") + "}" }
	swap := func(old, new string) string { return strings.Replace(line(header, metadata, perf), old, new, 1) }
	trace := `{"coll_start_sn":0,"coll_stop_sn":5,"kernel_events":[{"channel_id":0,"rank":7,"text":"]}\"{"},[[]]]}`
	for name, c := range map[string]struct {
		line string
		want *Record // nil for none
	}{
		"2.30":              {line(header, metadata, perf), &full},
		"2.28.3":            {strings.NewReplacer(`"comm_name":"dp:17",`, "", `,"hostname":"n0","pid":48211`, "").Replace(line(header, metadata, perf)), with(func(r *Record) { r.Name = "" })},
		"verbose":           {swap(`"coll_algobw_gbs"`, `"event_trace_sn":`+trace+`,"event_trace_ts":`+trace+`,"coll_algobw_gbs"`), &full},
		"unknown fields":    {line(`"x":null`, header, `"rank":[1,{"rank":3}]`, metadata, `"extra":{"header":{"rank":2},"coll":"no"}`, perf, `"y":-1.5e3`), &full},
		"keys of others":    {swap(`"git_rev":"x"`, `"rank":1,"id":"0","coll_sn":2`), &full},
		"unnamed":           {swap("dp:17", "unknown"), with(func(r *Record) { r.Name = "" })},
		"P2P":               {strings.NewReplacer("coll_perf", "p2p_perf", `"coll":"ReduceScatter"`, `"p2p":"Send","p2p_peer":3`, "coll_", "p2p_").Replace(line(header, metadata, perf)), with(func(r *Record) { r.Operation, r.Collective = "Send", false })},
		"endless bandwidth": {swap("178.02", "1e999"), nil},
		"no time":           {swap("11874", "0"), nil},
		"negative time":     {swap("11874", "-1"), nil},
		"time of years":     {swap("11874", "99999999999999"), nil},
		"more than 64 bits": {swap("11874", "18446744073709551617"), nil},
		"rank out of ranks": {swap(`"rank":11`, `"rank":64`), nil},
		"no ranks":          {swap(`"n_ranks":64`, `"n_ranks":0`), nil},
		"no rank":           {swap(`"rank":11,`, ``), nil},
		"long id":           {swap("0x5d1c77a0b3e9f2", strings.Repeat("a", 129)), nil},
		"no id":             {swap(`"id":"0x5d1c77a0b3e9f2",`, ""), nil},
		"no operation":      {line(header, metadata), nil},
		"no dump":           {line(header, perf), nil},
		"text":              {"Traceback (most recent call last):", nil},
	} {
		t.Run(name, func(t *testing.T) {
			var r Record
			if !assert.Equal(t, c.want != nil, r.Parse([]byte(c.line)), c.line) || c.want == nil {
				return
			}
			assert.Equal(t, c.want, &r)
		})
	}
}

func FuzzParse(f *testing.F) {
	line := "{" + header + "," + metadata + "," + perf + "}"
	f.Add([]byte(line))
	f.Add([]byte(strings.Replace(line, "dp:17", `\"\\`, 1)))
	f.Add([]byte(`{"header":{"a":[{"b":"]"}]},"x":`))
	f.Fuzz(func(t *testing.T, line []byte) {
		assert.LessOrEqual(t, Lines(line, func([]byte) {}), len(line))
		p := NewProcess(&Room{Left: 1})
		if r := new(Record); r.Parse(line) && p.Add(line) == nil {
			assert.True(t, r.Rank >= 0 && r.Rank < r.Ranks && r.Micros >= 0 && r.Bandwidth >= 0 && len(r.Operation) > 0, "%+v", r)
		}
		p.Report(0)
	})
}

func TestLines(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
		rest int
	}{
		"whole":           {"one\ntwo\r\n\n \n", []string{"one", "two"}, 0},
		"half":            {"one\nha", []string{"one"}, 2},
		"cut by others":   {"ha\x00\x00one\nha\x00two\n\x00\x00", []string{"one", "two"}, 0},
		"longest":         {strings.Repeat("x", MaxLine), nil, MaxLine},
		"too long":        {strings.Repeat("x", MaxLine+1) + "\none\n", []string{"", "one"}, 0},
		"too long a half": {strings.Repeat("x", MaxLine+1), []string{""}, 0},
		"much nothing":    {strings.Repeat("\x00", 2*MaxLine) + "one\n", []string{"one"}, 0},
	} {
		var got []string
		used := Lines([]byte(c.text), func(line []byte) { got = append(got, string(line)) })
		assert.Equal(t, c.want, got, name)
		assert.Equal(t, len(c.text)-c.rest, used, name)
	}
}

func BenchmarkRecord(b *testing.B) {
	line := []byte("{" + header + "," + metadata + "," + perf + "}\n")
	p := NewProcess(&Room{Left: MaxMembers})
	b.ReportAllocs()
	for b.Loop() {
		Lines(line, func(line []byte) {
			if err := p.Add(line); err != nil {
				b.Fatal(err)
			}
		})
	}
}
