// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
)

// maxOps bounds a recording: 4 million operations are a gigabyte of text.
// A recording has about twenty kinds of operations; more foreign names are not listed.
const (
	maxOps     = 4 << 20
	maxForeign = 32
)

// event is a Chrome trace event: https://chromium.googlesource.com/catapult, Trace
// Event Format. Times are microseconds.
type event struct {
	Name     string  `json:"name"`
	Phase    string  `json:"ph"`
	PID      int     `json:"pid"`
	TID      int     `json:"tid"`
	TS       float64 `json:"ts"`
	Duration float64 `json:"dur"`
	Args     struct {
		Name  string `json:"name"`
		Step  *int   `json:"step"`
		Chunk *int   `json:"model_chunk"`
		Seq   *int   `json:"seq_id"`
	} `json:"args"`
}

var (
	dpName    = regexp.MustCompile(`DP rank \[(\d+)\]`)
	stageName = regexp.MustCompile(`PP rank (\d+), TP rank (\d+)`)
)

// ReadTrace reads the operations out of a recording of ByteDance-Seed/StragglerAnalysis:
// Chrome trace events, in which a process is a data-parallel rank and a thread's name
// says the stage. Only the first tensor-parallel rank counts; the others wait with it.
// Foreign are the names of operations that the analysis does not know; they are left out.
func ReadTrace(r io.Reader) (ops []Op, foreign []string, err error) {
	d := json.NewDecoder(r)
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return nil, nil, fmt.Errorf("a recording is a list of trace events, begins with %v: %w", t, err)
	}
	type thread struct{ pid, tid int }
	type stage struct{ stage, tp int }
	stages, ranks := make(map[thread]stage), make(map[int]int)
	var of []thread
	for d.More() {
		var e event
		if err := d.Decode(&e); err != nil {
			return nil, nil, fmt.Errorf("trace event %d: %w", len(ops), err)
		}
		switch e.Phase {
		case "M":
			if m := stageName.FindStringSubmatch(e.Args.Name); m != nil && e.Name == "thread_name" {
				stages[thread{e.PID, e.TID}] = stage{atoi(m[1]), atoi(m[2])}
			} else if m := dpName.FindStringSubmatch(e.Args.Name); m != nil && e.Name == "process_name" {
				ranks[e.PID] = atoi(m[1])
			}
		case "X":
			kind, err := ParseKind(e.Name)
			if err != nil {
				if !slices.Contains(foreign, e.Name) && len(foreign) < maxForeign {
					foreign = append(foreign, e.Name)
				}
				continue
			}
			if e.Args.Step == nil || e.Args.Seq == nil {
				return nil, nil, fmt.Errorf("%s at %g µs has no `step` or no `seq_id` in its `args`", e.Name, e.TS)
			}
			if e.Args.Chunk != nil && *e.Args.Chunk > 0 {
				return nil, nil, fmt.Errorf("%s is of model chunk %d: a pipeline with several chunks per stage is not supported", e.Name, *e.Args.Chunk)
			}
			if len(ops) == maxOps {
				return nil, nil, fmt.Errorf("more than %d operations", maxOps)
			}
			ops = append(ops, Op{Step: *e.Args.Step, Kind: kind, Seq: *e.Args.Seq, Start: e.TS / 1e6, Duration: e.Duration / 1e6})
			of = append(of, thread{e.PID, e.TID})
		}
	}
	kept := ops[:0]
	for i, o := range ops {
		at, known := stages[of[i]]
		rank, named := ranks[of[i].pid]
		if !known || !named {
			return nil, nil, fmt.Errorf("%s is of process %d, thread %d: no thread name says its stage, or no process name its data-parallel rank", o.Kind, of[i].pid, of[i].tid)
		}
		if at.tp == 0 {
			o.Worker = Worker{rank, at.stage}
			kept = append(kept, o)
		}
	}
	return kept, foreign, nil
}

// atoi is of digits; a number too large for an int is none that Analyse takes.
func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}
