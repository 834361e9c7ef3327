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

// rankReport is what an agent with the receiver nccl tells of eight ranks.
func rankReport(each func(rank int64, add func(metric, unit string) pmetric.NumberDataPoint)) pmetric.Metrics {
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

func TestTheSlowRankOfAJobIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newGatewayRig(t, nil, nil)
		r.g.publisher = r.ext
		var said map[string]float64
		play := func(ticks int, each func(rank int64, add func(string, string) pmetric.NumberDataPoint)) []string {
			for range ticks {
				time.Sleep(10 * time.Second)
				r.push(rankReport(each))
				said = r.tick()
			}
			return r.sentences()
		}
		told := play(6, func(rank int64, add func(string, string) pmetric.NumberDataPoint) {
			share := 0.172
			if rank == 3 {
				share = 0.089
			}
			add(gpusemconv.MetricCollectiveTimeShare, "1").SetDoubleValue(share + 0.0005*float64(rank%3))
			p := add(gpusemconv.MetricCommunicatorBandwidth, "By/s")
			p.SetDoubleValue(30e9)
			p.Attributes().PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
		})
		require.Len(t, told, 1)
		assert.Contains(t, told[0], "Straggler node-17, rank 3: Takes 10.1 % longer between collectives than its peers; ")
		assert.Contains(t, told[0], "the other ranks of job 42 wait 8.3 % of their time for it")
		assert.Contains(t, told[0], "The job loses 0.58")
		share := []float64{said["node-17 gpu.straggler.rank.value default communication"], said["node-17 gpu.straggler.rank.median default communication"]}
		assert.InDeltaSlice(t, []float64{0.089, 0.1725}, share, 1e-3)
		assert.Len(t, r.ext.snap.Clusters["prod"].Groups["default"].Verdicts.List(), 1, "the node learns of it")

		told = play(40, func(rank int64, add func(string, string) pmetric.NumberDataPoint) {
			p := add(gpusemconv.MetricCommunicatorBandwidth, "By/s")
			p.SetDoubleValue(30e9)
			p.Attributes().PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
			add(gpusemconv.MetricCollectiveTimeShare, "1").SetDoubleValue(0.172 + 0.0005*float64(rank%3))
		})
		require.Len(t, told, 1)
		assert.Contains(t, told[0], "Straggler node-17, rank 3: over. It recovered.")

		told = play(8, func(rank int64, add func(string, string) pmetric.NumberDataPoint) {
			p := add(gpusemconv.MetricCommunicatorBandwidth, "By/s")
			p.SetDoubleValue(15e9)
			p.Attributes().PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
			add(gpusemconv.MetricCollectiveTimeShare, "1").SetDoubleValue(0.3 + 0.0005*float64(rank%3))
		})
		require.Len(t, told, 1)
		assert.Contains(t, told[0], "Communicator dp:0 of job 42")
		assert.Contains(t, told[0], " is slow: 15 GB/s instead of 30 GB/s, for ")

		since := time.Now().Unix()
		told = play(3, func(rank int64, add func(string, string) pmetric.NumberDataPoint) {
			add(gpusemconv.MetricCollectiveStalled, "s").SetIntValue(since)
			if rank == 5 {
				p := add(gpusemconv.MetricCollectiveLaggard, "1")
				p.SetIntValue(1)
				p.Attributes().PutStr(gpusemconv.AttrState, "behind")
				p.Attributes().PutStr(gpusemconv.AttrServerAddress, "10.0.0.1")
			}
		})
		require.Len(t, told, 1)
		assert.Contains(t, told[0], "Job 42 stands still: no operation of its ranks ends, for ")
		assert.Contains(t, told[0], "The other ranks wait for rank 5 on node-17.")

		told = play(1, func(_ int64, add func(string, string) pmetric.NumberDataPoint) {
			add(gpusemconv.MetricCollectiveStalled, "s").SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		})
		require.Len(t, told, 1)
		assert.Contains(t, told[0], "Job 42: over after ")
	})
}

// The wall times of a real job in lockstep, of which rank 3 takes 10 % longer, tell
// nobody: eight nodes of one GPU, as their agents measure them each second.
func TestWallTimesAloneEndInLockstep(t *testing.T) {
	report, told := playRealJob(t, gpusemconv.MetricAppStepDuration, 3, func(rank int) string { return fmt.Sprint("n", rank) })
	require.Len(t, report.Nodes, 8)
	for _, n := range report.Nodes {
		assert.Equal(t, unjudged.Lockstep, n.Unjudged, n.Node)
	}
	assert.Empty(t, told)
}

// The own times of that job name rank 3, on nodes of one GPU and on a lone node of eight.
func TestOwnTimesNameTheRankOfARealJob(t *testing.T) {
	for _, of := range []func(rank int) string{func(int) string { return "n3" }, func(rank int) string { return fmt.Sprint("n", rank) }} {
		_, told := playRealJob(t, gpusemconv.MetricAppStepOwnDuration, 4, of)
		require.Len(t, told, 1)
		assert.Contains(t, told[0], "Straggler n3, rank 3: ")
		assert.Contains(t, told[0], " behind its peers in throughput")
		assert.Contains(t, told[0], " The job loses 0.")
	}
}

// playRealJob plays the recording for 700 s: each rank tells the column under that name.
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
	var told [10][8]sum
	began := 0.0
	for _, row := range rows[1:] {
		at, _ := strconv.ParseFloat(row[0], 64)
		rank, _ := strconv.Atoi(row[1])
		wall, _ := strconv.ParseFloat(row[column], 64)
		if began == 0 {
			began = at
		}
		s := &told[min(int(at-began), 9)][rank]
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
			m := rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
			m.SetName(metric)
			m.SetUnit("s")
			p := m.SetEmptyGauge().DataPoints().AppendEmpty()
			p.SetTimestamp(pcommon.NewTimestampFromTime(now))
			s := told[1+k%9][i] // the first second sets up
			p.SetDoubleValue(s.seconds / s.steps)
			a.score(t.Context(), md, now)
			r.g.observer.observe(t.Context(), r.g.engine, md, now)
		}
		r.g.tick(t.Context(), now)
	}
	report := r.g.engine.Tick(noon.Add(700 * time.Second))
	return report, r.sentences()
}
