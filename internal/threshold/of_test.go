// SPDX-License-Identifier: Apache-2.0

package threshold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// A cohort with too few nodes has no parameters. The one below it ends where that begins:
// its nodes would judge themselves by the lower one's.
func TestWhereACohortEnds(t *testing.T) {
	cohort := func(from float64, told bool) straggler.CohortReport {
		c := straggler.CohortReport{From: from, HasFrom: from > 0}
		c.Signals[nodesignal.Compute] = straggler.SignalReport{Known: told, Params: params}
		return c
	}
	for name, tt := range map[string]struct {
		cohorts []straggler.CohortReport
		want    []SignalParams
	}{
		"all are compared": {
			[]straggler.CohortReport{cohort(0, true), cohort(3, true)},
			[]SignalParams{{Signal: nodesignal.Compute, Params: params}, {Signal: nodesignal.Compute, From: 3, HasFrom: true, Params: params}},
		},
		"not the middle one": {
			[]straggler.CohortReport{cohort(0, true), cohort(3, false), cohort(5, true)},
			[]SignalParams{{Signal: nodesignal.Compute, To: 3, HasTo: true, Params: params}, {Signal: nodesignal.Compute, From: 5, HasFrom: true, Params: params}},
		},
		"not the lowest, nor the highest": {
			[]straggler.CohortReport{cohort(0, false), cohort(3, true), cohort(5, false)},
			[]SignalParams{{Signal: nodesignal.Compute, From: 3, HasFrom: true, To: 5, HasTo: true, Params: params}},
		},
		"none": {[]straggler.CohortReport{cohort(0, false), cohort(3, false)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := Of(&straggler.GroupReport{Group: "g", Cohorts: tt.cohorts}, time.UnixMilli(1), 2, time.Minute)
			assert.Equal(t, tt.want, got.Signals)
		})
	}
}
