// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Inspector is the profiler plug-in of NCCL, or RCCL, in the processes of a job.
type Inspector struct {
	Ranks int // of a process
	// Old is NCCL 2.28: no names, no Send and Recv, and of each communicator the last
	// operation before a dump. Else it is 2.30.
	Old     bool
	Verbose bool // adds the times of kernels (NCCL_INSPECTOR_DUMP_VERBOSE)
}

// Dump returns what each process appends to its file after a tick, by the file's name: a line
// for each operation as inspector_json.cc writes it, those of one communicator and rank after
// the other. A line takes 15 µs or so.
func (i *Inspector) Dump(p *Play, at time.Time) map[string][]byte {
	order := func(a, b Operation) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Rank, b.Rank)) }
	slices.SortStableFunc(p.Done, order)
	files := map[string][]byte{}
	for k, o := range p.Done {
		kind, peer, name, first := "coll", "", fmt.Sprintf(`"comm_name":%q,`, o.Name), o.Rank/i.Ranks*i.Ranks
		if o.Function == "Send" || o.Function == "Recv" {
			kind, peer = "p2p", fmt.Sprintf(`"p2p_peer":%d,`, o.peer)
		}
		if i.Old {
			name = ""
			if kind == "p2p" || k+1 < len(p.Done) && order(o, p.Done[k+1]) == 0 {
				continue
			}
		}
		host, pid, micros := fmt.Sprintf("node-%06d", p.Ranks[first].Node), 1000+first, max(1, int64((o.ended-o.began)*1e6+0.5))
		file := fmt.Sprintf("%s-pid%d.log", host, pid)
		to := fmt.Appendf(files[file], `{"header":{"id":%q,%s"rank":%d,"n_ranks":%d,"nnodes":%d},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"unknown","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":%d,"hostname":%q,"pid":%d},`,
			o.ID, name, o.Place, o.Size, o.Nodes, at.UnixMicro()+int64(len(files[file])/32), host, pid)
		to = fmt.Appendf(to, `"%[1]s_perf":{%[1]q:%[2]q,%[3]s"%[1]s_sn":%[4]d,"%[1]s_msg_size_bytes":%[5]d,"%[1]s_exec_time_us":%[6]d,"%[1]s_timing_source":"kernel_gpu","%[1]s_algobw_gbs":%[7]f,"%[1]s_busbw_gbs":%[8]f`,
			kind, o.Function, peer, o.number, o.Bytes, micros, o.algorithm/float64(micros)/1e3, o.bus/float64(micros)/1e3)
		if i.Verbose { // The host launches an operation in no time; its kernel runs to the end.
			began := at.UnixMicro() - int64((p.until-o.began)*1e6)
			to = fmt.Appendf(to, `,"event_trace_sn":{"%[1]s_start_sn":1,"%[1]s_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":5,"kernel_record_sn":4}]},"event_trace_ts":{"%[1]s_start_ts":%[2]d,"%[1]s_stop_ts":%[3]d,"kernel_events":[{"channel_id":0,"kernel_start_ts":%[3]d,"kernel_stop_ts":%[4]d,"kernel_record_ts":%[4]d}]}`,
				kind, began, began+5, began+5+micros)
		}
		files[file] = append(to, "}}\n"...)
	}
	return files
}
