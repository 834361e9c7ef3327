// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// TestRanksAndTheirSteps has ranks say who they are in their points, or in a resource.
func TestRanksAndTheirSteps(t *testing.T) {
	e := newTestExporter(t)
	e.push(t, newReport("c", "n").
		point(gpusemconv.MetricAppStepDuration, 0.4, gpusemconv.AttrHWID, "GPU-a", gpusemconv.AttrJobRank, 8, gpusemconv.AttrJobLocalRank, 0).
		point(gpusemconv.MetricAppStepDuration, 0.5, gpusemconv.AttrHWID, "GPU-b", gpusemconv.AttrJobRank, 9, gpusemconv.AttrJobLocalRank, 1))
	e.push(t, newReport("c", "n").attr(gpusemconv.AttrJobRank, "10").point(gpusemconv.MetricAppStepRate, 4.0))
	v := e.view(t, "c", "n")
	require.Len(t, v.Ranks, 3)
	assert.InDelta(t, 0.5, v.StepSeconds(), 0, "the slowest")
	assert.Equal(t, int64(10), *v.Ranks[2].Rank.Int())
	assert.InDelta(t, 0.25, v.Ranks[2].Step(), 0, "a rate is the inverse")
	assert.Empty(t, v.GPUs, "a rank makes no GPU")

	e.push(t, newReport("c", "n").point(gpusemconv.MetricAppStepDuration, nil, gpusemconv.AttrHWID, "GPU-b", gpusemconv.AttrJobRank, 9, gpusemconv.AttrJobLocalRank, 1))
	v = e.view(t, "c", "n")
	assert.Len(t, v.Ranks, 2, "the rank has ended")
	assert.InDelta(t, 0.4, v.StepSeconds(), 0)

	e.push(t, newReport("c", "n").point(gpusemconv.MetricAppStepOwnDuration, 0.3, gpusemconv.AttrHWID, "GPU-a", gpusemconv.AttrJobRank, 8, gpusemconv.AttrJobLocalRank, 0))
	assert.InDelta(t, 0.3, e.view(t, "c", "n").StepSeconds(), 0, "without waiting for the others")
}

func TestPodsLinksAndPages(t *testing.T) {
	e := newTestExporter(t)
	pod := func(b *reportBuilder, v any, name string, shared bool) *reportBuilder {
		return b.point(gpusemconv.MetricGPUAllocation, v, gpusemconv.AttrHWID, "g", gpusemconv.AttrNamespaceName, "ns", gpusemconv.AttrPodName, name, attrContainer, "main", attrShared, shared)
	}
	b := newReport("c", "n").
		point(gpusemconv.MetricGPUUp, 1, gpusemconv.AttrHWID, "g", gpusemconv.AttrReason, "ok").
		point(gpusemconv.MetricGPURetiredPages, 3, gpusemconv.AttrHWID, "g", gpusemconv.AttrCause, "dbe").
		point(gpusemconv.MetricGPUNVLinkErrors, 7, gpusemconv.AttrHWID, "g", gpusemconv.AttrErrorType, "crc_flit").
		point(gpusemconv.MetricGPUNVLinkLinks, 18, gpusemconv.AttrHWID, "g", gpusemconv.AttrState, "up")
	e.push(t, pod(pod(b, 1, "one", true), 1, "two", true))
	g := &e.view(t, "c", "n").GPUs[0]
	for f, want := range map[reading.Field]float64{reading.RetiredDBE: 3, reading.NVLinkCRCFlit: 7, reading.NVLinksUp: 18} {
		require.NotNil(t, g.Get(f), f)
		assert.InDelta(t, want, *g.Get(f), 0)
	}
	assert.Nil(t, g.Get(reading.RetiredSBE))
	assert.Equal(t, []fleetstate.Pod{{Namespace: "ns", Name: "one", Container: "main"}, {Namespace: "ns", Name: "two", Container: "main"}}, g.Pods)

	e.push(t, pod(newReport("c", "n"), nil, "one", true))
	assert.Len(t, e.view(t, "c", "n").GPUs[0].Pods, 1, "the relation has ended")
	e.push(t, pod(newReport("c", "n"), 1, "three", false))
	assert.Equal(t, "three", e.view(t, "c", "n").GPUs[0].Pods[0].Name, "who holds the GPU alone took it from the others")
	assert.Len(t, e.view(t, "c", "n").GPUs[0].Pods, 1)
}

// TestSinceWhenAGPUIsBad is from the report that said so, or from the first one.
func TestSinceWhenAGPUIsBad(t *testing.T) {
	e := newTestExporter(t)
	now := start
	e.now = func() time.Time { return now }
	state := func(id, health string) *reportBuilder {
		return newReport("c", "n").point(gpusemconv.MetricGPUHealthState, 1, gpusemconv.AttrHWID, id, gpusemconv.AttrState, health)
	}
	e.push(t, state("came-sick", "unhealthy"))
	e.push(t, state("fell-sick", "healthy"))
	now = now.Add(time.Minute)
	e.push(t, state("fell-sick", "degraded"))
	now = now.Add(time.Minute)
	e.push(t, state("fell-sick", "unhealthy"))
	gpus := e.view(t, "c", "n").GPUs
	assert.Equal(t, []any{start.UnixMilli(), true}, []any{gpus[0].BadSince, gpus[0].BadBefore})
	assert.Equal(t, []any{start.Add(time.Minute).UnixMilli(), false}, []any{gpus[1].BadSince, gpus[1].BadBefore}, "it only became worse")
	e.push(t, state("fell-sick", "healthy"))
	assert.Zero(t, e.view(t, "c", "n").GPUs[1].BadSince)
}
