// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// gauges adds gauge metrics of one timestamp to a scope.
type gauges struct {
	metrics pmetric.MetricSlice
	ts      pcommon.Timestamp
}

func newGauges(rm pmetric.ResourceMetrics, ts pcommon.Timestamp) gauges {
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(metadata.ScopeName)
	return gauges{sm.Metrics(), ts}
}

// metric starts a gauge and returns its points. Flags have no unit: with "1"
// Prometheus would call them a ratio.
func (g gauges) metric(name, unit, description string) pmetric.NumberDataPointSlice {
	m := g.metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit(unit)
	m.SetDescription(description)
	return m.SetEmptyGauge().DataPoints()
}

// dropEmpty drops metrics without points: they say nothing, and receivers warn
// about them.
func (g gauges) dropEmpty() {
	g.metrics.RemoveIf(func(m pmetric.Metric) bool { return m.Gauge().DataPoints().Len() == 0 })
}

func (g gauges) point(to pmetric.NumberDataPointSlice) pmetric.NumberDataPoint {
	p := to.AppendEmpty()
	p.SetTimestamp(g.ts)
	return p
}

func (g gauges) double(to pmetric.NumberDataPointSlice, v float64) pmetric.NumberDataPoint {
	p := g.point(to)
	p.SetDoubleValue(v)
	return p
}

func (g gauges) flag(to pmetric.NumberDataPointSlice, on bool) pmetric.NumberDataPoint {
	p := g.point(to)
	if on {
		p.SetIntValue(1)
	} else {
		p.SetIntValue(0)
	}
	return p
}

// appendResult adds an agent's evaluation to a resource.
func appendResult(rm pmetric.ResourceMetrics, ts pcommon.Timestamp, res *nodescore.Result, reachable bool) {
	g := newGauges(rm, ts)
	// The state is a metric of its own: as an attribute of the score each change
	// would leave the old score standing beside the new one.
	states := g.metric(gpusemconv.MetricNodeState, "", "1 for the state of the node: active, idle or calibrating.")
	for _, s := range [...]straggler.State{straggler.StateActive, straggler.StateIdle, straggler.StateCalibrating} {
		g.flag(states, s == res.State).Attributes().PutStr(gpusemconv.AttrNodeState, s.String())
	}
	if res.HasScore {
		g.double(g.metric(gpusemconv.MetricNodeHealthScore, "1", "Health score of the node, 1 is as fast as its peers or its own best."), res.Score)
	}
	if res.Signals.Known != [nodesignal.Count]bool{} {
		signals := g.metric(gpusemconv.MetricNodeSignal, "1", "What is measured of the node's work: throughput in its own unit, power in watts, the others as fractions.")
		for s := range nodesignal.Score {
			if res.Signals.Known[s] {
				g.double(signals, res.Signals.V[s]).Attributes().PutStr(gpusemconv.AttrSignal, s.String())
			}
		}
	}
	g.flag(g.metric(gpusemconv.MetricAgentStraggler, "", "1 while the node takes itself for a straggler."), res.Straggler)
	if res.BySignals {
		g.double(g.metric(gpusemconv.MetricAgentSuspicion, "1", "How sure the node is that it is a straggler: from 1 on it is one if that lasts, 2 at most."), res.Suspicion)
	}
	if res.Mode != nodescore.ModeNone {
		g.double(g.metric(gpusemconv.MetricAgentThreshold, "1", "Threshold that the node judges itself by."), res.Threshold)
	}
	modes := g.metric(gpusemconv.MetricAgentDetectionMode, "", "1 for what the node judges itself by: fleet, cached, local or none.")
	for m := range nodescore.NumModes {
		g.flag(modes, m == res.Mode).Attributes().PutStr(gpusemconv.AttrDetectionMode, m.String())
	}
	g.flag(g.metric(gpusemconv.MetricAgentGatewayReachable, "", "1 while the gateway answers the pushes."), reachable)
}

// reporter turns a gateway's ticks into metrics.
type reporter struct {
	ids *identifier
	// ranked are the places that were told last, by cluster.
	ranked map[string][]place
}

// place is who has a rank, as its series is known.
type place struct{ node, group string }

// metrics returns one resource per cluster, with a point per peer group and one
// without group for the whole cluster, and one resource per node that reports.
func (r *reporter) metrics(rep *straggler.Report) pmetric.Metrics {
	md := pmetric.NewMetrics()
	ts := pcommon.NewTimestampFromTime(rep.At)
	ranks := rep.Ranks
	for from := 0; from < len(rep.Groups); {
		to := from + 1
		for to < len(rep.Groups) && rep.Groups[to].Cluster == rep.Groups[from].Cluster {
			to++
		}
		cluster := rep.Groups[from].Cluster
		g := appendCluster(md, ts, rep.Groups[from:to])
		n := 0
		for n < len(ranks) && ranks[n].Cluster == cluster {
			n++
		}
		r.rank(g, cluster, ranks[:n])
		ranks = ranks[n:]
		g.dropEmpty()
		from = to
	}
	for cluster := range r.ranked {
		if _, known := slices.BinarySearchFunc(rep.Groups, cluster, func(g straggler.GroupReport, c string) int { return cmp.Compare(g.Cluster, c) }); !known {
			delete(r.ranked, cluster)
		}
	}
	for i := range rep.Nodes {
		if n := &rep.Nodes[i]; n.State != straggler.StateMissing {
			appendNode(md, ts, n, r.ids)
		}
	}
	return md
}

// rank lists the most suspicious nodes of a cluster. Who is on the list no more
// gets a point without a value: two nodes in one place would be no list. Such
// points come last, since the prometheus exporter skips what is behind them.
func (r *reporter) rank(g gauges, cluster string, ranks []straggler.Rank) {
	points := g.metric(gpusemconv.MetricStragglerRank, "", "Place of a node among the most suspicious ones of its cluster, 1 for the worst.")
	label := func(p pmetric.NumberDataPoint, at place) {
		p.Attributes().PutStr(gpusemconv.AttrHostName, at.node)
		p.Attributes().PutStr(gpusemconv.AttrPeerGroup, at.group)
	}
	now := make([]place, 0, len(ranks))
	for i := range ranks {
		p := g.point(points)
		p.SetIntValue(int64(ranks[i].Rank))
		now = append(now, place{ranks[i].Node, ranks[i].Group})
		label(p, now[i])
	}
	for _, was := range r.ranked[cluster] {
		if !slices.Contains(now, was) {
			p := g.point(points)
			p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
			label(p, was)
		}
	}
	if r.ranked == nil {
		r.ranked = make(map[string][]place)
	}
	r.ranked[cluster] = now
}

func appendCluster(md pmetric.Metrics, ts pcommon.Timestamp, groups []straggler.GroupReport) gauges {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, groups[0].Cluster)
	g := newGauges(rm, ts)
	threshold := g.metric(gpusemconv.MetricStragglerThreshold, "1", "Score below which a node is a straggler: median - max(k*1.4826*MAD, min_gap), smoothed.")
	median := g.metric(gpusemconv.MetricStragglerMedian, "1", "Median score of the active nodes.")
	mad := g.metric(gpusemconv.MetricStragglerMAD, "1", "Median absolute deviation of the active nodes' scores.")
	nodes := g.metric(gpusemconv.MetricStragglerNodes, "{node}", "Nodes by state.")
	quorum := g.metric(gpusemconv.MetricStragglerQuorumMet, "", "1 while enough nodes are active to compute a threshold.")
	coverage := g.metric(gpusemconv.MetricStragglerCoverageLow, "", "1 while too many of the known nodes are missing.")
	panicMode := g.metric(gpusemconv.MetricStragglerPanicMode, "", "1 while so many nodes are below the threshold that it is held instead.")
	count := g.metric(gpusemconv.MetricStragglerCount, "{node}", "Stragglers.")
	incident := g.metric(gpusemconv.MetricStragglerIncident, "", "1 while many nodes of the group are slow.")
	for i := range groups {
		gr := &groups[i]
		label := func(p pmetric.NumberDataPoint) {
			if gr.Group != "" {
				p.Attributes().PutStr(gpusemconv.AttrPeerGroup, gr.Group)
			}
		}
		if gr.Valid {
			label(g.double(threshold, gr.Threshold))
		}
		if gr.Quorum {
			label(g.double(median, gr.Median))
			label(g.double(mad, gr.MAD))
		}
		for s, n := range gr.Counts {
			p := g.point(nodes)
			p.SetIntValue(int64(n))
			p.Attributes().PutStr(gpusemconv.AttrNodeState, straggler.State(s).String())
			label(p)
		}
		label(g.flag(quorum, gr.Quorum))
		label(g.flag(coverage, gr.CoverageLow))
		label(g.flag(panicMode, gr.Panic))
		p := g.point(count)
		p.SetIntValue(int64(gr.Stragglers))
		label(p)
		if gr.Group != "" {
			label(g.flag(incident, gr.Incident))
		}
	}
	appendSignals(g, groups)
	return g
}

// appendSignals adds what nodes are compared with, signal by signal.
func appendSignals(g gauges, groups []straggler.GroupReport) {
	medians := g.metric(gpusemconv.MetricStragglerSignalMedian, "1", "Median of the active nodes' signal, in its own unit.")
	scales := g.metric(gpusemconv.MetricStragglerSignalScale, "1", "Spread of the active nodes' signal as a fraction of its level, smoothed.")
	thresholds := g.metric(gpusemconv.MetricStragglerSignalThreshold, "1", "Where evidence against a node begins to gather, in the signal's own unit.")
	falls := g.metric(gpusemconv.MetricStragglerSignalFall, "1", "How far the median is below the group's usual level, as a fraction of it; negative above.")
	add := func(gr *straggler.GroupReport, signals *[nodesignal.Count]straggler.SignalReport, cohort string) {
		for s := range nodesignal.Count {
			r := &signals[s]
			if !r.Known {
				continue
			}
			for _, p := range [...]pmetric.NumberDataPoint{g.double(medians, r.Params.Centre), g.double(scales, r.Params.Scale), g.double(thresholds, r.Params.Threshold()), g.double(falls, r.Fall)} {
				p.Attributes().PutStr(gpusemconv.AttrPeerGroup, gr.Group)
				p.Attributes().PutStr(gpusemconv.AttrSignal, s.String())
				putText(p.Attributes(), gpusemconv.AttrCohort, cohort)
			}
		}
	}
	for i := range groups {
		gr := &groups[i]
		if len(gr.Cohorts) == 0 {
			add(gr, &gr.Signals, "")
		}
		for j := range gr.Cohorts {
			add(gr, &gr.Cohorts[j].Signals, strconv.Itoa(j+1))
		}
	}
}

func appendNode(md pmetric.Metrics, ts pcommon.Timestamp, n *straggler.NodeReport, ids *identifier) {
	rm := md.ResourceMetrics().AppendEmpty()
	ids.stamp(rm.Resource().Attributes(), n.Cluster, n.Node, n.Peers)
	g := newGauges(rm, ts)
	p := g.flag(g.metric(gpusemconv.MetricNodeStraggler, "", "1 while the gateway takes the node for a straggler."), n.Straggler)
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
	p = g.double(g.metric(gpusemconv.MetricNodeSuspicion, "1", "How close the node is to a verdict: from 1 on it is a straggler if that lasts."), n.Suspicion)
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
}

func timestampOrNow(ts pcommon.Timestamp, now time.Time) pcommon.Timestamp {
	if ts == 0 {
		return pcommon.NewTimestampFromTime(now)
	}
	return ts
}
