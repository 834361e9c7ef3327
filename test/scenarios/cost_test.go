// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/ranks"
	"github.com/gpu-collector/gpu-collector/test/whatif"
)

// The recorded run costs what was published of it.
func TestCostOfTheRecordedRun(t *testing.T) {
	ops, err := ReadTimeline("../../" + Timeline)
	require.NoError(t, err)
	times, err := ReadStepTimes("../../" + ComputeTimes)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, CostFigures(&out, ops, times, true))
	assert.Equal(t, 8, bytes.Count(out.Bytes(), []byte(" pass\n")), out.String())
	assert.NotContains(t, out.String(), "short")
}

// The cost of a simulated job is that of its fault, and of one without fault nothing but
// its noise.
func TestCostOfSimulatedJobs(t *testing.T) {
	all, err := SimulateCosts(5, 6)
	require.NoError(t, err)
	for _, c := range all {
		assert.Greater(t, c.Truth, 1.01)
		for what, s := range map[string]float64{"replay": c.S, "worker": c.Worker, "step times": c.Times} {
			assert.InEpsilon(t, c.Truth, s, 0.06, what)
		}
		assert.InEpsilon(t, c.Truth, c.Live, 0.15)
	}
	job := ranks.Job{TP: 2, DP: 8, PP: 2, GPUs: 8, MicroBatches: 4, Blocks: 2, Backward: 2, Compute: 0.1, TensorTime: 0.01, PipeTime: 0.001, DataTime: 0.1}
	took, ops, shares := record(&job, 1, &ranks.Faults{})
	w, err := whatif.Analyse(ops)
	require.NoError(t, err)
	assert.InDelta(t, 1, w.S, 1e-9)
	assert.InEpsilon(t, took, w.Step, 0.01, "the replay takes as long as the job")
	assert.InDelta(t, 0, worstGap(&job, shares), 1e-9)
	var text bytes.Buffer
	SimulatedCostFigures(&text, all)
	assert.Contains(t, text.String(), "figure jobcost_simulated_S_error_worst ")
}
