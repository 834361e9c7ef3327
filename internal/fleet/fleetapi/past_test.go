// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// steps is a history that has these samples.
type steps struct {
	fleethistory.None
	samples []fleethistory.Sample
	asked   []fleethistory.Query
}

func (h *steps) Samples(_ context.Context, q *fleethistory.Query, f func(*fleethistory.Sample) bool) error {
	h.asked = append(h.asked, *q)
	for _, s := range h.samples {
		attributes := fleethistory.SplitAttributes(s.Attributes)
		has := slices.Contains(q.Clusters, s.Cluster) && slices.Contains(q.Hosts, s.Node) && slices.Contains(q.Metrics, s.Metric)
		if has && (q.PeerGroup == "" || attributes[gpusemconv.AttrPeerGroup] == q.PeerGroup) {
			s.At = q.Ends(s.At)
			f(&s)
		}
	}
	return nil
}

func (h *steps) add(at time.Time, node, metric string, value float64, pairs ...string) {
	attributes := map[string]string{}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		attributes[key] = value
	}
	h.samples = append(h.samples, fleethistory.Sample{
		Cluster: "c", Node: node, Metric: metric, Attributes: fleethistory.JoinAttributes(attributes), At: at.UnixMilli(), Value: value,
	})
}

func values(list []*float64) (out []any) {
	for _, v := range list {
		if v == nil {
			out = append(out, nil)
		} else {
			out = append(out, *v)
		}
	}
	return out
}

// TestNodePast: a node of a job changes its group, whose name has a comma.
func TestNodePast(t *testing.T) {
	end := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := &steps{}
	signal := gpusemconv.AttrSignal + "=power"
	first, second := gpusemconv.AttrPeerGroup+"=job,a", gpusemconv.AttrPeerGroup+"=b"
	minute := func(n int) time.Time { return end.Add(time.Duration(n-4) * time.Minute) }
	for i := range 4 {
		at := minute(i)
		group := second
		if i < 2 {
			group = first
		}
		h.add(at, "n", gpusemconv.MetricNodeHealthScore, float64(i))
		h.add(at, "n", gpusemconv.MetricNodeSignal, 700, signal)
		if i != 1 {
			h.add(at, "n", gpusemconv.MetricNodeSuspicion, 0, group)
		}
		h.add(at, "other", gpusemconv.MetricNodeSignal, 1, signal)
		h.add(at, "", gpusemconv.MetricStragglerMedian, 10, first)
		h.add(at, "", gpusemconv.MetricStragglerThreshold, .5, first)
		h.add(at, "", gpusemconv.MetricStragglerSignalMedian, 20, first, signal)
		h.add(at, "", gpusemconv.MetricStragglerSignalScale, .1, first, signal)
		h.add(at, "", gpusemconv.MetricStragglerSignalThreshold, 15, first, signal)
		h.add(at, "", gpusemconv.MetricStragglerSignalMedian, 650, second, signal)
		h.add(at, "n", gpusemconv.MetricNodeSignal, 2, gpusemconv.AttrSignal+"=throughput")
	}
	h.add(minute(0), "n", gpusemconv.MetricAppStepOwnDuration, .5, gpusemconv.AttrJobRank+"=3")
	h.add(minute(0), "n", gpusemconv.MetricAgentThreshold, .7)
	for metric, v := range map[string]float64{gpusemconv.MetricStragglerRankValue: .2, gpusemconv.MetricStragglerRankMedian: .25} {
		h.add(minute(1), "n", metric, v, gpusemconv.AttrSignal+"=communication", second)
		h.add(minute(2), "n", metric, v, gpusemconv.AttrSignal+"=throughput", second)
	}
	a := newAPI(func(o *Options) { o.History = h })
	out := get200[Past](t, a, "/api/v1/nodes/n/past?cluster=c&points=6&since=2025-12-31T23:55:00Z&until=2026-01-01T00:00:00Z")
	assert.Equal(t, []any{"c", "n", 60.0, end.Add(-5 * time.Minute), end}, []any{out.Cluster, out.Node, out.Step, out.Start, out.End})
	assert.Equal(t, []time.Time{minute(0), minute(1), minute(2), minute(3)}, out.At)
	require.Len(t, out.Signals, 5)
	share, own, power, score, throughput := out.Signals[0], out.Signals[1], out.Signals[2], out.Signals[3], out.Signals[4]
	assert.Equal(t, []string{"communication", "1", "own_time", "s"}, []string{share.Signal, share.Unit, own.Signal, own.Unit})
	assert.Equal(t, [][]any{{nil, .2, nil, nil}, {nil, .25, nil, nil}, {nil, nil, 5., nil}, {nil, nil, 4., nil}}, [][]any{values(share.Value), values(share.Median), values(own.Value), values(own.Median)})
	assert.Equal(t, []string{"power", "W", "score", "1", "throughput", "{step}/s"}, []string{power.Signal, power.Unit, score.Signal, score.Unit, throughput.Signal, throughput.Unit})
	assert.Equal(t, []any{700., 700., 700., 700.}, values(power.Value))
	assert.Equal(t, []any{20., 20., 650., 650.}, values(power.Median), "of the group it was in")
	assert.Equal(t, []any{.1, .1, nil, nil}, values(power.Scale))
	assert.Equal(t, []any{15., 15., nil, nil}, values(power.Threshold))
	assert.Equal(t, []any{0., 1., 2., 3.}, values(score.Value))
	assert.Equal(t, []any{10., 10., nil, nil}, values(score.Median))
	assert.Equal(t, []any{.7, .5, nil, nil}, values(score.Threshold), "its own goes before")

	// However long the time, there are no more points than asked for.
	for _, start := range []string{"2025-12-31T23:59:59.5Z", "2025-12-31T12:34:56.7Z", "2018-01-01T00:00:00Z"} {
		h.asked = nil
		get200[Past](t, a, "/api/v1/nodes/n/past?cluster=c&points=100&since="+start+"&until=2026-01-01T00:00:00Z")
		q := &h.asked[0]
		assert.LessOrEqual(t, (q.End.UnixMilli()-q.Ends(q.Start.UnixMilli()))/q.Step.Milliseconds()+1, int64(100), start)
	}
	w := ask(a, "/api/v1/nodes/n/past?cluster=c&since=2026-01-01T00:00:00Z&until=2025-01-01T00:00:00Z")
	assert.Equal(t, 422, w.Code)
}
