// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// Recording are rates of a real job, by tick and node, in shares of the greatest. It is
// played over and over, from a tick that is drawn.
type Recording struct {
	Rates [][]float64
	// Peers are the values of each node's peer-group attributes.
	Peers [][]string
	// Slow nodes are slow in the recording itself: they do not count.
	Slow []int
}

// The recordings, from the root of the repository.
const (
	computeTimes = "configs/demo/step-times-AR.csv"
	wallTimes    = "test/scenarios/testdata/wall-times-AR.csv"
	gpuSteps     = "test/scenarios/testdata/h100-steps.csv"
)

// slowWorker was slowed on purpose, dp0-pp0 (configs/demo/README.md); the last stage does
// 5 % more work by design and is healthy.
const slowWorker = 0

// stageWorkers is how many workers a stage has: fewer than the default quorum.
const stageWorkers = 4

// Recorded are the families of real runs, from files below the root of the repository.
//
// The first is a job of 16 workers. By what each computed, every healthy worker is slowed
// in turn besides the one that was. By what its steps took all workers are alike: they
// wait for that one. The second is one GPU, whose steps are dealt to nodes.
func Recorded(root string) ([]Family, error) {
	compute, err1 := readJob(filepath.Join(root, computeTimes), "compute_s")
	wall, err2 := readJob(filepath.Join(root, wallTimes), "wall_s")
	rows, err3 := readColumns(filepath.Join(root, gpuSteps), "wall_ms")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	compute.Slow = []int{slowWorker}
	trace := make([]float64, len(rows))
	for i, row := range rows {
		trace[i] = row[0] / 1000
	}
	workers := len(compute.Peers) - 1
	return []Family{
		ofJob("ar-10", compute, workers, 0.10),
		ofJob("ar-20", compute, workers, 0.20),
		ofJob("ar-wall", wall, 1, 0),
		ofGPU("h100", trace, 3, 0),
		ofGPU("h100-5", trace, 12, 0.05),
		ofGPU("h100-10", trace, 12, 0.10),
		ofGPU("h100-20", trace, 12, 0.20),
	}, nil
}

// recorded is a family of six hours, in which a node loses a share for one. It lasts a week
// where nothing is lost.
func recorded(name string, runs int, loss float64, change func(*draw, *Model)) Family {
	return newFamily(name, runs, func(d *draw, m *Model) {
		m.Length, m.Sigma, m.Phi = 6*time.Hour, 0, 0
		m.Fault = FaultLaw{Begin: 2 * time.Hour, To: 5 * time.Hour, For: time.Hour, Loss: loss}
		change(d, m)
		m.Fault.Nodes = 1
		if loss == 0 {
			m.Length, m.Fault.Nodes = 7*24*time.Hour, 0
		}
	})
}

func ofJob(name string, r *Recording, runs int, loss float64) Family {
	return recorded(name, runs, loss, func(d *draw, m *Model) {
		d.nodes(m, len(r.Peers))
		m.Recording = r
		m.Fault.First = slowWorker + 1 + d.run%runs
	})
}

func ofGPU(name string, trace []float64, runs int, loss float64) Family {
	law := &Steps{Time: time.Duration(figure.Median(trace) * float64(time.Second)), Trace: trace}
	return recorded(name, runs, loss, func(d *draw, m *Model) {
		d.nodes(m, []int{8, 16, 64}[d.run%3])
		m.Steps = law
	})
}

// readJob reads the seconds of each step of a job, one step a tick.
func readJob(path, seconds string) (*Recording, error) {
	rows, err := readColumns(path, seconds, "pp_rank", "step")
	if err != nil {
		return nil, err
	}
	r, last, fastest := &Recording{}, -1.0, math.Inf(1)
	for _, row := range rows {
		fastest = min(fastest, row[0])
	}
	for _, row := range rows {
		if row[2] != last {
			last = row[2]
			r.Rates = append(r.Rates, nil)
		}
		step := len(r.Rates) - 1
		r.Rates[step] = append(r.Rates[step], fastest/row[0])
		if step == 0 {
			r.Peers = append(r.Peers, []string{"AR", fmt.Sprintf("stage-%g", row[1])})
		}
	}
	return r, nil
}

// readColumns reads the numbers of some columns of a file; the first of them are times.
func readColumns(path string, names ...string) ([][]float64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	rows := make([][]float64, len(lines)-1)
	for _, name := range names {
		at := slices.Index(lines[0], name)
		if at < 0 {
			return nil, fmt.Errorf("%s: has no column %s", path, name)
		}
		for i, line := range lines[1:] {
			x, err := strconv.ParseFloat(line[at], 64)
			if err != nil || name == names[0] && x <= 0 {
				return nil, fmt.Errorf("%s: %s %q is no number, or no time", path, name, line[at])
			}
			rows[i] = append(rows[i], x)
		}
	}
	return rows, nil
}
