// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/wire"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/test/eventdoc"
)

// rails are eight nodes of one job, with a communicator of all of them for each of four
// rails. Rail 2 becomes slow after ten minutes.
type rails struct {
	t      *testing.T
	o      *observer
	x      *explainer
	engine *straggler.Engine
	now    time.Time
}

func newRails(t *testing.T) *rails {
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	tb, err := metadata.NewTelemetryBuilder(componenttest.NewNopTelemetrySettings())
	require.NoError(t, err)
	o := newObserver(cfg, newRejects(tb), zap.NewNop())
	r := &rails{t: t, o: o, x: newExplainer(cfg, o.facts), engine: straggler.New(cfg.bounded()), now: noon}
	r.engine.Jobs(cfg.jobPeer())
	return r
}

// play pushes for so long. slow multiplies rail 2, port is the bandwidth of n5's port.
func (r *rails) play(d time.Duration, slow, port float64) (told []plog.ResourceLogs) {
	for end := r.now.Add(d); r.now.Before(end); {
		r.now = r.now.Add(10 * time.Second)
		md := fleet(1, 1, 1, 1, 1, 1, 1, 1)
		for i := range 8 {
			name := fmt.Sprint("n", i)
			rm := resource(md, map[string]any{"host.name": name, "k8s.cluster.name": "prod"})
			gauge(rm, gpusemconv.MetricGPUDevices, 8, "state", "expected")
			limit := 5e10
			if i == 5 {
				limit = port
			}
			gauge(rm, gpusemconv.MetricHWNetworkBandwidth, limit, "hw.id", "mlx5_2", "hw.type", "network")
			rm = resource(md, map[string]any{"host.name": name, "k8s.cluster.name": "prod", "gpu.job.id": "J", "gpu.job.role": "stage-0"})
			for rail := range 4 {
				of := 40e9
				if rail == 2 {
					of *= slow
				}
				put := func(metric string, v float64) {
					a := gauge(rm, metric, v, gpusemconv.AttrCommunicatorID, fmt.Sprint("0x", rail), gpusemconv.AttrCommunicatorName, fmt.Sprint("dp_", rail)).Attributes()
					a.PutInt(gpusemconv.AttrCommunicatorRank, int64(i))
					a.PutInt(gpusemconv.AttrCommunicatorSize, 8)
					a.PutInt(gpusemconv.AttrCommunicatorNodes, 8)
					if metric == gpusemconv.MetricCommunicatorBandwidth {
						a.PutStr(gpusemconv.AttrCollectiveOperation, "AllReduce")
						a.PutInt(gpusemconv.AttrCollectiveSize, 1<<28)
					}
				}
				put(gpusemconv.MetricCommunicatorBandwidth, of/(1+0.1*float64((i+1)%8)))
				put(gpusemconv.MetricCommunicatorShare, 0.2+0.01*float64(i))
			}
		}
		r.o.observe(r.t.Context(), r.engine, md, r.now)
		report := r.engine.Tick(r.now)
		found := r.x.links(r.o.ranks.links.Tick(r.now), report, r.o.ranks)
		for i := range found {
			told = append(told, found[i].record(&r.o.ids, "v", r.now).ResourceLogs().At(0))
		}
	}
	return told
}

func TestASlowLinkIsTold(t *testing.T) {
	r := newRails(t)
	assert.Empty(t, r.play(10*time.Minute, 1, 5e10))
	got := r.play(time.Minute, 0.5, 5e10)
	require.Len(t, got, 1)
	lr := theRecord(got[0])
	assert.Equal(t, "SLOW LINK: communicator dp_2 (0x2) of job J moves 50.0 % less than before, since 2026-03-01T12:10:00Z, 20 of 40 GB/s; 8 nodes; "+
		"reason slow_link; it costs the job 10.0 %, 6.4 GPU-hours per hour and 0.05333 so far. "+
		"Look at the switches and cables between the nodes of the communicator, and for other traffic there, since no port of its nodes shows a fault", lr.Body().Str())
	a := lr.Attributes().AsRaw()
	assert.Equal(t, "communicator", a[gpusemconv.AttrEpisodeSubject])
	assert.Equal(t, []any{"0x2"}, a[gpusemconv.AttrCommunicatorIDs])
	assert.Equal(t, "J", a[gpusemconv.AttrJobID])
	assert.InDelta(t, 1/(1-0.1), a[gpusemconv.AttrEpisodeSlowdown], 1e-9)
	assert.NotContains(t, a, gpusemconv.AttrCommunicatorFaulty)
	_, named := got[0].Resource().Attributes().Get(gpusemconv.AttrHostName)
	assert.False(t, named, "no node is accused")

	assert.Empty(t, r.play(time.Hour, 0.5, 5e10))
	got = r.play(time.Minute, 1, 5e10)
	require.Len(t, got, 1)
	assert.Equal(t, "end", theRecord(got[0]).Attributes().AsRaw()[gpusemconv.AttrEpisodePhase])
	assert.Contains(t, theRecord(got[0]).Body().Str(), "communicator dp_2 (0x2) of job J is no slow link any more: recovered after 1h1m30s; it cost 6.56 GPU-hours")
}

// A node is named only with a fact of its port.
func TestAPortNamesTheNodeOfASlowLink(t *testing.T) {
	r := newRails(t)
	r.play(10*time.Minute, 1, 5e10)
	got := r.play(time.Minute, 0.5, 2.5e10)
	require.Len(t, got, 1)
	a := theRecord(got[0]).Attributes().AsRaw()
	assert.Equal(t, "n5", a[gpusemconv.AttrCommunicatorFaulty])
	assert.Equal(t, "network_link_slow", a[gpusemconv.AttrEpisodeReason])
	assert.Equal(t, "mlx5_2", a[gpusemconv.AttrHWID])
	want, err := eventdoc.Attributes("../../docs/events.md", gpusemconv.EventStraggler)
	require.NoError(t, err)
	for name := range a {
		assert.Contains(t, want, name)
	}
}

// Communicators of another's cluster are not taken, and bad names are counted.
func TestLinksOfAForeignCluster(t *testing.T) {
	r := newRails(t)
	md := pmetric.NewMetrics()
	rm := resource(md, map[string]any{"host.name": "n0", "k8s.cluster.name": "prod"})
	gauge(rm, gpusemconv.MetricCommunicatorBandwidth, 1e9)
	r.o.observe(t.Context(), r.engine, md, noon)
	assert.Zero(t, r.o.ranks.links.Communicators())
	md = pmetric.NewMetrics()
	rm = resource(md, map[string]any{"host.name": "n0", "k8s.cluster.name": "prod"})
	gauge(rm, gpusemconv.MetricCommunicatorBandwidth, 1e9, gpusemconv.AttrCommunicatorID, "0x1")
	r.o.observe(wire.ContextWithCaller(t.Context(), wire.Caller{Cluster: "other", Authenticated: true}), r.engine, md, noon)
	assert.Zero(t, r.o.ranks.links.Communicators())
	r.o.observe(t.Context(), r.engine, md, noon)
	assert.Equal(t, 1, r.o.ranks.links.Communicators())
}
