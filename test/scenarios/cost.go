// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
	"github.com/gpu-collector/gpu-collector/test/whatif"
)

// Timeline is the recorded run's operations, from the root of the repository.
const Timeline = "test/scenarios/testdata/timeline-AR.json.gz"

// ofPaper is what the analysis of the recorded run says, see testdata/README.md.
var ofPaper = struct {
	s, worst float64
	dp       map[int]float64
	stage    map[int]float64
	kind     map[whatif.Kind]float64
}{
	s: 1.973, worst: 1.002,
	dp:    map[int]float64{0: 1.973, 1: 1.011, 2: 1.011, 3: 1.011},
	stage: map[int]float64{0: 1.979, 1: 0.997, 2: 0.996, 3: 1.002},
	kind:  map[whatif.Kind]float64{whatif.BackwardCompute: 1.581, whatif.ForwardCompute: 1.369},
}

// ReadTimeline reads a recording of operations, compressed or not.
func ReadTimeline(path string) ([]whatif.Op, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	ops, foreign, err := whatif.ReadTrace(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(foreign) > 0 {
		fmt.Fprintf(os.Stderr, "%s: operations that are left out: %s\n", path, strings.Join(foreign, ", "))
	}
	return ops, nil
}

// ReadStepTimes reads the columns of configs/demo/README.md.
func ReadStepTimes(path string) ([]whatif.StepTime, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	var list []whatif.StepTime
	for _, row := range rows[1:] {
		var t whatif.StepTime
		var errs [5]error
		at := func(name string) string {
			if i := slices.Index(rows[0], name); i >= 0 {
				return row[i]
			}
			return "no column " + name
		}
		t.Step, errs[0] = strconv.Atoi(at("step"))
		t.DP, errs[1] = strconv.Atoi(at("dp_rank"))
		t.Stage, errs[2] = strconv.Atoi(at("pp_rank"))
		t.Compute, errs[3] = strconv.ParseFloat(at("compute_s"), 64)
		t.Wall, errs[4] = strconv.ParseFloat(at("step_s"), 64)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, t)
	}
	return list, nil
}

// CostFigures writes what the recorded run costs beside what was published of it. The
// limits are those of another recording too, but only the known one has figures.
func CostFigures(w io.Writer, ops []whatif.Op, times []whatif.StepTime, known bool) error {
	full, err := whatif.Analyse(ops)
	if err != nil {
		return err
	}
	if full.Skipped > 0 {
		_, _ = fmt.Fprintf(w, "%d of %d steps are left out: %v\n", full.Skipped, full.Skipped+full.Steps, full.Why)
	}
	_, _ = fmt.Fprintf(w, "step %.3f s, ideal %.3f s, S %.3f, M_W %.3f, worst %v\n", full.Step, full.Ideal, full.S, full.WorstShare, full.Worst)
	slowdowns(w, "rank", full.ByDP)
	slowdowns(w, "stage", full.ByStage)
	for _, k := range slices.Sorted(maps.Keys(full.ByKind)) {
		_, _ = fmt.Fprintf(w, "%s %.3f\n", k, full.ByKind[k])
	}
	if !known {
		return nil
	}
	const percent = 5
	figure.Fprint(w, "jobcost_S_error_percent", off(full.S, ofPaper.s), "%", percent, true)
	figure.Fprint(w, "jobcost_rank_error_percent", farthest(full.ByDP, ofPaper.dp), "%", percent, true)
	figure.Fprint(w, "jobcost_stage_error_percent", farthest(full.ByStage, ofPaper.stage), "%", percent, true)
	figure.Fprint(w, "jobcost_operation_error_percent", farthest(full.ByKind, ofPaper.kind), "%", percent, true)
	figure.Fprint(w, "jobcost_worst_share_error_percent", off(full.WorstShare, ofPaper.worst), "%", percent, true)

	estimate, err := whatif.Estimate(times)
	if err != nil {
		return err
	}
	figure.Fprint(w, "jobcost_steptimes_S_error_percent", off(estimate.S, ofPaper.s), "%", 15, true)
	figure.Fprint(w, "jobcost_steptimes_rank_error_percent", farthest(estimate.ByDP, ofPaper.dp), "%", 15, true)
	figure.Fprint(w, "jobcost_steptimes_stage_error_percent", farthest(estimate.ByStage, ofPaper.stage), "%", 15, true)
	return nil
}

func slowdowns(w io.Writer, of string, by map[int]float64) {
	for _, k := range slices.Sorted(maps.Keys(by)) {
		_, _ = fmt.Fprintf(w, "%s %d %.3f\n", of, k, by[k])
	}
}

// off is by how many percent x differs from what is right.
func off(x, right float64) float64 { return 100 * math.Abs(x/right-1) }

// farthest is the greatest difference; one that is missing differs by all.
func farthest[K comparable](got, right map[K]float64) (most float64) {
	for k, x := range right {
		most = max(most, off(got[k], x))
	}
	return most
}
