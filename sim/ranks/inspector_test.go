// SPDX-License-Identifier: Apache-2.0

package ranks

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched is a job of two stages, and the plug-in of its rank 5, of the second.
func watched(t *testing.T, release Release, steps int) (*Play, *Inspector) {
	j := job()
	j.TP, j.DP, j.PP, j.GPUs, j.PipeTime, j.Backward = 2, 2, 2, 4, 0.01, 2
	j.TensorBytes, j.DataBytes, j.PipeBytes = 32<<20, 3000, 1536<<10
	require.NoError(t, j.Validate())
	p := New(j, rand.New(rand.NewPCG(1, 2)))
	i := &Inspector{Release: release, Host: "n1", PID: 48211, SlurmJob: "42", GPU: 1, Start: time.Unix(1_000_000, 0)}
	p.Watch(func(o *Operation) {
		if o.Rank == 5 {
			i.Take(o)
		}
	})
	for range steps {
		p.Step(&Faults{})
	}
	return p, i
}

func lines(text []byte) []string {
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// A line has the fields of its release, as the plug-in's sources have them.
func TestJSON(t *testing.T) {
	for release, want := range map[Release][]string{
		NCCL228: {
			`{"header":{"id":"0x6c90c7ef5b036d47","rank":1,"n_ranks":2,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1000100000000,"hostname":"n1","pid":48211},"coll_perf":{"coll":"AllReduce","coll_sn":15,"coll_msg_size_bytes":33554432,"coll_exec_time_us":10000,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":3.355443,"coll_busbw_gbs":3.355443}}`,
			`{"header":{"id":"0x28c4666e64bdc24","rank":0,"n_ranks":2,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1000100000000,"hostname":"n1","pid":48211},"coll_perf":{"coll":"AllReduce","coll_sn":0,"coll_msg_size_bytes":3000,"coll_exec_time_us":100000,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":0.000030,"coll_busbw_gbs":0.000030}}`,
		},
		NCCL230: {
			`{"header":{"id":"0x96e4930e3f226dac","comm_name":"pp:1","rank":1,"n_ranks":2,"nnodes":2},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1000100000000,"hostname":"n1","pid":48211},"p2p_perf":{"p2p":"Recv","p2p_peer":0,"p2p_sn":0,"p2p_msg_size_bytes":1572864,"p2p_exec_time_us":230000,"p2p_timing_source":"kernel_gpu","p2p_algobw_gbs":0.006839,"p2p_busbw_gbs":0.006839}}`,
			`{"header":{"id":"0x6c90c7ef5b036d47","comm_name":"tp:4","rank":1,"n_ranks":2,"nnodes":1},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":1000100000000,"hostname":"n1","pid":48211},"coll_perf":{"coll":"AllReduce","coll_sn":0,"coll_msg_size_bytes":33554432,"coll_exec_time_us":10000,"coll_timing_source":"kernel_gpu","coll_algobw_gbs":3.355443,"coll_busbw_gbs":3.355443}}`,
		},
	} {
		_, i := watched(t, release, 1)
		assert.Empty(t, i.Dump(nil, i.Start), "nothing has ended")
		got := lines(i.Dump(nil, i.Start.Add(100*time.Second)))
		if release < NCCL230 {
			assert.Len(t, got, 2, "one of each communicator")
		}
		assert.Equal(t, want, got[:2])
		assert.Empty(t, i.Dump(nil, i.Start.Add(200*time.Second)))
		assert.Equal(t, "n1-pid48211.log", i.File())
	}
}

// A verbose dump is JSON too, and its times are those of the operation.
func TestVerbose(t *testing.T) {
	_, i := watched(t, NCCL230, 1)
	i.Verbose = true
	for _, line := range lines(i.Dump(nil, i.Start.Add(100*time.Second))) {
		var got struct {
			Coll *struct {
				Micros int64 `json:"coll_exec_time_us"`
				Trace  struct {
					Began int64 `json:"coll_start_ts"`
					Ended int64 `json:"coll_stop_ts"`
				} `json:"event_trace_ts"`
			} `json:"coll_perf"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		if got.Coll != nil {
			assert.InDelta(t, got.Coll.Micros, got.Coll.Trace.Ended-got.Coll.Trace.Began, 1)
		}
	}
}

// A ring that is not dumped in time loses the oldest.
func TestRing(t *testing.T) {
	p, i := watched(t, NCCL230, 70)
	of, _ := p.Communicator(Tensor, 5)
	text := string(i.Dump(nil, i.Start.Add(time.Hour)))
	assert.Equal(t, ringSize, strings.Count(text, of.ID))
	assert.NotContains(t, text, `"coll_sn":95,`)
	assert.Contains(t, text, `"coll_sn":96,`, "70 steps of 16 operations, less a ring")
}

func TestPrometheus(t *testing.T) {
	for release, want := range map[Release]string{
		NCCL228: "",
		NCCL229: `nccl_algorithm_bandwidth_gbs{comm_id="0x6c90c7ef5b036d47",hostname="n1",rank="1",slurm_job="train",slurm_job_id="42",nranks="2",n_nodes="1",gpu_device_id="GPU1",collective="AllReduce",coll_sn="15",timestamp="1970-01-12T13:48:20Z",message_size="32.00MB"} 3.35544
nccl_bus_bandwidth_gbs{comm_id="0x6c90c7ef5b036d47",hostname="n1",rank="1",slurm_job="train",slurm_job_id="42",nranks="2",n_nodes="1",gpu_device_id="GPU1",collective="AllReduce",coll_sn="15",timestamp="1970-01-12T13:48:20Z",message_size="32.00MB"} 3.35544
nccl_collective_exec_time_microseconds{comm_id="0x6c90c7ef5b036d47",hostname="n1",rank="1",slurm_job="train",slurm_job_id="42",nranks="2",n_nodes="1",gpu_device_id="GPU1",collective="AllReduce",coll_sn="15",timestamp="1970-01-12T13:48:20Z",message_size="32.00MB"} 10000
nccl_algorithm_bandwidth_gbs{comm_id="0x28c4666e64bdc24",hostname="n1",rank="0",slurm_job="train",slurm_job_id="42",nranks="2",n_nodes="1",gpu_device_id="GPU1",collective="AllReduce",coll_sn="0",timestamp="1970-01-12T13:48:20Z",message_size="2.93KB"} 3e-05
`,
		NCCL230:    `nccl_p2p_bus_bandwidth_gbs{version="v5.1",slurm_job_id="42",node="n1",gpu="GPU1",comm_name="pp:1",n_nodes="2",nranks="2",p2p_operation="Recv",message_size="1-2MB"} 0.0718223`,
		NCCLCounts: `nccl_p2p_bus_bandwidth_gbs{version="v5.5",comm_id="0x96e4930e3f226dac",comm_name="pp:1",comm_rank="1",peer="0",n_nodes="2",nranks="2",p2p_operation="Recv",message_size_bytes="1572864",timing_source="kernel_gpu"} 0.0718223`,
	} {
		_, i := watched(t, release, 1)
		got := string(i.DumpPrometheus(nil, i.Start.Add(100*time.Second)))
		assert.True(t, strings.HasPrefix(got, want), got)
		assert.Empty(t, i.DumpPrometheus(nil, i.Start.Add(200*time.Second)))
	}
	assert.Equal(t, "nccl_inspector_metrics_0c.prom", PrometheusFile("GPU-0c"))
	for size, want := range map[int64][2]string{0: {"0B", "0-1B"}, 524: {"524B", "524-525B"}, 8192: {"8.00KB", "8-9KB"}, 2 << 30: {"2.00GB", "2-3GB"}, 1 << 60: {"1048576.00TB", "1048576-1048577TB"}} {
		assert.Equal(t, want, [2]string{exactSize(size), sizeRange(size)})
	}
}

// On the way back the stages come the other way round, and every rank's time is told.
func TestWatchTellsOfAllTime(t *testing.T) {
	p, _ := watched(t, NCCL230, 0)
	total := make([]float64, 8)
	var order []int
	p.Watch(func(o *Operation) {
		total[o.Rank] += o.Ended - o.Began
		if o.Kind == Tensor {
			total[o.Rank] -= o.Ended - o.Began // within a Compute
		}
		if o.Kind == Compute && o.Micro == 0 && o.Rank%4 == 0 {
			order = append(order, o.Rank)
		}
	})
	p.Step(&Faults{})
	assert.Equal(t, []int{0, 4, 4, 0}, order)
	for r, sum := range total {
		assert.InDelta(t, p.at[r], sum, 1e-9)
	}
}
