// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Release of NCCL. Each writes other fields.
type Release uint8

// Releases. NCCLCounts are the sources after 2.30.7, whose Prometheus form has counts.
const (
	NCCL228 Release = iota
	NCCL229
	NCCL230
	NCCLCounts
)

// NCCL 2.30 sees operations from NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES on, and keeps them in
// rings of one communicator. Versions before had one place for each.
const (
	leastBytes = 8192
	ringSize   = 1024
)

// Inspector is NCCL's profiler plug-in in the process of one rank. It keeps what the rank
// has finished until the next dump.
type Inspector struct {
	Release Release
	// Host and PID are as the process knows them, which may be in a container.
	Host string
	PID  int
	// SlurmJob and GPU, the CUDA ordinal, are labels of the Prometheus form.
	SlurmJob string
	GPU      int
	// Start is the time of the job's second 0.
	Start time.Time
	// Verbose adds the times of begin and end (NCCL_INSPECTOR_DUMP_VERBOSE).
	Verbose bool

	all    []finished
	counts map[counter]int
}

// finished is an operation with its number, which counts by communicator and function.
type finished struct {
	Operation
	number int
}

type counter struct{ communicator, function string }

// Take keeps an operation. It leaves out what the release does not see.
func (i *Inspector) Take(o *Operation) {
	switch {
	case o.Of == nil,
		o.Kind == Pipe && i.Release < NCCL230,
		o.Bytes < leastBytes && i.Release >= NCCL230:
		return
	}
	if i.counts == nil {
		i.counts = map[counter]int{}
	}
	of := counter{o.Of.ID, o.function()}
	i.all = append(i.all, finished{*o, i.counts[of]})
	i.counts[of]++
}

// function is the operation's name as NCCL has it.
func (o *Operation) function() string {
	if o.Kind == Pipe {
		return "Recv"
	}
	return "AllReduce"
}

func (o *Operation) micros() int64 { return int64(math.Round((o.Ended - o.Began) * 1e6)) }

// bandwidths in GB/s, by the factors of nccl-tests.
func (o *Operation) bandwidths() (algorithm, bus float64) {
	algorithm = float64(o.Bytes) / float64(max(o.micros(), 1)) / 1e3
	if o.Kind == Pipe {
		return algorithm, algorithm
	}
	n := float64(o.Of.Ranks)
	return algorithm, algorithm * 2 * (n - 1) / n
}

// dumped takes what has ended until a time: of each communicator what its ring holds.
func (i *Inspector) dumped(at time.Time) (all []finished) {
	until := at.Sub(i.Start).Seconds()
	var later []finished
	for _, o := range i.all {
		if o.Ended <= until {
			all = append(all, o)
		} else {
			later = append(later, o)
		}
	}
	i.all = later
	most := 1
	if i.Release >= NCCL230 {
		most = ringSize
	}
	slices.SortStableFunc(all, func(a, b finished) int { return cmp.Compare(b.Ended, a.Ended) })
	kept := map[counter]int{}
	all = slices.DeleteFunc(all, func(o finished) bool {
		of := counter{o.Of.ID, o.Kind.String()}
		kept[of]++
		return kept[of] > most
	})
	slices.Reverse(all)
	return all
}

// File is the name of the process' JSON file.
func (i *Inspector) File() string { return fmt.Sprintf("%s-pid%d.log", i.Host, i.PID) }

// Dump appends the lines of what has ended since the last dump (inspector_json.cc).
func (i *Inspector) Dump(to []byte, at time.Time) []byte {
	for _, o := range i.dumped(at) {
		kind, section := "coll", "coll_perf"
		to = fmt.Appendf(to, `{"header":{"id":%q,`, o.Of.ID)
		if i.Release >= NCCL230 {
			to = fmt.Appendf(to, `"comm_name":%q,`, o.Of.Name)
		}
		to = fmt.Appendf(to, `"rank":%d,"n_ranks":%d,"nnodes":%d},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":%d,"hostname":%q,"pid":%d},`,
			o.Place, o.Of.Ranks, o.Of.Nodes, at.UnixMicro(), i.Host, i.PID)
		if o.Kind == Pipe {
			kind, section = "p2p", "p2p_perf"
		}
		to = fmt.Appendf(to, `%q:{%q:%q,`, section, kind, o.function())
		if o.Kind == Pipe {
			to = fmt.Appendf(to, `"p2p_peer":%d,`, o.Peer)
		}
		algorithm, bus := o.bandwidths()
		to = fmt.Appendf(to, `"%[1]s_sn":%[2]d,"%[1]s_msg_size_bytes":%[3]d,"%[1]s_exec_time_us":%[4]d,"%[1]s_timing_source":"kernel_gpu","%[1]s_algobw_gbs":%[5]f,"%[1]s_busbw_gbs":%[6]f`,
			kind, o.number, o.Bytes, o.micros(), algorithm, bus)
		if i.Verbose {
			began, ended := i.at(o.Began), i.at(o.Ended)
			to = fmt.Appendf(to, `,"event_trace_sn":{"%[1]s_start_sn":1,"%[1]s_stop_sn":4,"kernel_events":[{"channel_id":0,"kernel_start_sn":2,"kernel_stop_sn":3,"kernel_record_sn":3}]},"event_trace_ts":{"%[1]s_start_ts":%[2]d,"%[1]s_stop_ts":%[3]d,"kernel_events":[{"channel_id":0,"kernel_start_ts":%[2]d,"kernel_stop_ts":%[3]d,"kernel_record_ts":%[3]d}]}`,
				kind, began.UnixMicro(), ended.UnixMicro())
		}
		to = append(to, "}}\n"...)
	}
	return to
}

func (i *Inspector) at(seconds float64) time.Time {
	return i.Start.Add(time.Duration(seconds * float64(time.Second)))
}

// PrometheusFile is the name of the file of the Prometheus form, of the process' GPU.
func PrometheusFile(uuid string) string {
	return "nccl_inspector_metrics_" + strings.TrimPrefix(uuid, "GPU-") + ".prom"
}

// family is what one kind of operations has in a file of the Prometheus form.
type family struct {
	labels string
	last   finished
	n      int
	micros int64
	logBus float64
}

// DumpPrometheus appends the file of what has ended since the last dump, nothing where
// nothing has: then the plug-in leaves the file as it is. NCCL 2.28 has no such form.
func (i *Inspector) DumpPrometheus(to []byte, at time.Time) []byte {
	var all []family
	for _, o := range i.dumped(at) {
		labels := i.labels(&o, at)
		k := slices.IndexFunc(all, func(f family) bool { return f.labels == labels })
		if k < 0 {
			k = len(all)
			all = append(all, family{labels: labels})
		}
		f := &all[k]
		_, bus := o.bandwidths()
		f.last, f.n, f.micros, f.logBus = o, f.n+1, f.micros+o.micros(), f.logBus+math.Log(bus)
	}
	for _, f := range all {
		set, family := "nccl", "nccl_collective"
		if f.last.Kind == Pipe {
			set, family = "nccl_p2p", "nccl_p2p"
		}
		switch i.Release {
		case NCCL228:
		case NCCL229:
			algorithm, bus := f.last.bandwidths()
			to = fmt.Appendf(to, "nccl_algorithm_bandwidth_gbs{%[1]s} %[2]s\nnccl_bus_bandwidth_gbs{%[1]s} %[3]s\nnccl_collective_exec_time_microseconds{%[1]s} %[4]d\n",
				f.labels, number(algorithm), number(bus), f.last.micros())
		case NCCL230:
			to = fmt.Appendf(to, "%[1]s_bus_bandwidth_gbs{%[3]s} %[4]s\n%[2]s_exec_time_microseconds{%[3]s} %[5]s\n",
				set, family, f.labels, number(math.Exp(f.logBus/float64(f.n))), number(float64(f.micros)/float64(f.n)))
		case NCCLCounts:
			to = fmt.Appendf(to, "%[1]s_bus_bandwidth_gbs{%[3]s} %[4]s\n%[2]s_count{%[3]s} %[5]d\n%[2]s_exec_time_sum_microseconds{%[3]s} %[6]d\n",
				set, family, f.labels, number(math.Exp(f.logBus/float64(f.n))), f.n, f.micros)
		}
	}
	return to
}

// number is one as C++'s streams write it.
func number(x float64) string { return strconv.FormatFloat(x, 'g', 6, 64) }

// labels of an operation's kind.
func (i *Inspector) labels(o *finished, at time.Time) string {
	of, function := o.Of, "collective"
	if o.Kind == Pipe {
		function = "p2p_operation"
	}
	switch i.Release {
	case NCCL228, NCCL229:
		return fmt.Sprintf(`comm_id=%q,hostname=%q,rank="%d",slurm_job="train",slurm_job_id=%q,nranks="%d",n_nodes="%d",gpu_device_id="GPU%d",%s=%q,coll_sn="%d",timestamp=%q,message_size=%q`,
			of.ID, i.Host, o.Place, i.SlurmJob, of.Ranks, of.Nodes, i.GPU, function, o.function(), o.number, at.UTC().Format("2006-01-02T15:04:05Z"), exactSize(o.Bytes))
	case NCCL230:
		labels := fmt.Sprintf(`version="v5.1",slurm_job_id=%q,node=%q,gpu="GPU%d",comm_name=%q,n_nodes="%d",nranks="%d",`, i.SlurmJob, i.Host, i.GPU, of.Name, of.Nodes, of.Ranks)
		if o.Kind == Pipe {
			return labels + fmt.Sprintf(`p2p_operation=%q,message_size=%q`, o.function(), sizeRange(o.Bytes))
		}
		return labels + fmt.Sprintf(`collective=%q,message_size=%q,algo_proto="Ring_Simple"`, o.function(), sizeRange(o.Bytes))
	case NCCLCounts:
	}
	labels := fmt.Sprintf(`version="v5.5",comm_id=%q,comm_name=%q,comm_rank="%d",`, of.ID, of.Name, o.Place)
	if o.Kind == Pipe {
		labels += fmt.Sprintf(`peer="%d",`, o.Peer)
	}
	return labels + fmt.Sprintf(`n_nodes="%d",nranks="%d",%s=%q,message_size_bytes="%d",timing_source="kernel_gpu"`, of.Nodes, of.Ranks, function, o.function(), o.Bytes)
}

var units = [...]string{"B", "KB", "MB", "GB", "TB"}

// unit is the greatest binary unit that a size has one of.
func unit(size int64) int { return min(max(bits.Len64(uint64(size))-1, 0)/10, len(units)-1) }

// exactSize is a size as 2.29 writes it, such as 2.00GB.
func exactSize(size int64) string {
	u := unit(size)
	if u == 0 {
		return fmt.Sprintf("%dB", size)
	}
	return fmt.Sprintf("%.2f%s", float64(size)/float64(int64(1)<<(10*u)), units[u])
}

// sizeRange is a size as 2.30 writes it, one unit wide, such as 32-33MB.
func sizeRange(size int64) string {
	u := unit(size)
	n := size >> (10 * u)
	return fmt.Sprintf("%d-%d%s", n, n+1, units[u])
}
