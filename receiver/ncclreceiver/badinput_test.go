// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpuholders"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
	"github.com/gpu-collector/gpu-collector/test/fakeras"
)

// told is a rig whose own metrics are kept.
func told(t *testing.T, change func(*Config)) (*rig, *componenttest.Telemetry) {
	t.Helper()
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	r := newRig(t, change)
	core, logs := observer.New(zap.DebugLevel)
	set := receiver.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}
	set.Logger, r.logs = zap.New(core), logs
	s, err := newScraper(r.s.cfg, set)
	require.NoError(t, err)
	r.s = s
	t.Cleanup(s.stalls.shutdown)
	r.s.procs.gpus = &gpuholders.Book{}
	return r, tel
}

// counted is the sum of a metric's points with an attribute.
func counted(t *testing.T, tel *componenttest.Telemetry, metric string, key attribute.Key, value string) (sum int64) {
	t.Helper()
	m, err := tel.GetMetric(metric)
	require.NoError(t, err)
	for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
		if v, ok := p.Attributes.Value(key); ok && v.AsString() == value {
			sum += p.Value
		}
	}
	return sum
}

// Each kind of bad input is logged once and counted each time, and hurts no other file.
func TestEachBadInputIsLoggedOnceAndCounted(t *testing.T) {
	const dumps = "NCCL_INSPECTOR_PROM_DUMP=1"
	const next = `{"v":5,"group":{"hash":"0xa","place":3,"of":8},"op":{"kind":"AllReduce","ns":250000000}}` + "\n"
	for name, tt := range map[string]struct {
		want cause
		// begin makes the file, and more writes to it before each scrape.
		begin func(r *rig, proc string)
		more  func(*rig)
	}{
		"a file of another version": {noOperation, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: r.empty("n0-pid601.log")})
		}, func(r *rig) { r.add(filepath.Join(r.dir, "n0-pid601.log"), next) }},
		"garbage": {noOperation, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: r.empty("n0-pid601.log")})
		}, func(r *rig) { r.add(filepath.Join(r.dir, "n0-pid601.log"), "\x00\xff\x07\n"+r.line("0xb", 1)) }},
		"a line without end": {noOperation, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: r.empty("n0-pid601.log")})
		}, func(r *rig) {
			r.add(filepath.Join(r.dir, "n0-pid601.log"), strings.Repeat("x", 70_000)+"\n")
		}},
		"a dump of garbage": {noOperation, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1", dumps, "CUDA_VISIBLE_DEVICES=" + gpuOf(1)}})
		}, func(r *rig) { r.rewrite(ranks.PrometheusFile(gpuOf(1)), "{{{\n") }},
		"a dump of another program": {noOperation, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1", dumps, "CUDA_VISIBLE_DEVICES=" + gpuOf(1)}})
		}, func(r *rig) { r.rewrite(ranks.PrometheusFile(gpuOf(1)), "node_load1 3\n") }},
		"a dump without end": {tooLong, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1", dumps, "CUDA_VISIBLE_DEVICES=" + gpuOf(1)}})
		}, func(r *rig) {
			r.rewrite(ranks.PrometheusFile(gpuOf(1)), strings.Repeat("x", 5<<20))
		}},
		"a dead process's file": {noProcess, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: r.empty("n0-pid601.log")})
			r.scrape()
			require.NoError(r.t, os.RemoveAll(filepath.Join(proc, "601")))
		}, nil},
		"a process id that is used again": {noProcess, func(r *rig, proc string) {
			path := r.empty("n0-pid601.log")
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: path})
			r.scrape()
			require.NoError(r.t, os.RemoveAll(filepath.Join(proc, "601")))
			r.contain(proc, container{pid: 601, inner: 601, start: 5, env: []string{"X=1"}, bare: true})
		}, nil},
		"a file of another user": {foreignUser, func(r *rig, proc string) {
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: r.empty("n0-pid601.log"), uid: os.Getuid() + 1})
		}, nil},
		"a symbolic link out of the folder": {notAFile, func(r *rig, proc string) {
			path := filepath.Join(r.dir, "n0-pid601.log")
			require.NoError(r.t, os.Symlink("/etc/passwd", path))
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}, open: path})
		}, nil},
		"a pipe": {notAFile, func(r *rig, proc string) {
			path := filepath.Join(r.dir, "n0-pid601.log")
			require.NoError(r.t, syscall.Mkfifo(path, 0o600))
			r.contain(proc, container{pid: 601, inner: 601, env: []string{"RANK=1"}})
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			proc := t.TempDir()
			r, tel := told(t, func(c *Config) { c.ProcPath, c.RAS.Enabled = proc, false })
			good := r.empty("n0-pid600.log")
			r.contain(proc, container{pid: 600, inner: 600, env: []string{"RANK=0"}, open: good})
			r.scrape()
			tt.begin(r, proc)
			r.scrape()
			for range 3 {
				r.later(time.Second)
				r.add(good, r.line("0xa", 250))
				if tt.more != nil {
					tt.more(r)
				}
				r.scrape()
			}
			r.later(time.Second)
			r.add(good, r.line("0xa", 250))
			assert.InDelta(t, 0.25, r.scrape()["gpu.collective.time_share  0"], 1e-9)
			assert.Equal(t, 1, r.warned(string(tt.want)), r.logs.All())
			assert.Equal(t, 1, r.logs.Len())
			assert.GreaterOrEqual(t, counted(t, tel, "otelcol_receiver_nccl_failures", "cause", string(tt.want)), int64(3))
		})
	}
}

// empty makes a file in the folder.
func (r *rig) empty(name string) string {
	path := filepath.Join(r.dir, name)
	r.add(path, "")
	return path
}

// rewrite writes a file of the Prometheus form anew, each time older by less.
func (r *rig) rewrite(name, text string) {
	path := filepath.Join(r.dir, name)
	require.NoError(r.t, os.WriteFile(path, []byte(text), 0o666))
	at := time.Now().Add(r.at - 3*time.Hour)
	require.NoError(r.t, os.Chtimes(path, at, at))
}

// A service that never answers, or never stops, holds up no scrape and no shutdown.
func TestABadRASIsLoggedOnceAndCounted(t *testing.T) {
	endless := func(text string) func(string, net.Conn) bool {
		return func(_ string, to net.Conn) bool {
			for {
				if _, err := fmt.Fprint(to, text); err != nil {
					return false
				}
			}
		}
	}
	for name, answer := range map[string]func(string, net.Conn) bool{
		"never answers": func(string, net.Conn) bool { return true },
		"never stops":   endless("SERVER PROTOCOL 2\nOK\n"),
		"hangs up":      func(string, net.Conn) bool { return false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proc, clock := t.TempDir(), time.Unix(1000, 0)
			r, tel := told(t, func(c *Config) { c.ProcPath, c.RAS.Endpoint = proc, fakeras.Serve(t, answer) })
			r.s.now = func() time.Time { return clock }
			good := r.empty("n0-pid600.log")
			r.contain(proc, container{pid: 600, inner: 600, env: []string{"RANK=0", "SLURM_JOB_ID=7"}, open: good})
			r.scrape()
			r.move(good, &clock)
			for asked := int64(1); asked <= 2; asked++ {
				clock = clock.Add(5 * time.Minute)
				ctx, stop := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer stop()
				r.s.stalls.ctx = ctx //nolint:fatcontext // in place of the time that RAS is given
				began := time.Now()
				assert.NotContains(t, r.scrape(), laggard)
				assert.Less(t, time.Since(began), answerWait+5*time.Second)
				r.s.stalls.done.Wait()
				r.scrape()
				assert.Equal(t, asked, counted(t, tel, "otelcol_receiver_nccl_ras_polls", "outcome", "failed"))
			}
			assert.Equal(t, 1, r.logs.Len(), "once")
		})
	}
}

// Nobody removes the files of dead processes: they cost a look at their name, and not one
// at all processes each.
func TestAFolderOfDeadFiles(t *testing.T) {
	proc := t.TempDir()
	r, tel := told(t, func(c *Config) { c.ProcPath, c.RAS.Enabled = proc, false })
	for i := range 40 {
		r.contain(proc, container{pid: 600 + i, inner: 600 + i, env: []string{fmt.Sprint("RANK=", i)}})
	}
	cost := func(files int) float64 {
		for i := range files {
			r.empty(fmt.Sprintf("n0-pid%d.log", 100_000+i))
		}
		r.scrape()
		return testing.AllocsPerRun(3, func() { r.scrape() })
	}
	few := cost(10)
	assert.Less(t, (cost(110)-few)/100, 100.0, "allocations a file")
	assert.Equal(t, 110, r.warned(string(noProcess)))
	assert.GreaterOrEqual(t, counted(t, tel, "otelcol_receiver_nccl_failures", "cause", string(noProcess)), int64(500))
}
