// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/test/scenarios/families"
)

// Recording of a real run: compute seconds per step of each worker. One step
// is one tick; the recording is played over and over.
type Recording struct {
	// Quorum of the peer groups: a stage has fewer workers than the default.
	Quorum int

	stages  [][]string  // peers of each worker
	seconds [][]float64 // by step and worker
	faulty  []bool
	fastest float64
}

// slowed is the worker that was slowed on purpose, dp0-pp0
// (configs/demo/README.md); the last stage does 5 % more work by design and is
// healthy.
const slowed = 0

// The recordings of a run, from the root of the repository, and their columns of seconds:
// what each worker computed, and what each step took by the worker's own clock.
const (
	ComputeTimes  = "configs/demo/step-times-AR.csv"
	ComputeColumn = "compute_s"
	WallTimes     = "test/scenarios/testdata/wall-times-AR.csv"
	WallColumn    = "wall_s"
)

// ReadRecording reads one of the recordings.
func ReadRecording(path, column string) (*Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	r := csv.NewReader(f)
	names, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	at := slices.Index(names, column)
	if at < 0 {
		return nil, fmt.Errorf("%s: has the columns %s, not %s", path, strings.Join(names, ", "), column)
	}
	rec := &Recording{Quorum: 4, fastest: math.Inf(1)}
	last := ""
	for {
		row, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if row[1] != last {
			last = row[1]
			rec.seconds = append(rec.seconds, nil)
		}
		s, err := strconv.ParseFloat(row[at], 64)
		if err != nil || s <= 0 {
			return nil, fmt.Errorf("%s: %s %q is not a time", path, column, row[at])
		}
		step := len(rec.seconds) - 1
		if step == 0 {
			rec.stages = append(rec.stages, []string{"AR", "stage-" + row[3]})
		}
		rec.seconds[step] = append(rec.seconds[step], s)
		rec.fastest = min(rec.fastest, s)
	}
	for i, step := range rec.seconds {
		if len(step) != len(rec.stages) {
			return nil, fmt.Errorf("%s: step %d has %d workers, not %d", path, i, len(step), len(rec.stages))
		}
	}
	rec.faulty = make([]bool, len(rec.stages))
	rec.faulty[slowed] = true
	return rec, nil
}

// Scenario of the recording: a day and a half of it. The fault is there from
// the first step on.
func (r *Recording) Scenario() Scenario {
	return Scenario{
		ID: "R", Name: "real run, one of 16 workers slowed", Recording: r, Nodes: len(r.stages),
		Length: 36 * time.Hour, Runs: 1, Promise: promiseSlow,
	}
}

// rates are the recording as a family has it.
func (r *Recording) rates(slow ...int) *families.Recording {
	out := &families.Recording{Peers: r.stages, Slow: slow}
	for _, seconds := range r.seconds {
		rates := make([]float64, len(seconds))
		for i, s := range seconds {
			rates[i] = 1 / s
		}
		out.Rates = append(out.Rates, rates)
	}
	return out
}

// RecordedFamilies are those of a real run. By what it computed, each healthy worker in
// turn is slowed besides the one that was. By what its steps took all workers are alike:
// they wait for that one.
func RecordedFamilies(compute, wall *Recording) []families.Family {
	var healthy []int
	for i := range compute.stages {
		if i != slowed {
			healthy = append(healthy, i)
		}
	}
	rates := compute.rates(slowed)
	return []families.Family{
		families.Recorded("recorded", rates, healthy, 0.1, 0),
		families.Recorded("recorded30", rates, healthy, 0.1, 0.3),
		families.Recorded("lockstep", wall.rates(), nil, 0, 0),
	}
}

func (r *Recording) play() *replay {
	return &replay{Recording: r, values: make([]float64, len(r.stages))}
}

type replay struct {
	*Recording
	step   int
	values []float64
}

func (r *replay) next() []float64 {
	for i, s := range r.seconds[r.step%len(r.seconds)] {
		r.values[i] = 1 / s
	}
	r.step++
	return r.values
}

func (r *replay) more(int, *nodesignal.Values) {}

func (r *replay) truth() []bool { return r.faulty }

func (r *replay) peers(node int) []string { return r.stages[node] }

// scoreScale makes the fastest step's score 1.
func (r *replay) scoreScale() float64 { return r.fastest }
