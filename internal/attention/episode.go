// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
)

// episodes makes the items of open episodes, of groups that report many slow nodes, and of
// slow nodes without a record.
func (c *collector) episodes(f *Filter, now time.Time) {
	open := true
	own := map[fleetstate.Key]*fleetstate.Episode{}
	faults := map[fleetstate.GroupKey]*fleetstate.Episode{}
	stragglers := len(c.slow)
	for _, e := range c.store.Episodes(&fleetstate.EpisodeFilter{Clusters: f.Clusters, Open: &open}) {
		if len(f.Groups) > 0 && !slices.Contains(f.Groups, e.Group) {
			continue
		}
		k := fleetstate.Key{Cluster: e.Cluster, Node: e.Node}
		switch e.Subject {
		case fleetstate.SubjectNode:
			if _, away := c.missing[k]; away {
				continue // its silence says more than what it was before
			}
			if _, slow := c.slow[k]; !slow {
				stragglers++ // about to be well, or known from the record alone
			}
			own[k] = e
		case fleetstate.SubjectGroup:
			faults[fleetstate.GroupKey{Cluster: e.Cluster, Group: e.Group}] = e
		case fleetstate.SubjectMissing:
			c.silences = append(c.silences, e)
		default:
			c.job(e, now)
		}
	}
	c.list.Counts[Straggler] = stragglers
	for _, g := range c.store.Groups() {
		selected := (len(f.Clusters) == 0 || slices.Contains(f.Clusters, g.Cluster)) && (len(f.Groups) == 0 || slices.Contains(f.Groups, g.Group))
		if selected && faults[g.GroupKey] == nil && (g.Flag(reading.GroupIncident) || g.Flag(reading.GroupPanic)) {
			faults[g.GroupKey] = &fleetstate.Episode{Cluster: g.Cluster, Group: g.Group}
		}
	}
	for k, e := range faults {
		c.fault(k, e, own)
	}
	for k, e := range own {
		delete(c.slow, k)
		c.straggler(e, now)
	}
	for _, v := range c.slow {
		i := about(&v, Straggler)
		i.Part, i.GPUs = partOf(v.Culprit, v.Node)
		i.saySlow(&fleetstate.Episode{})
		c.add(major, i)
	}
}

// item is what all episodes say alike.
func item(e *fleetstate.Episode, k Kind) *Item {
	i := &Item{
		ID: idOf(k, e.Cluster, e.Node, e.ID), Kind: k, Cluster: e.Cluster, Group: e.Group, Node: e.Node, Episode: e.ID,
		Reason: e.Reason, Action: e.Action, Since: e.Since, SinceBefore: e.SinceBefore, CostPerHour: e.LostGPUHoursPerHour,
		Confidence: e.Confidence, Updated: e.Updated,
	}
	return i
}

func severityOf(e *fleetstate.Episode) int {
	if at := slices.Index(severities[:], e.Severity); at >= 0 {
		return at
	}
	return major
}

// straggler is a slow node.
func (c *collector) straggler(e *fleetstate.Episode, now time.Time) {
	i := item(e, Straggler)
	i.ID = idOf(Straggler, e.Cluster, e.Node, "")
	v, _ := c.store.Node(fleetstate.Key{Cluster: e.Cluster, Node: e.Node}, now)
	i.Part, i.GPUs = partOf(whom(e), v.Node)
	i.saySlow(e)
	if e.GPU != "" && e.GPU != whom(e).GPU {
		which, _ := partOf(nodesignal.Subject{GPU: e.GPU}, v.Node)
		i.Why = which + ": " + i.Why
	}
	c.add(severityOf(e), i)
}

// whom is the rank or GPU at fault. A record may name the GPU beside the rank.
func whom(e *fleetstate.Episode) nodesignal.Subject {
	of := e.Culprit
	of.GPU = cmp.Or(of.GPU, e.GPU)
	return of
}

// fault tells of many nodes that are slow at once. A node that is worse, or slow for another
// reason, keeps its own item.
func (c *collector) fault(k fleetstate.GroupKey, e *fleetstate.Episode, own map[fleetstate.Key]*fleetstate.Episode) {
	i := item(e, GroupFault)
	i.ID, i.NodeCount = idOf(GroupFault, k.Cluster, "", k.Group), e.NodeCount
	for _, name := range e.Nodes {
		key := fleetstate.Key{Cluster: e.Cluster, Node: name}
		_, away := c.missing[key]
		if mine := own[key]; away || mine != nil && tellsItself(mine, e) {
			i.NodeCount--
			continue
		}
		delete(own, key)
		delete(c.slow, key)
		i.Nodes = append(i.Nodes, name)
	}
	for key, v := range c.slow {
		if v.Cluster == k.Cluster && v.Group == k.Group && own[key] == nil {
			delete(c.slow, key)
			i.Nodes = append(i.Nodes, key.Node)
		}
	}
	slices.Sort(i.Nodes)
	i.NodeCount = max(i.NodeCount, int64(len(i.Nodes)))
	i.sayFault(e)
	c.list.Counts[GroupFault]++
	c.add(severityOf(e), i)
}

func tellsItself(mine, all *fleetstate.Episode) bool {
	explained := mine.Reason != "" && mine.Reason != string(reason.Unexplained)
	return explained && mine.Reason != all.Reason || severityOf(mine) > severityOf(all)
}

// job is a communicator that is slow, or a job that stands still.
func (c *collector) job(e *fleetstate.Episode, now time.Time) {
	i := item(e, GroupFault)
	if e.Node == "" {
		i.Nodes, i.NodeCount = slices.Clone(e.Nodes), max(e.NodeCount, int64(len(e.Nodes)))
	}
	v, _ := c.store.Node(fleetstate.Key{Cluster: e.Cluster, Node: e.Node}, now)
	i.Part, i.GPUs = partOf(whom(e), v.Node)
	if e.Subject == fleetstate.SubjectJob {
		i.sayStalled(e)
	} else {
		i.sayLink(e)
	}
	c.list.Counts[GroupFault]++
	c.add(severityOf(e), i)
}

// away is an episode of missing nodes: those of it that are still missing.
func (c *collector) away(e *fleetstate.Episode) {
	var gone []fleetstate.View
	for _, name := range e.Nodes {
		if v, away := c.missing[fleetstate.Key{Cluster: e.Cluster, Node: name}]; away {
			gone = append(gone, v)
		}
	}
	// Single nodes say it themselves, with their own time.
	if e.Node == "" && len(gone) >= foldMissing {
		i := item(e, MissingNode)
		i.Since, i.SinceBefore = time.Time{}, false
		c.silentMany(i, gone)
	}
}
