// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// The load of a node with tensor-parallel jobs: eight ranks with 500 operations a second.
// JSON is dumped twice a second. The Prometheus form is written anew before each scrape, not
// each 30 s as by the plug-in.
const (
	rankCount = 8
	perSecond = 500
	dumpJSON  = 500 * time.Millisecond
	dumpProm  = 7 * time.Second
)

// writers are processes that say that they have NCCL's Inspector, and their files.
type writers struct {
	prom  bool
	ranks []*exec.Cmd
	each  []*ranks.Inspector
	files []*os.File
	stop  context.CancelFunc
	done  chan error
}

// startRanks starts them, and writes what they would.
func startRanks(ctx context.Context, dir string, prom bool) (*writers, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &writers{prom: prom, stop: cancel, done: make(chan error, 1)}
	begun := time.Now()
	for i := range rankCount {
		cmd, uuid := exec.CommandContext(ctx, "sleep", "600"), fmt.Sprintf("00000000-0000-4000-8000-%012d", i)
		cmd.Env = []string{
			"NCCL_INSPECTOR_ENABLE=1", "HOSTNAME=n0", fmt.Sprint("RANK=", i), fmt.Sprint("LOCAL_RANK=", i), "SLURM_JOB_ID=42",
			"CUDA_VISIBLE_DEVICES=GPU-" + uuid,
		}
		if prom {
			cmd.Env = append(cmd.Env, "NCCL_INSPECTOR_PROM_DUMP=1")
		}
		if err := cmd.Start(); err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.ranks = append(w.ranks, cmd)
		p := &ranks.Inspector{Release: ranks.NCCL230, Host: "n0", PID: cmd.Process.Pid, SlurmJob: "42", GPU: i, Start: begun}
		name := p.File()
		if prom {
			p.Release, name = ranks.NCCLCounts, ranks.PrometheusFile(uuid)
		}
		w.each = append(w.each, p)
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		w.files = append(w.files, f)
	}
	go func() { w.done <- w.write(ctx, begun) }()
	return w, nil
}

func (w *writers) write(ctx context.Context, last time.Time) error {
	every := dumpJSON
	if w.prom {
		every = dumpProm
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	var dump []byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			for i, f := range w.files {
				w.each[i].Load(int(perSecond*every.Seconds()), i, last, now)
				if !w.prom {
					dump = w.each[i].Dump(dump[:0], now)
				} else {
					dump = w.each[i].DumpPrometheus(dump[:0], now)
					if err := f.Truncate(0); err != nil {
						return err
					}
					if _, err := f.Seek(0, io.SeekStart); err != nil {
						return err
					}
				}
				if _, err := f.Write(dump); err != nil {
					return err
				}
				if !w.prom {
					continue
				}
				// It is believed at once, so that every scrape has one.
				if at := now.Add(-time.Second); os.Chtimes(f.Name(), at, at) != nil {
					return fmt.Errorf("%s keeps its time", f.Name())
				}
			}
			last = now
		}
	}
}

func (w *writers) close() error {
	w.stop()
	for _, cmd := range w.ranks {
		_ = cmd.Wait() // it was killed
	}
	var errs []error
	for _, f := range w.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
