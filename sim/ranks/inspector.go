// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// Inspector is the profiler plug-in of NCCL, or RCCL, in the process of one or several ranks.
type Inspector struct {
	// Old is NCCL 2.28: no names, no Send and Recv, and of each communicator the last
	// operation before a dump. Else it is 2.30.
	Old bool
	// Verbose adds the times of kernels (NCCL_INSPECTOR_DUMP_VERBOSE).
	Verbose bool
	// Start is the time of the job's second 0.
	Start time.Time
	Host  string
	PID   int

	play *Play
	done []Operation
	sn   map[*Traffic]int
}

// Inspect returns a copy of like for each process of so many ranks. They take the operations
// of all ticks from now on.
func (p *Play) Inspect(like Inspector, ranks int) (all []*Inspector) {
	like.play = p
	for r := 0; r < len(p.Ranks); r += ranks {
		i := like
		i.Host, i.PID, i.sn = fmt.Sprintf("node-%06d", p.Ranks[r].Node), 1000+r, map[*Traffic]int{}
		all = append(all, &i)
	}
	p.Each = func(o Operation) { all[o.Rank/ranks].done = append(all[o.Rank/ranks].done, o) }
	return all
}

// File is the name of the process' file.
func (i *Inspector) File() string { return fmt.Sprintf("%s-pid%d.log", i.Host, i.PID) }

// Dump writes what has ended since the last dump, a line for each operation: those of one
// communicator and rank after the other.
func (i *Inspector) Dump(w io.Writer, at time.Time) error {
	ring := 1024
	if i.Old {
		ring = 1
		i.done = slices.DeleteFunc(i.done, func(o Operation) bool { f := i.play.Of(&o).Function; return f == "Send" || f == "Recv" })
	}
	slices.SortStableFunc(i.done, func(a, b Operation) int {
		return cmp.Or(cmp.Compare(i.play.Of(&a).ID, i.play.Of(&b).ID), cmp.Compare(a.Rank, b.Rank))
	})
	var text []byte
	for k, o := range i.done {
		t := i.play.Of(&o)
		i.sn[t]++
		if k+ring < len(i.done) && i.done[k+ring].Rank == o.Rank && i.play.Of(&i.done[k+ring]).ID == t.ID {
			continue // overwritten by a later one
		}
		text = i.line(text, &o, t, at.UnixMicro()+int64(15*k))
	}
	i.done = i.done[:0]
	_, err := w.Write(text)
	return err
}

// line appends an operation as inspector_json.cc writes it.
func (i *Inspector) line(to []byte, o *Operation, t *Traffic, at int64) []byte {
	kind, peer, name := "coll", "", fmt.Sprintf(`"comm_name":%q,`, t.Name)
	if t.Function == "Send" || t.Function == "Recv" {
		kind, peer = "p2p", fmt.Sprintf(`"p2p_peer":%d,`, o.peer)
	}
	if i.Old {
		name = ""
	}
	micros := max(1, int64((o.Ended-o.Began)*1e6+0.5))
	bus, algorithm := t.busBytes()
	to = fmt.Appendf(to, `{"header":{"id":%q,%s"rank":%d,"n_ranks":%d,"nnodes":%d},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"unknown","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":%d,"hostname":%q,"pid":%d},`,
		t.ID, name, t.Place, len(t.Members), t.Nodes, at, i.Host, i.PID)
	to = fmt.Appendf(to, `"%[1]s_perf":{%[1]q:%[2]q,%[3]s"%[1]s_sn":%[4]d,"%[1]s_msg_size_bytes":%[5]d,"%[1]s_exec_time_us":%[6]d,"%[1]s_timing_source":"kernel_gpu","%[1]s_algobw_gbs":%[7]f,"%[1]s_busbw_gbs":%[8]f`,
		kind, t.Function, peer, i.sn[t]-1, t.Bytes, micros, algorithm/float64(micros)/1e3, bus/float64(micros)/1e3)
	if i.Verbose {
		// The host launches an operation in no time; its kernel runs to the end.
		began := i.Start.UnixMicro() + int64(o.Began*1e6)
		to = fmt.Appendf(to, `,"event_trace_sn":{"%[1]s_start_sn":1,"%[1]s_stop_sn":2,"kernel_events":[{"channel_id":0,"kernel_start_sn":3,"kernel_stop_sn":5,"kernel_record_sn":4}]},"event_trace_ts":{"%[1]s_start_ts":%[2]d,"%[1]s_stop_ts":%[3]d,"kernel_events":[{"channel_id":0,"kernel_start_ts":%[3]d,"kernel_stop_ts":%[4]d,"kernel_record_ts":%[4]d}]}`,
			kind, began, began+5, began+5+micros)
	}
	return append(to, "}}\n"...)
}
