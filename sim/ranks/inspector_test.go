// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A line has the fields of its release; the first is as in a real file of 2.30.7.
func TestLines(t *testing.T) {
	const (
		meta  = `"metadata":{"inspector_output_format_version":"v4.0","git_rev":"unknown","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":2000000,"hostname":"n1","pid":7},`
		coll  = `"coll_perf":{"coll":"ReduceScatter","coll_sn":4,"coll_msg_size_bytes":1048576,"coll_exec_time_us":250,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":16.777216,"coll_busbw_gbs":12.582912`
		trace = `,"event_trace_sn":{"coll_start_sn":1,"coll_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":5,"kernel_record_sn":4}]},"event_trace_ts":{"coll_start_ts":1500000,"coll_stop_ts":1500005,"kernel_events":[{"channel_id":0,"kernel_start_ts":1500005,"kernel_stop_ts":1500255,"kernel_record_ts":1500255}]}`
	)
	c := &Communicator{ID: "0x14a586f79c44f0", Name: "dp:0", Members: make([]int, 4), Nodes: 2}
	of := &Traffic{Communicator: c, Place: 1, Function: "ReduceScatter", Bytes: 1 << 20}
	o := Operation{Began: 0.5, Ended: 0.50025, peer: 3}
	line := func(i Inspector, t *Traffic) string {
		i.Start, i.Host, i.PID, i.sn = time.Unix(1, 0), "n1", 7, map[*Traffic]int{t: 5}
		return string(i.line(nil, &o, t, 2000000))
	}
	assert.JSONEq(t, `{"header":{"id":"0x14a586f79c44f0","comm_name":"dp:0","rank":1,"n_ranks":4,"nnodes":2},`+meta+coll+"}}", line(Inspector{}, of))
	assert.JSONEq(t, `{"header":{"id":"0x14a586f79c44f0","rank":1,"n_ranks":4,"nnodes":2},`+meta+coll+trace+"}}", line(Inspector{Old: true, Verbose: true}, of))
	of.Function = "Recv"
	assert.Contains(t, line(Inspector{}, of), `"p2p_perf":{"p2p":"Recv","p2p_peer":3,"p2p_sn":4,"p2p_msg_size_bytes":1048576,"p2p_exec_time_us":250,"p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":4.194304,"p2p_busbw_gbs":4.194304}}`)
}

// The files of all processes hold what the ranks did, and each number once.
func TestFiles(t *testing.T) {
	for _, per := range []int{1, 4} {
		for _, old := range []bool{false, true} {
			j := lookalikes()["pipeline"]
			p := New(&j, 1)
			files := p.Inspect(Inspector{Old: old, Verbose: true, Start: time.Unix(1e9, 0)}, per)
			require.Len(t, files, 32/per)
			assert.Equal(t, "node-000001-pid1008.log", files[8/per].File())
			want, got := map[string]float64{}, map[string]float64{}
			next := map[[3]any]int{}
			for tick := range 20 {
				p.Advance(1)
				for r := range p.Ranks {
					for _, tr := range p.Ranks[r].Traffic {
						want[tr.ID+tr.Function] += tr.Seconds
					}
				}
				at := time.Unix(1e9+int64(tick)+1, 0)
				for _, f := range files {
					var b bytes.Buffer
					require.NoError(t, f.Dump(&b, at))
					last := ""
					for line := range bytes.Lines(b.Bytes()) {
						var r record
						require.NoError(t, json.Unmarshal(line, &r), "%s", line)
						of := r.Coll
						if r.P2P.Function != "" {
							of.Function, of.Number, of.Micros = r.P2P.Function, r.P2P.Number, r.P2P.Micros
							assert.NotEqual(t, r.Header.Rank, r.P2P.Peer)
						}
						got[r.Header.ID+of.Function] += float64(of.Micros) / 1e6
						key := [3]any{r.Header.ID, r.Header.Rank, of.Function}
						place := fmt.Sprintf("%s %03d", r.Header.ID, r.Header.Rank)
						assert.GreaterOrEqual(t, place, last, "one communicator after the other")
						if old {
							assert.NotEqual(t, place, last, "the last operation of each")
							assert.GreaterOrEqual(t, of.Number, next[key])
							assert.Empty(t, r.P2P.Function+r.Header.Name)
						} else {
							assert.Equal(t, next[key], of.Number)
						}
						last = place
						next[key] = of.Number + 1
						assert.GreaterOrEqual(t, r.Metadata.At, at.UnixMicro())
					}
				}
			}
			for k, seconds := range want {
				if old {
					assert.Less(t, got[k], seconds+0.01, k)
				} else {
					assert.InEpsilon(t, seconds, got[k], 0.001, k)
				}
			}
		}
	}
}

// record is a line as others read it.
type record struct {
	Header struct {
		ID   string `json:"id"`
		Name string `json:"comm_name"`
		Rank int    `json:"rank"`
	} `json:"header"`
	Metadata struct {
		At int64 `json:"dump_timestamp_us"`
	} `json:"metadata"`
	Coll struct {
		Function string `json:"coll"`
		Number   int    `json:"coll_sn"`
		Micros   int    `json:"coll_exec_time_us"`
	} `json:"coll_perf"`
	P2P struct {
		Function string `json:"p2p"`
		Peer     int    `json:"p2p_peer"`
		Number   int    `json:"p2p_sn"`
		Micros   int    `json:"p2p_exec_time_us"`
	} `json:"p2p_perf"`
}
