// SPDX-License-Identifier: Apache-2.0

// Package ranks plays training jobs whose ranks wait for one another in each operation. A rank
// that computes longer enters it last, and waits least, while step times are equal. Pure: seeds
// come in, and time is the job's own.
package ranks // import "github.com/gpu-collector/gpu-collector/sim/ranks"

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Job is how a job is laid out, what its operations take, and what is peculiar about it.
// Times are in seconds.
type Job struct {
	TP, DP, PP, GPUs       int     // sizes of tensor, data and pipeline groups, in the order of ranks; of a node
	Micro, Blocks          int     // micro batches of a step, and blocks of a micro batch
	Work                   float64 // of a block forward; it takes twice as long on the way back
	Sharded                bool    // exchanges weights and gradients of each block, as FSDP does, not at the end of a step
	World                  bool    // all ranks meet at the end of a step
	TPTime, DPTime, PPTime float64 // of an operation once all have entered it
	Noise, Bias, Jitter    float64 // deviations: of each block, of each rank, of a transfer's logarithm

	Imbalance, ImbalanceEvery   float64 // a rank works longer by so much at most by design, as experts do, and each of these times another one
	LastStage                   float64 // the last stage of the pipeline works more by it
	Phase, PhaseEvery           float64 // the work of all changes by so much at most
	Checkpoint, CheckpointEvery float64 // all ranks write so long,
	FirstWrites                 bool    // or the first alone
	StartUp                     float64 // the first step takes a rank so much longer on average, the next half of that

	Faults []Fault
}

// Fault is there from a second of the job on.
type Fault struct {
	Kind, At int
	By, From float64
}

// The kinds of faults.
const (
	GPU   = iota // rank At computes slower by the part By; 1 stops it
	Host         // so do all ranks of node At
	Input        // rank At waits By seconds for its data at the begin of each step
	Rail         // links between nodes of the GPUs with index At lose the part By of their rate
)

// Ranks is how many there are.
func (j *Job) Ranks() int { return j.TP * j.DP * j.PP }

// Typical returns a job of so many tensor-parallel nodes, with steps of about half a second.
func Typical(nodes, gpus int) Job {
	return Job{
		TP: gpus, DP: nodes, PP: 1, GPUs: gpus, Micro: 2, Blocks: 2, World: true,
		Work: 0.03, TPTime: 0.006, DPTime: 0.08, PPTime: 0.002, Noise: 0.04, Bias: 0.01, Jitter: 0.1,
	}
}

// Play is a job that runs. It is used by one goroutine.
type Play struct {
	Ranks []Rank
	Done  []Operation // that ended in the last tick

	job   *Job
	rng   *rand.Rand
	begun []Operation // which end after the tick
	// Members of each communicator, by its name and the function.
	members map[string][][]*Traffic
	// until is the tick's end, now where the first rank was as the step began.
	until, now, phase, nextPhase, nextLoad, nextCheckpoint float64
	steps                                                  int
}

// Rank is one rank, and what it did in the last tick.
type Rank struct {
	Node    int
	Speed   float64 // of its GPU, 1 until the caller changes it; 0 stops the rank
	Seconds float64 // in operations, summed over its communicators
	Own     float64 // of work and of waiting for data, with Steps as many steps as began
	Steps   int
	Traffic []Traffic

	at, bias, load float64
}

// Traffic is what a rank did in one communicator by one function in the last tick.
type Traffic struct {
	ID, Name       string // of the communicator, as NCCL's Inspector has them
	Size, Nodes    int    // of the communicator
	Rank, CommRank int    // of the job, and among those of the communicator
	Function       string
	Bytes          int64   // of each message
	Count, Total   int     // of operations; since the job's start
	Seconds        float64 // in them, with the waiting
	Bandwidth      float64 // the greatest bus bandwidth, in bytes per second

	takes, bus, algorithm float64 // once all have come; bytes of these bandwidths
}

// Operation is one that a rank has done, in seconds since the job's start.
type Operation struct {
	*Traffic
	peer, number int
	began, ended float64
}

// New starts a job.
func New(job *Job, seed uint64) *Play {
	p := &Play{
		Ranks: make([]Rank, job.Ranks()), job: job, rng: rand.New(rand.NewPCG(seed, 0x72616e6b73)),
		members: map[string][][]*Traffic{}, phase: 1, nextPhase: job.PhaseEvery, nextCheckpoint: job.CheckpointEvery,
	}
	for r := range p.Ranks {
		// No Traffic moves: it is pointed at.
		p.Ranks[r] = Rank{Node: r / job.GPUs, Speed: 1, bias: 1 + job.Bias*p.rng.NormFloat64(), load: 1, Traffic: make([]Traffic, 0, 6)}
	}
	p.join("tp:0", job.TP, 1, job.TPTime, 16<<20, "AllReduce")
	if job.Sharded {
		p.join("dp:0", job.DP, job.TP, job.DPTime, 8<<20, "AllGather", "ReduceScatter")
	} else {
		p.join("dp:0", job.DP, job.TP, job.DPTime, 256<<20, "AllReduce")
	}
	p.join("pp:0", job.PP, job.TP*job.DP, job.PPTime, 2<<20, "Send", "Recv")
	if job.World {
		p.join("world:0", job.Ranks(), 1, 1e-3, 64<<10, "AllReduce")
	}
	return p
}

// join makes communicators of so many ranks, a stride apart, which do these functions.
func (p *Play) join(name string, size, stride int, takes float64, bytes int64, functions ...string) {
	n := float64(size) // the factors are those of nccl-tests
	factors := map[string][2]float64{"AllReduce": {2 * (n - 1) / n, 1}, "AllGather": {n - 1, n}, "ReduceScatter": {n - 1, n}, "Send": {1, 1}, "Recv": {1, 1}}
	for first := range p.Ranks {
		if size == 1 || first/stride%size != 0 {
			continue
		}
		nodes := min(size, (first%p.job.GPUs+(size-1)*stride)/p.job.GPUs+1)
		t := Traffic{ID: fmt.Sprintf("0x%014x", p.rng.Uint64()>>8), Name: name, Size: size, Nodes: nodes, Bytes: bytes, takes: takes}
		for _, function := range functions {
			t.Function, t.bus, t.algorithm = function, float64(bytes)*factors[function][0], float64(bytes)*factors[function][1]
			var members []*Traffic
			for t.CommRank = range size {
				t.Rank = first + t.CommRank*stride
				k := &p.Ranks[t.Rank]
				k.Traffic = append(k.Traffic, t)
				members = append(members, &k.Traffic[len(k.Traffic)-1])
			}
			p.members[name+function] = append(p.members[name+function], members)
		}
	}
}

// Advance plays a tick of dt seconds: Ranks then have the operations that ended in it.
func (p *Play) Advance(dt float64) {
	p.until += dt
	for r := range p.Ranks {
		k := &p.Ranks[r]
		k.Seconds, k.Own, k.Steps = 0, 0, 0
		for i := range k.Traffic {
			t := &k.Traffic[i]
			t.Count, t.Seconds, t.Bandwidth = 0, 0, 0
		}
	}
	first := func(a, b Rank) int { return cmp.Compare(a.at, b.at) }
	for p.now = slices.MinFunc(p.Ranks, first).at; p.now < p.until; p.now = slices.MinFunc(p.Ranks, first).at {
		p.step()
	}
	p.Done = p.Done[:0]
	p.begun = slices.DeleteFunc(p.begun, func(o Operation) bool {
		if o.ended > p.until {
			return false
		}
		t, seconds := o.Traffic, o.ended-o.began
		o.number = t.Total
		t.Count, t.Total = t.Count+1, t.Total+1
		t.Seconds, t.Bandwidth = t.Seconds+seconds, max(t.Bandwidth, t.bus/seconds)
		p.Ranks[t.Rank].Seconds += seconds
		p.Done = append(p.Done, o)
		return true
	})
}

// step plays one step of the job: what comes before it and changes with it, then all micro
// batches go through the stages, and back.
func (p *Play) step() {
	j, rng := p.job, p.rng
	due := func(amount, every float64, next *float64) (is bool) {
		if is = amount != 0 && p.now >= *next; is {
			*next = p.now + every
		}
		return is
	}
	if due(j.Phase, j.PhaseEvery, &p.nextPhase) {
		p.phase = 1 + j.Phase*(2*rng.Float64()-1)
	}
	loads, checkpoint := due(j.Imbalance, j.ImbalanceEvery, &p.nextLoad), due(j.Checkpoint, j.CheckpointEvery, &p.nextCheckpoint)
	for r := range p.Ranks {
		k := &p.Ranks[r]
		if loads {
			k.load = 1 + j.Imbalance*rng.Float64()
		}
		if checkpoint && (r == 0 || !j.FirstWrites) {
			k.at += j.Checkpoint * (0.9 + 0.2*rng.Float64())
		}
		if j.StartUp > 0 && p.steps < 4 {
			k.at += j.StartUp * (0.5 + rng.Float64()) / float64(int(1)<<p.steps)
		}
		late := p.lost(Input, r)
		k.at, k.Own, k.Steps = k.at+late, k.Own+late, k.Steps+1
	}
	for way := range 2 {
		for range j.Micro {
			for s := range j.PP {
				p.pass(s+way*(j.PP-1-2*s), way)
			}
		}
	}
	p.meet("dp:0AllReduce", 0, len(p.Ranks))
	p.meet("world:0AllReduce", 0, len(p.Ranks))
	p.steps++
}

// lost is what the faults of a kind at a rank, node or rail take in this step.
func (p *Play) lost(kind, at int) (by float64) {
	for _, f := range p.job.Faults {
		if f.Kind == kind && f.At == at && p.now >= f.From {
			by += f.By
		}
	}
	return by
}

// pass takes a micro batch through a stage, forward (way 0) or back (way 1). It comes from
// another stage: both ranks wait for each other.
func (p *Play) pass(s, way int) {
	j, n, from := p.job, p.job.TP*p.job.DP, s-1+2*way
	for i := 0; i < n && from >= 0 && from < j.PP; i++ {
		p.operate(p.members["pp:0Send"][i][from], p.members["pp:0Recv"][i][s])
	}
	work := float64(1+way) * j.Work * p.phase
	if s > 0 && s == j.PP-1 {
		work *= 1 + j.LastStage
	}
	for range j.Blocks {
		for r := s * n; r < (s+1)*n; r++ {
			k := &p.Ranks[r]
			takes := work * k.bias * k.load * max(0.1, 1+j.Noise*p.rng.NormFloat64()) / (k.Speed * (1 - p.lost(GPU, r) - p.lost(Host, k.Node)))
			k.at, k.Own = k.at+takes, k.Own+takes
		}
		p.meet("tp:0AllReduce", s*n, (s+1)*n)
		p.meet([]string{"dp:0AllGather", "dp:0ReduceScatter"}[way], s*n, (s+1)*n)
	}
}

// meet is an operation of all communicators that do such, and begin with such a rank.
func (p *Play) meet(what string, from, to int) {
	for _, members := range p.members[what] {
		if r := members[0].Rank; r >= from && r < to {
			p.operate(members...)
		}
	}
}

// operate is an operation of ranks. They leave it together, so much after the last has come.
func (p *Play) operate(all ...*Traffic) {
	end, lost := 0.0, 0.0
	for _, t := range all {
		if end = max(end, p.Ranks[t.Rank].at); t.Nodes > 1 {
			lost = max(lost, p.lost(Rail, t.Rank%p.job.GPUs))
		}
	}
	end += all[0].takes / (1 - lost) * math.Exp(p.job.Jitter*p.rng.NormFloat64())
	for i, t := range all {
		p.begun = append(p.begun, Operation{Traffic: t, peer: all[len(all)-1-i].CommRank, began: p.Ranks[t.Rank].at, ended: end})
		p.Ranks[t.Rank].at = end
	}
}

// Dump returns what NCCL's Inspector (2.30) in the process of each rank appends to its file after
// a tick, by the file's name: a line for each operation as inspector_json.cc writes it, those of
// one communicator after the other. A line takes 15 µs or so.
func (p *Play) Dump(at time.Time) map[string][]byte {
	slices.SortStableFunc(p.Done, func(a, b Operation) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Rank, b.Rank)) })
	files := map[string][]byte{}
	for _, o := range p.Done {
		kind, peer := "coll", ""
		if o.Function == "Send" || o.Function == "Recv" {
			kind, peer = "p2p", fmt.Sprintf(`"p2p_peer":%d,`, o.peer)
		}
		host, pid, micros := fmt.Sprintf("node-%06d", p.Ranks[o.Rank].Node), 1000+o.Rank, max(1, int64((o.ended-o.began)*1e6+0.5))
		file := fmt.Sprintf("%s-pid%d.log", host, pid)
		to := fmt.Appendf(files[file], `{"header":{"id":%q,"comm_name":%q,"rank":%d,"n_ranks":%d,"nnodes":%d},"metadata":{"inspector_output_format_version":"v4.0","git_rev":"unknown","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":%d,"hostname":%q,"pid":%d},`,
			o.ID, o.Name, o.CommRank, o.Size, o.Nodes, at.UnixMicro()+int64(len(files[file])/32), host, pid)
		files[file] = fmt.Appendf(to, `"%[1]s_perf":{%[1]q:%[2]q,%[3]s"%[1]s_sn":%[4]d,"%[1]s_msg_size_bytes":%[5]d,"%[1]s_exec_time_us":%[6]d,"%[1]s_timing_source":"kernel_gpu","%[1]s_algobw_gbs":%[7]f,"%[1]s_busbw_gbs":%[8]f}}`+"\n",
			kind, o.Function, peer, o.number, o.Bytes, micros, o.algorithm/float64(micros)/1e3, o.bus/float64(micros)/1e3)
	}
	return files
}
