// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"runtime"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// reporter turns a gateway's ticks into metrics.
type reporter struct {
	ids *identifier
	// listed are the nodes of the tick before, by cluster and metric.
	listed map[list]map[member]bool
}

type list struct{ cluster, metric string }

// member is the identity of a list's series.
type member struct{ node, group string }

// nodesPerBatch is a millisecond's work for the ticker, and for the next component. Then
// the pushes have their turn: the scheduler interrupts only after ten milliseconds.
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
		var missing []*straggler.NodeReport
		for i := range nodes[:n] {
			if n := &nodes[i]; n.State == nodesignal.StateMissing {
				missing = append(missing, n)
			}
		}
		r.list(g, list{cluster, gpusemconv.MetricStragglerRank}, suspects(nodes[:n]), func(i int) int64 { return int64(i) + 1 })
		r.list(g, list{cluster, gpusemconv.MetricStragglerMissing}, missing, func(i int) int64 { return missing[i].Seen.Unix() })
		nodes = nodes[n:]
		from = to
	}
	for of := range r.listed {
		if _, known := slices.BinarySearchFunc(rep.Groups, of.cluster, func(g straggler.GroupReport, c string) int { return cmp.Compare(g.Cluster, c) }); !known {
			delete(r.listed, of)
		}
	}
	inBatch := 0
	for i := range rep.Nodes {
		n := &rep.Nodes[i]
		if n.State == nodesignal.StateMissing {
			continue
		}
		if inBatch == nodesPerBatch {
			runtime.Gosched()
			md, inBatch = pmetric.NewMetrics(), 0
			batches = append(batches, md)
		}
		inBatch++
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

// list writes a list of nodes of a cluster. A node that leaves it gets a point without a value:
// two nodes of one rank would be no list. Such points come last, since the prometheus
// exporter skips what is behind them.
func (r *reporter) list(g nodereport.Gauges, of list, nodes []*straggler.NodeReport, value func(i int) int64) {
	now := make(map[member]bool, len(nodes))
	point := func(m member) pmetric.NumberDataPoint {
		return g.Point(of.metric, gpusemconv.AttrHostName, m.node, gpusemconv.AttrPeerGroup, m.group)
	}
	for i, n := range nodes {
		m := member{n.Node, n.Group}
		point(m).SetIntValue(value(i))
		now[m] = true
	}
	for m := range r.listed[of] {
		if !now[m] {
			point(m).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
		}
	}
	if r.listed == nil {
		r.listed = make(map[list]map[member]bool)
	}
	r.listed[of] = now
}

func appendCluster(md pmetric.Metrics, ts pcommon.Timestamp, groups []straggler.GroupReport) nodereport.Gauges {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, groups[0].Cluster)
	g := nodereport.NewGauges(rm, metadata.ScopeName, ts)
	const key = gpusemconv.AttrPeerGroup
	for i := range groups {
		gr := &groups[i]
		if gr.Valid {
			g.Double(gpusemconv.MetricStragglerThreshold, gr.Value, key, gr.Group)
		}
		if gr.Quorum {
			g.Double(gpusemconv.MetricStragglerMedian, gr.Median, key, gr.Group)
			g.Double(gpusemconv.MetricStragglerMAD, gr.MAD, key, gr.Group)
		}
		for s, n := range gr.Counts {
			g.Int(gpusemconv.MetricStragglerNodes, int64(n), gpusemconv.AttrNodeState, nodesignal.State(s).String(), key, gr.Group)
		}
		g.Flag(gpusemconv.MetricStragglerQuorumMet, gr.Quorum, key, gr.Group)
		g.Flag(gpusemconv.MetricStragglerCoverageLow, gr.CoverageLow, key, gr.Group)
		g.Int(gpusemconv.MetricStragglers, int64(gr.Stragglers), key, gr.Group)
		if gr.Group == "" {
			continue
		}
		g.Flag(gpusemconv.MetricStragglerIncident, gr.Incident, key, gr.Group)
		g.Double(gpusemconv.MetricStragglerDetectable, 100*gr.Detectable, key, gr.Group)
		for why := unjudged.Judged + 1; why < unjudged.Count; why++ {
			g.Int(gpusemconv.MetricStragglerUnjudged, int64(gr.Unjudged[why]), gpusemconv.AttrUnjudged, why.String(), key, gr.Group)
		}
		for s := range nodesignal.Count { // what nodes are compared with
			r, signal := &gr.Signals[s], s.String()
			if r.N == 0 {
				continue
			}
			g.Double(gpusemconv.MetricStragglerSignalMedian, r.Median, key, gr.Group, gpusemconv.AttrSignal, signal)
			g.Double(gpusemconv.MetricStragglerSignalScale, r.Scale, key, gr.Group, gpusemconv.AttrSignal, signal)
			g.Double(gpusemconv.MetricStragglerSignalThreshold, r.Threshold, key, gr.Group, gpusemconv.AttrSignal, signal)
			if r.FallKnown {
				g.Double(gpusemconv.MetricStragglerSignalFall, r.Fall, key, gr.Group, gpusemconv.AttrSignal, signal)
			}
		}
	}
	return g
}

func appendNode(md pmetric.Metrics, ts pcommon.Timestamp, n *straggler.NodeReport, ids *identifier) {
	rm := md.ResourceMetrics().AppendEmpty()
	ids.stamp(rm.Resource().Attributes(), n.Cluster, n.Node, n.GroupLabels)
	g := nodereport.NewGauges(rm, metadata.ScopeName, ts)
	const key = gpusemconv.AttrPeerGroup
	g.Flag(gpusemconv.MetricNodeStraggler, n.Straggler, key, n.Group)
	g.Double(gpusemconv.MetricNodeSuspicion, n.Suspicion, key, n.Group)
	if n.Ranks != nil && n.Ranks.Judged {
		for i, l := range n.Ranks.Levels {
			if l.Median != 0 {
				signal := straggler.RankSignals[i].String()
				g.Double(gpusemconv.MetricStragglerRankValue, l.Value, key, n.Group, gpusemconv.AttrSignal, signal)
				g.Double(gpusemconv.MetricStragglerRankMedian, l.Median, key, n.Group, gpusemconv.AttrSignal, signal)
			}
		}
	}
	if n.Unjudged == unjudged.Judged && n.UnjudgedBefore == unjudged.Judged {
		return // as most are: no point means the same
	}
	g.Int(gpusemconv.MetricNodeUnjudged, int64(n.Unjudged), key, n.Group)
	if n.Until > 0 {
		g.Int(gpusemconv.MetricNodeUnjudgedUntil, time.UnixMilli(n.Until).Unix(), key, n.Group)
	}
}
