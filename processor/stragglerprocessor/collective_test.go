// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
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
		assert.Contains(t, lines[0], "The job loses 0.58")
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

// Rank 3 of a real job takes 10 % longer. The own times name it, on nodes of one GPU and on a
// lone node of eight. The wall times of all ranks are alike, and show no slow rank.
func TestARealJobInLockstep(t *testing.T) {
	each := func(rank int) string { return fmt.Sprint("n", rank) }
	report, lines := playRealJob(t, gpusemconv.MetricAppStepDuration, 3, each)
	require.Len(t, report.Nodes, 8)
	assert.Equal(t, unjudged.Lockstep, report.Nodes[3].Unjudged)
	assert.Empty(t, lines)
	for _, of := range []func(rank int) string{each, func(int) string { return "n3" }} {
		_, lines := playRealJob(t, gpusemconv.MetricAppStepOwnDuration, 4, of)
		require.Len(t, lines, 1)
		assert.Contains(t, lines[0], "Straggler n3, rank 3: ")
	}
}

// playRealJob plays the recording for 700 s: each rank sends the column under that name.
func playRealJob(t *testing.T, metric string, column int, node func(rank int) string) (*straggler.Report, []string) {
	t.Helper()
	f, err := os.Open("testdata/steps-slow.csv.gz")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	text, err := gzip.NewReader(f)
	require.NoError(t, err)
	rows, err := csv.NewReader(text).ReadAll()
	require.NoError(t, err)
	type sum struct{ seconds, steps float64 }
	var sums [10][8]sum
	began := 0.0
	for _, row := range rows[1:] {
		at, _ := strconv.ParseFloat(row[0], 64)
		rank, _ := strconv.Atoi(row[1])
		wall, _ := strconv.ParseFloat(row[column], 64)
		if began == 0 {
			began = at
		}
		s := &sums[min(int(at-began), 9)][rank]
		s.seconds, s.steps = s.seconds+wall/1e3, s.steps+1
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Mode, cfg.PushInterval = modeAgent, time.Second
	r := newGatewayRig(t, func(c *Config) { c.PushInterval = time.Second }, nil)
	var agents [8]*agent
	for i := range agents {
		agents[i], err = newAgent(processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg, consumertest.NewNop())
		require.NoError(t, err)
	}
	for k := range 700 {
		now := noon.Add(time.Duration(k) * time.Second)
		for i, a := range agents {
			md := pmetric.NewMetrics()
			rm := resource(md, map[string]any{"host.name": node(i), "k8s.cluster.name": "prod", "gpu.job.id": "J", "gpu.job.role": "all", "gpu.job.rank": i})
			s := sums[1+k%9][i] // the first second sets up
			gauge(rm, metric, s.seconds/s.steps).SetTimestamp(pcommon.NewTimestampFromTime(now))
			a.score(t.Context(), md, now)
			r.g.observer.observe(t.Context(), r.g.engine, md, now)
		}
		r.g.tick(t.Context(), now)
	}
	report := r.g.engine.Tick(noon.Add(700 * time.Second))
	return report, r.sentences()
}
