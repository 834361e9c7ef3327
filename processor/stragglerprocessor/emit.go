// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// reporter turns a gateway's ticks into metrics.
type reporter struct {
	ids *identifier
	// listed are the nodes that were told last, by cluster and metric.
	listed map[list]map[member]bool
}

type list struct{ cluster, metric string }

// member is who is in a list, as its series is known.
type member struct{ node, group string }

// nodesPerBatch is a millisecond's work for whoever makes a batch, and for whoever
// takes it. Then the pushes have their turn. The scheduler interrupts only after ten
// milliseconds, and several goroutines in turn handle a push.
const nodesPerBatch = 250

// metrics returns one resource per cluster, and one per node that reports, in
// batches of so many nodes. A cluster has a point per peer group, and one without
// group for the whole. It lets others run between two of them.
func (r *reporter) metrics(rep *straggler.Report) []pmetric.Metrics {
	md := pmetric.NewMetrics()
	batches := []pmetric.Metrics{md}
	ts := pcommon.NewTimestampFromTime(rep.At)
	nodes := rep.Nodes
	for from := 0; from < len(rep.Groups); {
		to := from + 1
		for to < len(rep.Groups) && rep.Groups[to].Cluster == rep.Groups[from].Cluster {
			to++
		}
		cluster := rep.Groups[from].Cluster
		g := appendCluster(md, ts, rep.Groups[from:to])
		n := 0
		for n < len(nodes) && nodes[n].Cluster == cluster {
			n++
		}
		ranks, missing := r.list(g, cluster, gpusemconv.MetricStragglerRank), r.list(g, cluster, gpusemconv.MetricStragglerMissing)
		for i, n := range suspects(nodes[:n]) {
			ranks.add(n, int64(i)+1)
		}
		for i := range nodes[:n] {
			if n := &nodes[i]; n.State == nodesignal.StateMissing {
				missing.add(n, n.Seen.Unix())
			}
		}
		ranks.end()
		missing.end()
		nodes = nodes[n:]
		g.DropEmpty()
		from = to
	}
	for of := range r.listed {
		if _, known := slices.BinarySearchFunc(rep.Groups, of.cluster, func(g straggler.GroupReport, c string) int { return cmp.Compare(g.Cluster, c) }); !known {
			delete(r.listed, of)
		}
	}
	told := 0
	for i := range rep.Nodes {
		n := &rep.Nodes[i]
		if n.State == nodesignal.StateMissing {
			continue
		}
		if told == nodesPerBatch {
			runtime.Gosched()
			md, told = pmetric.NewMetrics(), 0
			batches = append(batches, md)
		}
		told++
		appendNode(md, ts, n, r.ids)
	}
	return batches
}

// maxRanked nodes of a cluster have a rank.
const maxRanked = 10

// suspects are the most suspicious active nodes, the worst first. Of two alike the first
// by group and name comes first.
func suspects(nodes []straggler.NodeReport) []*straggler.NodeReport {
	most := make([]*straggler.NodeReport, 0, maxRanked+1)
	for i := range nodes {
		n := &nodes[i]
		if n.State != nodesignal.StateActive {
			continue
		}
		at, _ := slices.BinarySearchFunc(most, n, func(m, n *straggler.NodeReport) int {
			return cmp.Or(cmp.Compare(n.Suspicion, m.Suspicion), cmp.Compare(n.Gap, m.Gap), -1)
		})
		if at < maxRanked {
			most = slices.Insert(most, at, n)
			most = most[:min(len(most), maxRanked)]
		}
	}
	return most
}

// listing is a list of nodes of a cluster. A node that leaves it gets a point without a value:
// two nodes of one rank would be no list. Such points come last, since the prometheus
// exporter skips what is behind them.
type listing struct {
	r           *reporter
	of          list
	gauges      nodereport.Gauges
	points      pmetric.NumberDataPointSlice
	before, now map[member]bool
}

func (r *reporter) list(g nodereport.Gauges, cluster, metric string) *listing {
	of := list{cluster, metric}
	return &listing{r: r, of: of, gauges: g, points: g.Metric(metric), before: r.listed[of], now: make(map[member]bool)}
}

func (l *listing) point(of member) pmetric.NumberDataPoint {
	p := l.gauges.Point(l.points)
	p.Attributes().PutStr(gpusemconv.AttrHostName, of.node)
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, of.group)
	return p
}

func (l *listing) add(n *straggler.NodeReport, v int64) {
	of := member{n.Node, n.Group}
	l.point(of).SetIntValue(v)
	l.now[of] = true
}

func (l *listing) end() {
	for of := range l.before {
		if !l.now[of] {
			l.point(of).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		}
	}
	if l.r.listed == nil {
		l.r.listed = make(map[list]map[member]bool)
	}
	l.r.listed[l.of] = l.now
}

func appendCluster(md pmetric.Metrics, ts pcommon.Timestamp, groups []straggler.GroupReport) nodereport.Gauges {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, groups[0].Cluster)
	g := nodereport.NewGauges(rm, metadata.ScopeName, ts)
	threshold := g.Metric(gpusemconv.MetricStragglerThreshold)
	median := g.Metric(gpusemconv.MetricStragglerMedian)
	mad := g.Metric(gpusemconv.MetricStragglerMAD)
	nodes := g.Metric(gpusemconv.MetricStragglerNodes)
	quorum := g.Metric(gpusemconv.MetricStragglerQuorumMet)
	coverage := g.Metric(gpusemconv.MetricStragglerCoverageLow)
	count := g.Metric(gpusemconv.MetricStragglers)
	incident := g.Metric(gpusemconv.MetricStragglerIncident)
	without := g.Metric(gpusemconv.MetricStragglerUnjudged)
	detectable := g.Metric(gpusemconv.MetricStragglerDetectable)
	for i := range groups {
		gr := &groups[i]
		label := func(p pmetric.NumberDataPoint) {
			if gr.Group != "" {
				p.Attributes().PutStr(gpusemconv.AttrPeerGroup, gr.Group)
			}
		}
		if gr.Valid {
			label(g.Double(threshold, gr.Value))
		}
		if gr.Quorum {
			label(g.Double(median, gr.Median))
			label(g.Double(mad, gr.MAD))
		}
		for s, n := range gr.Counts {
			p := g.Point(nodes)
			p.SetIntValue(int64(n))
			p.Attributes().PutStr(gpusemconv.AttrNodeState, nodesignal.State(s).String())
			label(p)
		}
		label(g.Flag(quorum, gr.Quorum))
		label(g.Flag(coverage, gr.CoverageLow))
		p := g.Point(count)
		p.SetIntValue(int64(gr.Stragglers))
		label(p)
		if gr.Group != "" {
			label(g.Flag(incident, gr.Incident))
			label(g.Double(detectable, 100*gr.Detectable))
			for why := unjudged.Judged + 1; why < unjudged.Count; why++ {
				p := g.Point(without)
				p.SetIntValue(int64(gr.Unjudged[why]))
				p.Attributes().PutStr(gpusemconv.AttrUnjudged, why.String())
				label(p)
			}
		}
	}
	appendSignals(g, groups)
	return g
}

// appendSignals adds what nodes are compared with, signal by signal.
func appendSignals(g nodereport.Gauges, groups []straggler.GroupReport) {
	medians := g.Metric(gpusemconv.MetricStragglerSignalMedian)
	scales := g.Metric(gpusemconv.MetricStragglerSignalScale)
	thresholds := g.Metric(gpusemconv.MetricStragglerSignalThreshold)
	falls := g.Metric(gpusemconv.MetricStragglerSignalFall)
	for i := range groups {
		gr := &groups[i]
		for s := range nodesignal.Count {
			r := &gr.Signals[s]
			if r.N == 0 {
				continue
			}
			label := func(p pmetric.NumberDataPoint) {
				p.Attributes().PutStr(gpusemconv.AttrPeerGroup, gr.Group)
				p.Attributes().PutStr(gpusemconv.AttrSignal, s.String())
			}
			label(g.Double(medians, r.Median))
			label(g.Double(scales, r.Scale))
			label(g.Double(thresholds, r.Threshold))
			if r.FallKnown {
				label(g.Double(falls, r.Fall))
			}
		}
	}
}

func appendNode(md pmetric.Metrics, ts pcommon.Timestamp, n *straggler.NodeReport, ids *identifier) {
	rm := md.ResourceMetrics().AppendEmpty()
	ids.stamp(rm.Resource().Attributes(), n.Cluster, n.Node, n.Peers)
	g := nodereport.NewGauges(rm, metadata.ScopeName, ts)
	p := g.Flag(g.Metric(gpusemconv.MetricNodeStraggler), n.Straggler)
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
	p = g.Double(g.Metric(gpusemconv.MetricNodeSuspicion), n.Suspicion)
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
	if n.Ranks != nil && n.Ranks.Judged {
		values, medians := g.Metric(gpusemconv.MetricStragglerRankValue), g.Metric(gpusemconv.MetricStragglerRankMedian)
		for i, l := range n.Ranks.Levels {
			if l.Median == 0 {
				continue
			}
			for _, p := range [...]pmetric.NumberDataPoint{g.Double(values, l.Value), g.Double(medians, l.Median)} {
				p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
				p.Attributes().PutStr(gpusemconv.AttrSignal, straggler.RankSignals[i].String())
			}
		}
	}
	if n.Unjudged == unjudged.Judged && n.UnjudgedBefore == unjudged.Judged {
		return // most are; nothing told is judged too
	}
	p = g.Point(g.Metric(gpusemconv.MetricNodeUnjudged))
	p.SetIntValue(int64(n.Unjudged))
	p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
	if n.Until > 0 {
		p = g.Point(g.Metric(gpusemconv.MetricNodeUnjudgedUntil))
		p.SetIntValue(time.UnixMilli(n.Until).Unix())
		p.Attributes().PutStr(gpusemconv.AttrPeerGroup, n.Group)
	}
}
