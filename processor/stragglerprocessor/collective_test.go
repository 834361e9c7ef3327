// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// adder adds a gauge of a rank.
type adder func(metric, unit string) pmetric.NumberDataPoint

func bandwidth(add adder, value float64) {
	p := add(gpusemconv.MetricCommunicatorBandwidth, "By/s")
	p.SetDoubleValue(value)
	p.Attributes().PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
}

// rankReport is what an agent with the receiver nccl sends of eight ranks.
func rankReport(each func(rank int64, add adder)) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := resource(md, map[string]any{"host.name": "node-17", "k8s.cluster.name": "prod"})
	for rank := range int64(8) {
		each(rank, func(metric, unit string) pmetric.NumberDataPoint {
			m := rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
			m.SetName(metric)
			m.SetUnit(unit)
			p := m.SetEmptyGauge().DataPoints().AppendEmpty()
			a := p.Attributes()
			a.PutStr(gpusemconv.AttrJobID, "42")
			a.PutStr(gpusemconv.AttrHWID, fmt.Sprintf("GPU-%d", rank))
			a.PutStr(gpusemconv.AttrCommunicatorID, "0xdd281344136a3a")
			a.PutStr(gpusemconv.AttrCommunicatorName, "dp:0")
			for key, n := range map[string]int64{
				gpusemconv.AttrJobRank: rank, gpusemconv.AttrProcessPID: 100 + rank,
				gpusemconv.AttrCommunicatorRank: rank, gpusemconv.AttrCommunicatorSize: 8, gpusemconv.AttrCommunicatorNodes: 1,
			} {
				a.PutInt(key, n)
			}
			return p
		})
	}
	return md
}

// sentences are the lines about episodes.
func (r *gatewayRig) sentences() (all []string) {
	for _, e := range r.logs.TakeAll() {
		if e.ContextMap()["episode"] != nil {
			all = append(all, e.Message)
		}
	}
	return all
}

func TestTheSlowRankOfAJobIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newGatewayRig(t, nil, nil)
		r.g.publisher = r.ext
		var metrics map[string]float64
		play := func(ticks int, each func(rank int64, add adder)) []string {
			for range ticks {
				time.Sleep(10 * time.Second)
				r.push(rankReport(each))
				metrics = r.tick()
			}
			return r.sentences()
		}
		lines := play(6, func(rank int64, add adder) {
			share := 0.172
			if rank == 3 {
				share = 0.089
			}
			add(gpusemconv.MetricCollectiveTimeShare, "1").SetDoubleValue(share + 0.0005*float64(rank%3))
			bandwidth(add, 30e9)
		})
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "Straggler node-17, rank 3: Takes 10.1 % longer between collectives than its peers; ")
		assert.Contains(t, lines[0], "the other ranks of job 42 wait 8.3 % of their time for it")
		assert.Contains(t, lines[0], "The job loses the work of 0.58")
		share := []float64{metrics["node-17 gpu.straggler.rank.value default communication"], metrics["node-17 gpu.straggler.rank.median default communication"]}
		assert.InDeltaSlice(t, []float64{0.089, 0.1725}, share, 1e-3)
		assert.Len(t, r.ext.snap.Clusters["prod"].Groups["default"].Verdicts.List(), 1, "the node learns of it")

		lines = play(40, func(rank int64, add adder) {
			bandwidth(add, 30e9)
			add(gpusemconv.MetricCollectiveTimeShare, "1").SetDoubleValue(0.172 + 0.0005*float64(rank%3))
		})
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "Straggler node-17, rank 3: over. It recovered.")

		lines = play(8, func(rank int64, add adder) {
			bandwidth(add, 15e9)
			add(gpusemconv.MetricCollectiveTimeShare, "1").SetDoubleValue(0.3 + 0.0005*float64(rank%3))
		})
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "Communicator dp:0 of job 42")
		assert.Contains(t, lines[0], " is slow: 15 GB/s instead of 30 GB/s, for ")

		since := time.Now().Unix()
		lines = play(3, func(rank int64, add adder) {
			add(gpusemconv.MetricCollectiveStalled, "s").SetIntValue(since)
			if rank == 5 {
				p := add(gpusemconv.MetricCollectiveLaggard, "1")
				p.SetIntValue(1)
				p.Attributes().PutStr(gpusemconv.AttrState, "behind")
				p.Attributes().PutStr(gpusemconv.AttrServerAddress, "10.0.0.1")
			}
		})
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "Job 42 stands still: no operation of its ranks ends, for ")
		assert.Contains(t, lines[0], "The other ranks wait for rank 5 on node-17.")

		lines = play(1, func(_ int64, add adder) {
			add(gpusemconv.MetricCollectiveStalled, "s").SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		})
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "Job 42: over after ")
	})
}

// TestTheOwnTimeOfARankIsCompared: all steps take the same time, and one rank works for longer.
func TestTheOwnTimeOfARankIsCompared(t *testing.T) {
	r := newGatewayRig(t, nil, nil)
	for k := range 30 {
		now := noon.Add(time.Duration(k) * 10 * time.Second)
		r.g.observe(t.Context(), rankReport(func(rank int64, add adder) {
			own := 1 + 0.001*float64((rank+int64(k))%3)
			if rank == 3 {
				own *= 1.1
			}
			add(gpusemconv.MetricAppStepOwnDuration, "s").SetDoubleValue(own)
		}), now)
		r.g.tick(t.Context(), now)
	}
	lines := r.sentences()
	require.Len(t, lines, 1)
	assert.Contains(t, lines[0], "Straggler node-17, rank 3: ")
}
