// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// BenchmarkScrape reads what eight ranks with 500 operations a second each have written
// between two scrapes, by the clock of the job. The Prometheus form has a dump in each.
func BenchmarkScrape(b *testing.B) {
	const gpus, perSecond = 8, 500
	for name, tt := range map[string]struct {
		release ranks.Release
		every   time.Duration
	}{
		"json":       {ranks.NCCL230, defaultInterval},
		"prometheus": {ranks.NCCLCounts, dumpEach},
	} {
		b.Run(name, func(b *testing.B) {
			dumps, at := tt.release == ranks.NCCLCounts, time.Unix(1_800_000_000, 0)
			proc := b.TempDir()
			r := newRig(b, func(c *Config) {
				c.ProcPath, c.Metrics = proc, createDefaultConfig().(*Config).Metrics
				c.Directories = []string{filepath.Join(c.Directories[0], "*")}
			})
			r.s.procs.gpus = &gpuholders.Book{}
			r.s.now = func() time.Time { return at.Add(settled) }
			var writers []*ranks.Inspector
			var paths []string
			for i := range gpus {
				w := &ranks.Inspector{Release: tt.release, Host: "node", PID: 1, Start: at}
				dir, name := filepath.Join(r.dir, fmt.Sprint("p", i)), w.File()
				env := []string{"HOSTNAME=node", fmt.Sprint("RANK=", i), "SLURM_JOB_ID=42", "CUDA_VISIBLE_DEVICES=" + gpuOf(i)}
				if dumps {
					name, env = ranks.PrometheusFile(gpuOf(i)), append(env, "NCCL_INSPECTOR_PROM_DUMP=1")
				}
				require.NoError(b, os.Mkdir(dir, 0o755))
				writers, paths = append(writers, w), append(paths, filepath.Join(dir, name))
				r.add(paths[i], "")
				r.contain(proc, container{pid: 500 + i, env: env, open: paths[i]})
			}
			r.scrape()
			write := func() {
				for end := at.Add(tt.every); at.Before(end); {
					next := at.Add(time.Second)
					for i, w := range writers {
						w.Load(perSecond, i, at, next)
						if !dumps {
							r.add(paths[i], string(w.Dump(nil, next)))
						}
					}
					at = next
				}
				if !dumps {
					return
				}
				for i, w := range writers {
					require.NoError(b, os.WriteFile(paths[i], w.DumpPrometheus(nil, at), 0o777))
					require.NoError(b, os.Chtimes(paths[i], at, at))
				}
			}
			write()
			r.scrape() // the first tells of no share
			points := 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				write()
				b.StartTimer()
				md, err := r.s.scrape(b.Context())
				require.NoError(b, err)
				points = md.DataPointCount()
			}
			require.Zero(b, r.s.bad)
			each := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
			records := gpus * perSecond * tt.every.Seconds()
			b.ReportMetric(each/records, "ns/record")
			b.ReportMetric(100*each/float64(tt.every.Nanoseconds()), "%core")
			b.ReportMetric(float64(points), "points")
		})
	}
}
