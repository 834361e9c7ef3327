// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/jobcost"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/slowlink"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// links makes episodes of the events about communicators.
func (x *explainer) links(events []slowlink.Event, r *straggler.Report, l *rankReader) []episode {
	all := make([]episode, len(events))
	for i := range events {
		ep := &all[i]
		*ep = episode{Event: &events[i].Event, link: &events[i].Link}
		if !ep.news() {
			x.repeat(ep)
			continue
		}
		f := x.port(ep, r)
		ep.finding = &f
		if ep.link.Lost > 0 {
			ep.slowdown = jobcost.Slowdown(ep.link.Lost)
			gpus, known := jobGPUs(r, l.job, ep.Cluster, ep.link.Job, x.facts)
			ep.cost, ep.hasCost = jobcost.Hours(ep.link.Lost, gpus, time.Hour), known && gpus > 0
		}
		x.keep(ep)
	}
	return all
}

// port looks for a node of the communicators with a fact of a port, or of NVLink, that
// the others lack. Without one nobody is named.
func (x *explainer) port(ep *episode, r *straggler.Report) reason.Finding {
	since := ep.Since
	if !ep.sinceKnown() {
		since = time.Time{}
	}
	for _, node := range ep.Nodes[:min(len(ep.Nodes), maxAskedOfLink)] {
		f := x.facts.store.Explain(ep.Cluster, node, clusterNodes(r, ep.Cluster), since, ep.At)
		if f.Reason.MakesLinksSlow() && !f.Observation {
			ep.faulty = node
			return f
		}
	}
	return reason.OfLink()
}

// maxAskedOfLink of the nodes of communicators are asked for a fault of a port: pushes
// wait meanwhile.
const maxAskedOfLink = 32

// clusterNodes are the names of the nodes of a cluster; those of the report are in order.
func clusterNodes(r *straggler.Report, cluster string) iter.Seq[string] {
	at, _ := slices.BinarySearchFunc(r.Nodes, cluster, func(n straggler.NodeReport, cluster string) int { return cmp.Compare(n.Cluster, cluster) })
	return func(yield func(string) bool) {
		for i := at; i < len(r.Nodes) && r.Nodes[i].Cluster == cluster; i++ {
			if !yield(r.Nodes[i].Node) {
				return
			}
		}
	}
}

// jobGPUs counts the GPUs of a job's active nodes.
func jobGPUs(r *straggler.Report, peer int, cluster, job string, facts *factReader) (gpus int, known bool) {
	if job == "" {
		return 0, false
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		if g.Cluster == cluster && peer > 0 && peer <= len(g.Peers) && g.Peers[peer-1] == job {
			n, ok := activeGPUs(groupMembers(r.Nodes, cluster, g.Group), facts)
			if !ok {
				return 0, false
			}
			gpus += n
		}
	}
	return gpus, true
}

// fillLink writes the attributes of an episode about communicators.
func (ep *episode) fillLink(a pcommon.Map) {
	if ep.link.Count > 0 {
		a.PutInt(gpusemconv.AttrCommunicatorCount, int64(ep.link.Count))
		list := a.PutEmptySlice(gpusemconv.AttrCommunicatorIDs)
		for _, id := range ep.link.Communicators {
			list.AppendEmpty().SetStr(id)
		}
	}
	putText(a, gpusemconv.AttrCommunicatorName, ep.link.Name)
	putText(a, gpusemconv.AttrCommunicatorFaulty, ep.faulty)
	putText(a, gpusemconv.AttrJobID, ep.link.Job)
	putText(a, gpusemconv.AttrCollectiveOperation, ep.link.Op.Operation)
	a.PutInt(gpusemconv.AttrCollectiveSize, ep.link.Op.Size)
	a.PutInt(gpusemconv.AttrCommunicatorSize, ep.link.Op.Ranks)
	a.PutInt(gpusemconv.AttrCommunicatorNodes, ep.link.Op.Nodes)
	if !ep.news() {
		return
	}
	a.PutDouble(gpusemconv.AttrEpisodeConfidence, ep.Confidence)
	a.PutDouble(gpusemconv.AttrEpisodeGap, ep.Gap)
	a.PutInt(gpusemconv.AttrEpisodePeersActive, int64(ep.Active))
	if ep.Compared {
		a.PutDouble(gpusemconv.AttrEpisodeValue, ep.Value)
		a.PutDouble(gpusemconv.AttrEpisodePeersMedian, ep.Median)
	}
}

// all reports whether an event is about all communicators of a kind, of several.
func (ep *episode) all() bool { return ep.link.Count > 1 && ep.link.Count >= ep.Active }

func (ep *episode) linkSentence() string {
	what := ep.linkName()
	if ep.Kind == straggler.EventEnd {
		return what + " is no slow link any more: " + ep.Cause + ep.after() + ep.spent()
	}
	text := "SLOW LINK"
	if ep.all() {
		text = "SLOW FABRIC"
	}
	text += ": " + what + " moves " + percent(ep.Gap) + " less than "
	if ep.link.Before {
		text += "before"
	} else {
		text += "others of its kind"
	}
	text += "," + ep.since()
	if ep.Compared {
		text += ", " + short(ep.Value/1e9) + " of " + short(ep.Median/1e9) + " GB/s"
	}
	text += "; " + nodes(ep.NodeCount)
	if ep.faulty != "" {
		text += "; " + oneLine(ep.faulty) + " has a fault of its own"
	}
	return text + ep.why()
}

// linkName names the communicators of an episode.
func (ep *episode) linkName() string {
	l := ep.link
	var name string
	switch {
	case l.Count == 1 && l.Name != "":
		name = "communicator " + oneLine(l.Name) + " (" + oneLine(slices.Concat(l.Communicators, []string{""})[0]) + ")"
	case l.Count == 1 && len(l.Communicators) == 1:
		name = "communicator " + oneLine(l.Communicators[0])
	case ep.all():
		name = "each of all " + count(l.Count, "communicator") + " of its kind"
	default:
		name = "each of " + count(l.Count, "communicator")
	}
	if l.Job != "" {
		name += " of job " + oneLine(l.Job)
	}
	return name
}
