// SPDX-License-Identifier: Apache-2.0

package attention

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/words"
	"github.com/gpu-collector/gpu-collector/internal/verdict/reason"
)

// episodes makes the items of open episodes, of groups that report many slow nodes, and of
// slow nodes without a record.
func (c *collector) episodes(f *Filter, now time.Time) {
	own := map[fleetstate.Key]*episode.Episode{}
	faults := map[fleetstate.GroupKey]*episode.Episode{}
	stragglers := len(c.slow)
	for _, e := range c.store.Episodes(&fleetstate.EpisodeFilter{Clusters: f.Clusters, Open: new(true)}) {
		if len(f.Groups) > 0 && !slices.Contains(f.Groups, e.Group) {
			continue
		}
		k := fleetstate.Key{Cluster: e.Cluster, Node: e.Node}
		switch e.Subject {
		case episode.SubjectNode:
			if _, away := c.missing[k]; away {
				continue // that it is missing matters more
			}
			if _, slow := c.slow[k]; !slow {
				stragglers++ // it recovers, or only its record is known
			}
			own[k] = e
		case episode.SubjectGroup:
			faults[fleetstate.GroupKey{Cluster: e.Cluster, Group: e.Group}] = e
		case episode.SubjectMissing:
			c.gone = append(c.gone, e)
		default:
			c.job(e, now)
		}
	}
	c.list.Counts.Stragglers = stragglers
	for _, g := range c.store.Groups(f.Clusters...) {
		selected := len(f.Groups) == 0 || slices.Contains(f.Groups, g.Group)
		if selected && faults[g.GroupKey] == nil && g.Flag(reading.GroupIncident) {
			faults[g.GroupKey] = &episode.Episode{Cluster: g.Cluster, Group: g.Group}
		}
	}
	for k, e := range faults {
		c.fault(k, e, own)
	}
	for k, e := range own {
		delete(c.slow, k)
		c.straggler(e, now)
	}
	for k, v := range c.slow {
		if bad := c.hardware[k]; len(bad) > 0 {
			i := &c.list.Items[bad[0]]
			i.Straggler, i.Severity = true, max(i.Severity, episode.SeverityMajor)
			continue
		}
		i := about(&v, Straggler)
		i.What, i.Next = words.What(&episode.Episode{Subject: episode.SubjectNode}), "The record says by how much and why. The record comes within a minute."
		i.Action = string(gpuhealth.ActionNone)
		c.add(episode.SeverityMajor, i)
	}
}

// item has the fields that all episodes share.
func item(e *episode.Episode, k Kind) *Item {
	i := &Item{
		ID: idOf(k, e.Cluster, e.Node, e.ID), Kind: k, Cluster: e.Cluster, Group: e.Group, Node: e.Node, Episode: e.ID,
		Reason: e.Reason, Action: e.Action, Since: e.Since, SinceBefore: e.SinceBefore, CostPerHour: e.Cost,
		Confidence: e.Confidence, Updated: e.Updated,
	}
	if e.Recovering {
		i.Action = string(gpuhealth.ActionNone)
	}
	return i
}

func severityOf(e *episode.Episode) episode.Severity {
	return cmp.Or(e.Severity, episode.SeverityMajor)
}

// straggler is a slow node.
func (c *collector) straggler(e *episode.Episode, now time.Time) {
	i := item(e, Straggler)
	i.ID = idOf(Straggler, e.Cluster, e.Node, "")
	c.of(i, e, now)
	if at := c.cause(e); at != nil {
		i.Severity = severityOf(e)
		at.join(i)
		return
	}
	c.add(severityOf(e), i)
}

// of sets the texts of an episode, with the GPUs of its node.
func (c *collector) of(i *Item, e *episode.Episode, now time.Time) {
	v, _ := c.store.Node(fleetstate.Key{Cluster: e.Cluster, Node: e.Node}, now)
	names := v.GPUName
	if uuid := cmp.Or(e.Culprit.GPU, e.GPU); uuid != "" && v.Node != nil {
		i.GPUs = gpusOf(v.Node, func(g *fleetstate.GPU) bool { return g.UUID == uuid })
	}
	i.Part, i.What, i.Why, i.Next = words.Part(e, names), words.What(e), words.Why(e, names), words.Next(e)
}

// fault is of many nodes that are slow at once. A node that is worse, or slow for another
// reason, keeps its own item.
func (c *collector) fault(k fleetstate.GroupKey, e *episode.Episode, own map[fleetstate.Key]*episode.Episode) {
	i := item(e, GroupFault)
	i.ID, i.NodeCount = idOf(GroupFault, k.Cluster, "", k.Group), e.NodeCount
	for _, name := range e.Nodes {
		key := fleetstate.Key{Cluster: e.Cluster, Node: name}
		_, away := c.missing[key]
		if mine := own[key]; away || mine != nil && hasOwnRecord(mine, e) {
			i.NodeCount--
			continue
		}
		if _, still := c.slow[key]; still {
			i.Nodes = append(i.Nodes, name)
		}
		delete(own, key)
		delete(c.slow, key)
	}
	for key, v := range c.slow {
		if v.Cluster == k.Cluster && v.Group == k.Group && own[key] == nil {
			delete(c.slow, key)
			i.Nodes = append(i.Nodes, key.Node)
		}
	}
	slices.Sort(i.Nodes)
	i.NodeCount = max(i.NodeCount, int64(len(i.Nodes)))
	all := *e
	all.Subject, all.NodeCount = episode.SubjectGroup, max(e.NodeCount, i.NodeCount) // those with an item of their own too
	i.What, i.Why, i.Next = words.What(&all), words.Why(&all, words.NoGPUs), words.Next(&all)
	i.Action = cmp.Or(i.Action, string(gpuhealth.ActionCheckShared))
	c.list.Counts.GroupFaults++
	c.add(severityOf(e), i)
}

func hasOwnRecord(mine, all *episode.Episode) bool {
	explained := mine.Reason != "" && mine.Reason != string(reason.Unexplained)
	return explained && mine.Reason != all.Reason || severityOf(mine) > severityOf(all)
}

// job is a communicator that is slow, or a job that stands still.
func (c *collector) job(e *episode.Episode, now time.Time) {
	i := item(e, GroupFault)
	if e.Node == "" {
		i.Nodes, i.NodeCount = slices.Clone(e.Nodes), max(e.NodeCount, int64(len(e.Nodes)))
	}
	c.of(i, e, now)
	i.Action = string(gpuhealth.ActionInspectJob)
	if e.Subject == episode.SubjectLink {
		i.Action = string(gpuhealth.ActionCheckNetwork)
	}
	c.list.Counts.GroupFaults++
	c.add(severityOf(e), i)
}
