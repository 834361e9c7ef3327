// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// stand pushes for so long what the ranks of a job tell that stands still since a time,
// zero for not at all. lags is the laggard's rank, -1 for none.
func (r *rails) stand(d time.Duration, since time.Time, lags int) (told []plog.ResourceLogs) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(10 * time.Second)
		md := fleet(1, 1, 1, 1, 1, 1, 1, 1)
		for i := range 8 {
			attrs := map[string]any{"host.name": fmt.Sprint("n", i), "k8s.cluster.name": "prod"}
			gauge(resource(md, attrs), gpusemconv.MetricGPUDevices, 8, "state", "expected")
			attrs["gpu.job.id"], attrs["gpu.job.role"] = "J", "stage-0"
			rm := resource(md, attrs)
			ago := 0.7
			if !since.IsZero() {
				ago = r.now.Sub(since).Seconds()
			}
			put := func(name string, v float64, rank int) pcommon.Map {
				p := gauge(rm, name, v, gpusemconv.AttrCommunicatorID, "0xa")
				p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
				p.Attributes().PutInt(gpusemconv.AttrCommunicatorRank, int64(rank))
				return p.Attributes()
			}
			a := put(gpusemconv.MetricCollectiveProgress, ago, i)
			a.PutStr(gpusemconv.AttrHWID, fmt.Sprint("GPU-", i))
			a.PutInt(gpusemconv.AttrJobRank, int64(i))
			if i == 0 && lags >= 0 && ago > 60 {
				a := put(gpusemconv.MetricCollectiveLaggard, 1, lags)
				a.PutStr(gpusemconv.AttrLaggardState, gpusemconv.LaggardBehind)
				a.PutStr(gpusemconv.AttrServerAddress, "10.0.0.5")
			}
		}
		r.o.observe(r.t.Context(), r.engine, md, r.now)
		report := r.engine.Tick(r.now)
		found := r.x.hangs(r.o.ranks.hangs.Tick(r.now), report, r.o.ranks)
		for i := range found {
			told = append(told, found[i].record(&r.o.ids, "v", r.now).ResourceLogs().At(0))
		}
	}
	return told
}

func TestAHangIsTold(t *testing.T) {
	for name, tt := range map[string]struct {
		lags int
		want string
	}{
		"named": {5, "HANG: job J stands still since 2026-03-01T14:00:00Z: none of its collective operations has ended, and its longest pause before was 10s; " +
			"rank 5 (GPU-5) of n5 has begun fewer operations than the others; 8 nodes, 64 GPU-hours per hour. " +
			"Look at what the process of that rank does before the job is ended, such as with py-spy; burn in its node if the job hangs there again"},
		"nobody": {-1, "HANG: job J stands still since 2026-03-01T14:00:00Z: none of its collective operations has ended, and its longest pause before was 10s; " +
			"8 nodes, 64 GPU-hours per hour. " +
			"Take the stacks of all ranks before the job is ended, such as by PyTorch's flight recorder, since nobody tells which rank holds the others"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRails(t)
			require.Empty(t, r.stand(2*time.Hour, time.Time{}, -1))
			got := r.stand(time.Hour, r.now, tt.lags)
			require.Len(t, got, 1, "one record")
			lr := theRecord(got[0])
			assert.Equal(t, tt.want, lr.Body().Str())
			assert.LessOrEqual(t, lr.Timestamp().AsTime().Sub(noon.Add(2*time.Hour)), 90*time.Second)
			a := lr.Attributes().AsRaw()
			assert.Equal(t, "job", a[gpusemconv.AttrEpisodeSubject])
			assert.Equal(t, "J", a[gpusemconv.AttrJobID])
			assert.InDelta(t, 64.0, a[gpusemconv.AttrEpisodeCost], 1e-9)
			if tt.lags < 0 {
				assert.NotContains(t, a, gpusemconv.AttrEpisodeLaggards)
				assert.NotContains(t, a, gpusemconv.AttrJobRank)
			} else {
				assert.Equal(t, []any{"state=behind rank=5 gpu=GPU-5 node=n5 address=10.0.0.5 communicator=0xa communicator_rank=5"}, a[gpusemconv.AttrEpisodeLaggards])
				assert.Equal(t, int64(5), a[gpusemconv.AttrJobRank])
			}
			got = r.stand(time.Minute, time.Time{}, -1)
			require.Len(t, got, 1)
			assert.Equal(t, "job J stands still no more: recovered after 1h0m10s; it cost 64.18 GPU-hours", theRecord(got[0]).Body().Str())
		})
	}
}

// Nodes that draw little power while they are busy are a hang without NCCL's word.
func TestAHangShowsByPower(t *testing.T) {
	r := newRails(t)
	play := func(d time.Duration, watts float64) (told []plog.ResourceLogs) {
		for end := r.now.Add(d); r.now.Before(end); {
			r.now = r.now.Add(10 * time.Second)
			md := pmetric.NewMetrics()
			for i := range 8 {
				rm := resource(md, map[string]any{"host.name": fmt.Sprint("n", i), "k8s.cluster.name": "prod", "gpu.job.id": "J"})
				gauge(rm, "gpu.node.state", 1, "gpu.node.state", "active")
				gauge(rm, "gpu.node.signal", watts, "gpu.signal", "power")
			}
			r.o.observe(r.t.Context(), r.engine, md, r.now)
			report := r.engine.Tick(r.now)
			found := r.x.hangs(r.o.ranks.hangs.Tick(r.now), report, r.o.ranks)
			for i := range found {
				told = append(told, found[i].record(&r.o.ids, "v", r.now).ResourceLogs().At(0))
			}
		}
		return told
	}
	require.Empty(t, play(2*time.Hour, 600))
	got := play(time.Hour, 200)
	require.Len(t, got, 1)
	assert.Contains(t, theRecord(got[0]).Body().Str(), "HANG: job J stands still since 2026-03-01T14:00:00Z: its GPUs are busy at less than half of the usual power, and its longest pause before was 10s; 8 nodes")
}

// A node that tells of its ranks alone is not missing while its job pauses.
func TestRanksThatPauseAreHeardOf(t *testing.T) {
	r := newRails(t)
	for range 60 {
		r.now = r.now.Add(10 * time.Second)
		for i := range 8 {
			md := pmetric.NewMetrics()
			rm := resource(md, map[string]any{"host.name": fmt.Sprint("n", i), "k8s.cluster.name": "prod", "gpu.job.id": "J"})
			p := gauge(rm, gpusemconv.MetricCollectiveProgress, r.now.Sub(noon).Seconds(), gpusemconv.AttrCommunicatorID, "0xa")
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
			p.Attributes().PutInt(gpusemconv.AttrCommunicatorRank, int64(i))
			r.o.observe(r.t.Context(), r.engine, md, r.now)
		}
		require.Empty(t, r.engine.Tick(r.now).Events)
	}
}

// Ranks whose files do not tell of communicators are told apart all the same: none of
// their own clocks is taken for another's progress.
func TestAHangOfRanksWithoutCommunicators(t *testing.T) {
	r := newRails(t)
	var told []plog.ResourceLogs
	for at := range 3 * 360 {
		r.now = r.now.Add(10 * time.Second)
		md := fleet(1, 1, 1, 1, 1, 1, 1, 1)
		for i := range 8 {
			rm := resource(md, map[string]any{"host.name": fmt.Sprint("n", i), "k8s.cluster.name": "prod", "gpu.job.id": "J"})
			since := time.Duration(i+1) * time.Second
			if at > 2*360 {
				since += r.now.Sub(noon.Add(2 * time.Hour))
			}
			p := gauge(rm, gpusemconv.MetricCollectiveProgress, since.Seconds(), gpusemconv.AttrHWID, fmt.Sprint("GPU-", i))
			p.SetTimestamp(pcommon.NewTimestampFromTime(r.now))
		}
		r.o.observe(t.Context(), r.engine, md, r.now)
		found := r.x.hangs(r.o.ranks.hangs.Tick(r.now), r.engine.Tick(r.now), r.o.ranks)
		for i := range found {
			told = append(told, found[i].record(&r.o.ids, "v", r.now).ResourceLogs().At(0))
		}
	}
	require.Len(t, told, 1)
	assert.Contains(t, theRecord(told[0]).Body().Str(), "HANG: job J stands still since 2026-03-01T14:00:")
}
