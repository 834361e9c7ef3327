// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/sim/ranks"
)

// ncclJob is a job on simulated nodes. A process for each GPU writes what NCCL's Inspector
// would.
type ncclJob struct {
	at        time.Time
	nodes     *fleetsim.Job
	play      *ranks.Play
	inspector []*ranks.Inspector
	files     []*os.File
}

func newNCCLJob(c *fleetpush.Config, folder string) (*ncclJob, error) {
	job := ranks.Typical(c.Nodes, c.GPUs)
	j := &ncclJob{
		at: c.Start, play: ranks.New(&job, c.Seed),
		nodes: fleetsim.NewJob(&fleetsim.H100, c.Nodes, c.GPUs, fleetsim.JobConfig{Seed: c.Seed}),
	}
	for i := range c.Faults {
		for _, node := range c.Faults[i].Nodes(c.Nodes) {
			j.nodes.Nodes()[node].Inject(c.Faults[i].Fault)
		}
	}
	j.inspector = j.play.Inspect(ranks.Inspector{Start: c.Start}, 1)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return nil, err
	}
	for _, i := range j.inspector {
		f, err := root.Create(i.File())
		if err != nil {
			return nil, err
		}
		j.files = append(j.files, f)
	}
	return j, nil
}

// tick moves the job on to a time, and has its processes write.
func (j *ncclJob) tick(to time.Time) (err error) {
	by, nodes := to.Sub(j.at), j.nodes.Nodes()
	j.at = to
	j.nodes.Advance(by)
	for r := range j.play.Speed {
		gpus := len(j.play.Speed) / len(nodes)
		j.play.Speed[r] = nodes[r/gpus].Speed(r % gpus)
	}
	j.play.Advance(by.Seconds())
	for i, f := range j.files {
		err = errors.Join(err, j.inspector[i].Dump(f, to))
	}
	return err
}

// writeNCCL runs a job until ctx ends. The files are open until the process ends.
func writeNCCL(ctx context.Context, o *options) error {
	j, err := newNCCLJob(&o.fleet, o.nccl)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case to := <-ticker.C:
			err = j.tick(to)
		}
	}
	return err
}
