// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// form of the files of a job.
type form struct {
	release ranks.Release
	dumps   bool // the Prometheus form
	verbose bool
	each    time.Duration // between two dumps
}

// trained is a job in lockstep whose ranks write what NCCL's Inspector does, each in a
// container of its own.
type trained struct {
	*rig
	job    ranks.Job
	play   *ranks.Play
	form   form
	faults ranks.Faults
	began  time.Time
	at     time.Time
	ranks  []*ranks.Inspector
	paths  []string
}

// drawJob lays out a job of two nodes of eight GPUs.
func drawJob(rng *rand.Rand) ranks.Job {
	tp, pp := 2<<rng.IntN(2), 1+rng.IntN(2)
	j := ranks.Job{
		TP: tp, PP: pp, DP: 16 / tp / pp, GPUs: 8, MicroBatches: 4, Blocks: 2, Backward: 2,
		Noise: 0.01 + 0.03*rng.Float64(), Bias: 0.01 * rng.Float64(), Jitter: 0.02,
		TensorBytes: 1 << (20 + rng.IntN(6)), DataBytes: 1 << (26 + rng.IntN(4)), PipeBytes: 8 << 20,
	}
	step := 0.5 + rng.Float64()
	j.Compute = step / float64(j.MicroBatches*j.Blocks) / (1 + j.Backward)
	j.TensorTime, j.DataTime, j.PipeTime = j.Compute*(0.05+0.2*rng.Float64()), step*(0.1+0.2*rng.Float64()), j.Compute*0.02
	return j
}

func gpuOf(rank int) string { return fmt.Sprintf("GPU-0c1c2d7e-3f0a-4d53-a0e2-cc%010d", rank) }

func train(t *testing.T, rng *rand.Rand, job ranks.Job, f form) *trained {
	require.NoError(t, job.Validate())
	proc, begun := t.TempDir(), time.Unix(1_800_000_000, 0)
	r := &trained{job: job, play: ranks.New(job, rng), form: f, began: begun, at: begun}
	r.rig = newRig(t, func(c *Config) {
		c.ProcPath = proc
		c.Directories = []string{filepath.Join(c.Directories[0], "*")}
	})
	r.s.procs.gpus = &gpuholders.Book{}
	r.s.now = func() time.Time { return r.at.Add(settled) }
	for i := range job.Ranks() {
		p := &ranks.Inspector{Release: f.release, Verbose: f.verbose, Host: "node", PID: 1, SlurmJob: "42", GPU: i % 8, Start: begun}
		dir, name := filepath.Join(r.dir, fmt.Sprint("p", i)), p.File()
		env := []string{"HOSTNAME=node", fmt.Sprint("RANK=", i), "SLURM_JOB_ID=42", "CUDA_VISIBLE_DEVICES=" + gpuOf(i)}
		if f.dumps {
			name, env = ranks.PrometheusFile(gpuOf(i)), append(env, "NCCL_INSPECTOR_PROM_DUMP=1")
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.Mkdir(dir, 0o755))
		r.add(path, "")
		r.contain(proc, container{pid: 500 + i, env: env, open: path})
		r.ranks, r.paths = append(r.ranks, p), append(r.paths, path)
	}
	r.play.Watch(func(o *ranks.Operation) { r.ranks[o.Rank].Take(o) })
	r.scrape()
	return r
}

// run plays the job for half a minute, and lets its processes dump.
func (r *trained) run() {
	r.t.Helper()
	for end := r.at.Add(30 * time.Second); r.at.Before(end); {
		r.at = r.at.Add(r.form.each)
		for r.began.Add(time.Duration(r.play.Now() * float64(time.Second))).Before(r.at) {
			r.play.Step(&r.faults)
		}
		for i, p := range r.ranks {
			if !r.form.dumps {
				r.add(r.paths[i], string(p.Dump(nil, r.at)))
				continue
			}
			if text := p.DumpPrometheus(nil, r.at); len(text) > 0 {
				require.NoError(r.t, os.WriteFile(r.paths[i], text, 0o777))
				require.NoError(r.t, os.Chtimes(r.paths[i], r.at, r.at))
			}
		}
	}
}

// told is what the receiver says of a minute: the shares by rank, and the best bandwidth
// by communicator.
func (r *trained) told() (shares []float64, bandwidth map[string]float64) {
	r.t.Helper()
	n := r.job.Ranks()
	shares, bandwidth = make([]float64, n), map[string]float64{}
	for range 2 {
		r.run()
		got := r.scrape()
		for key, v := range got {
			words := strings.Fields(key)
			switch words[0] {
			case "gpu.collective.time_share":
				rank, err := strconv.Atoi(words[2])
				require.NoError(r.t, err)
				require.Equal(r.t, gpuOf(rank), words[3])
				shares[rank] += v / 2
			case "gpu.communicator.bandwidth":
				bandwidth[words[4]] = max(bandwidth[words[4]], v)
			}
		}
	}
	return shares, bandwidth
}

// late is the rank whose share is lower by more than others of its stage differ.
func (r *trained) late(shares []float64) int {
	stage, least, found := r.job.TP*r.job.DP, 0.02, -1
	for s := range r.job.PP {
		of := slices.Sorted(slices.Values(shares[s*stage : (s+1)*stage]))
		if gap := of[1] - of[0]; gap > least {
			least, found = gap, slices.Index(shares, of[0])
		}
	}
	return found
}

// slow are the communicators with less bandwidth than most of their size.
func (r *trained) slow(bandwidth map[string]float64) (ids []string) {
	like := map[ranks.Kind]map[string]float64{ranks.Tensor: {}, ranks.Data: {}}
	for rank := range r.job.Ranks() {
		for k, of := range like {
			if c, _ := r.play.Communicator(k, rank); c != nil {
				of[c.ID] = bandwidth[c.ID]
			}
		}
	}
	for _, of := range like {
		all := slices.Sorted(maps.Values(of))
		for id, v := range of {
			if v < all[len(all)/2]/1.15 {
				ids = append(ids, id)
			}
		}
	}
	return ids
}

func TestAJobInLockstep(t *testing.T) {
	for name, f := range map[string]form{
		"JSON":       {release: ranks.NCCL230, each: 500 * time.Millisecond},
		"verbose":    {release: ranks.NCCL230, each: time.Second, verbose: true},
		"Prometheus": {release: ranks.NCCLCounts, each: 30 * time.Second, dumps: true},
	} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(name, " ", seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 7))
				r := train(t, rng, drawJob(rng), f)
				r.told() // its files were there before the receiver
				r.play.Shares(1, nil)

				shares, bandwidth := r.told()
				truth := r.play.Shares(60, nil)
				for rank := range shares {
					assert.InDelta(t, truth[rank], shares[rank], 0.03, "rank %d", rank)
				}
				assert.Equal(t, -1, r.late(shares), "healthy: %v", shares)
				assert.Empty(t, r.slow(bandwidth))

				late := rng.IntN(r.job.Ranks())
				r.faults.Slower = make([]float64, r.job.Ranks())
				r.faults.Slower[late] = 0.2
				r.run()
				r.scrape()
				shares, bandwidth = r.told()
				assert.Equal(t, late, r.late(shares), "%v", shares)
				assert.Empty(t, r.slow(bandwidth), "who is late slows no link")

				r.faults = ranks.Faults{Rail: 1.5 + rng.Float64(), RailOf: rng.IntN(r.job.TP)}
				r.run()
				r.scrape()
				shares, bandwidth = r.told()
				assert.Equal(t, -1, r.late(shares), "all arrive alike: %v", shares)
				if f.dumps {
					assert.Empty(t, bandwidth, "a mean is not the links' own")
					return
				}
				want := map[string]bool{}
				for rank := range r.job.Ranks() {
					if c, _ := r.play.Communicator(ranks.Data, rank); rank%r.job.TP == r.faults.RailOf && r.play.DataGroup(rank)%8 == r.faults.RailOf {
						want[c.ID] = true
					}
				}
				assert.ElementsMatch(t, slices.Collect(maps.Keys(want)), r.slow(bandwidth))
			})
		}
	}
}

// Each release tells what it can: up to 2.29 one operation of a communicator and dump.
func TestEveryRelease(t *testing.T) {
	const (
		share, bandwidth, rate, duration = "gpu.collective.time_share", "gpu.communicator.bandwidth", "gpu.collective.bandwidth", "gpu.collective.duration"
		operations, progress             = "gpu.collective.operations", "gpu.collective.last_progress"
	)
	sums := []string{"gpu.collective.io", operations, "gpu.collective.time", share, "gpu.communicator.time_share"}
	always := []string{rate, duration, progress, "gpu.collective.longest_pause"}
	for name, tt := range map[string]struct {
		form
		communicators int // of a rank
		want          []string
	}{
		"2.28":             {form{release: ranks.NCCL228, each: time.Second}, 2, slices.Concat(always, sums, []string{bandwidth})},
		"2.29":             {form{release: ranks.NCCL229, each: time.Second}, 2, slices.Concat(always, sums, []string{bandwidth})},
		"2.30":             {form{release: ranks.NCCL230, each: time.Second}, 3, slices.Concat(always, sums, []string{bandwidth})},
		"2.29, Prometheus": {form{release: ranks.NCCL229, each: 30 * time.Second, dumps: true}, 2, always},
		"2.30, Prometheus": {form{release: ranks.NCCL230, each: 30 * time.Second, dumps: true}, 3, always},
		"with counts":      {form{release: ranks.NCCLCounts, each: 30 * time.Second, dumps: true}, 3, slices.Concat(always, sums)},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 7))
			job := drawJob(rng)
			job.TP, job.DP, job.PP = 4, 2, 2
			r := train(t, rng, job, tt.form)
			r.told()
			r.run()
			got := r.scrape()
			names := map[string]int{}
			for key := range got {
				if words := strings.Fields(key); words[2] == "9" { // of the second stage, which receives
					names[words[0]]++
				}
			}
			assert.ElementsMatch(t, tt.want, slices.Collect(maps.Keys(names)))
			if tt.release != ranks.NCCL230 || !tt.dumps { // which tells no communicators apart but by their names
				assert.Equal(t, tt.communicators, names[progress])
			}
			whole := tt.release >= ranks.NCCL230
			truth := r.play.Shares(90, nil)[9]
			if v, known := got[share+" 42 9 "+gpuOf(9)]; known {
				assert.Equal(t, whole, v > 0.9*truth, "%v of %v", v, truth)
			}
		})
	}
}
