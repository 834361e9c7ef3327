// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// endTicks is for how many ticks the end of a silence is told: a tick's metrics may be
// lost, and the next hop would keep the last value.
const endTicks = 6

// silences asks the fleet view whom people have silenced, and says so in metrics and
// records.
type silences struct {
	books   []*people.Book // of all extensions that have one
	jobPeer int            // place of the job among the peers, from 1 on; 0 is without
	// nodes are the silenced ones of the last tick. A record of a node names no group.
	nodes atomic.Pointer[map[nodeKey]*people.Silence]
	// told counts down the ends, by cluster; used by the ticks alone.
	told map[string]map[hush]int
}

// hush is what is silenced: which of the metric's keys says it, and its value.
type hush struct {
	key  int
	name string
}

// The keys of the metric, as internal/reading has them.
const (
	hushNode = iota
	hushJob
	hushGroup
)

var silenced, _ = reading.Of(reading.SilencedUntil)

// join finds the rooms of people's words.
func (s *silences) join(host component.Host) {
	extensions := host.GetExtensions()
	for _, id := range slices.SortedFunc(maps.Keys(extensions), func(a, b component.ID) int { return cmp.Compare(a.String(), b.String()) }) {
		if k, ok := extensions[id].(people.Keeper); ok {
			s.books = append(s.books, k.People())
		}
	}
}

// of returns the silence that lasts longest, nil for none.
func (s *silences) of(scope people.Scope, now time.Time) *people.Silence {
	var longest *people.Silence
	for _, b := range s.books {
		if k := b.Silenced(scope, now); k != nil && (longest == nil || k.Until.After(longest.Until)) {
			longest = k
		}
	}
	return longest
}

// tick adds a resource for each cluster in which something is silenced, or was.
func (s *silences) tick(md pmetric.Metrics, r *straggler.Report) {
	held := map[string]map[hush]time.Time{}
	hold := func(k *people.Silence, key int, name string) {
		if held[k.Cluster] == nil {
			held[k.Cluster] = map[hush]time.Time{}
		}
		if h := (hush{key, name}); k.Until.After(held[k.Cluster][h]) {
			held[k.Cluster][h] = k.Until
		}
	}
	for _, b := range s.books {
		for _, k := range b.Silences(nil, true, r.At) {
			switch {
			case k.Node != "":
				hold(k, hushNode, k.Node)
			case k.Job != "":
				hold(k, hushJob, k.Job)
			default:
				hold(k, hushGroup, k.Group)
			}
		}
	}
	nodes := map[nodeKey]*people.Silence{}
	if len(held) > 0 {
		for i := range r.Nodes {
			n := &r.Nodes[i]
			if k := s.of(people.Scope{Cluster: n.Cluster, Node: n.Node, Job: s.job(n.Peers), Group: n.Group}, r.At); k != nil {
				hold(k, hushNode, n.Node)
				nodes[nodeKey{n.Cluster, n.Node}] = k
			}
		}
	}
	s.nodes.Store(&nodes)
	s.write(md, pcommon.NewTimestampFromTime(r.At), held)
}

func (s *silences) job(peers []string) string {
	if s.jobPeer == 0 || s.jobPeer > len(peers) {
		return ""
	}
	return peers[s.jobPeer-1]
}

// write tells what is held, then what is not any more: the prometheus exporter skips
// what is behind a point without a value.
func (s *silences) write(md pmetric.Metrics, ts pcommon.Timestamp, held map[string]map[hush]time.Time) {
	for cluster, list := range held {
		if s.told[cluster] == nil {
			if s.told == nil {
				s.told = map[string]map[hush]int{}
			}
			s.told[cluster] = map[hush]int{}
		}
		for h := range list {
			s.told[cluster][h] = endTicks
		}
	}
	for _, cluster := range slices.Sorted(maps.Keys(s.told)) {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
		g := nodereport.NewGauges(rm, metadata.ScopeName, ts)
		points := g.Metric(gpusemconv.MetricStragglerSilenced)
		told := s.told[cluster]
		all := slices.SortedFunc(maps.Keys(told), func(a, b hush) int {
			return cmp.Or(cmp.Compare(b.key, a.key), cmp.Compare(a.name, b.name))
		})
		for _, h := range all {
			if until, holds := held[cluster][h]; holds {
				p := g.Point(points)
				p.SetIntValue(until.Unix())
				p.Attributes().PutStr(silenced.Keys[h.key].Name, h.name)
			}
		}
		for _, h := range all {
			if _, holds := held[cluster][h]; holds {
				continue
			}
			p := g.Point(points)
			p.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
			p.Attributes().PutStr(silenced.Keys[h.key].Name, h.name)
			if told[h]--; told[h] == 0 {
				delete(told, h)
			}
		}
		if len(told) == 0 {
			delete(s.told, cluster)
		}
	}
}

// stamp says of a record whether it is about something silenced. The word of a sender
// about that is taken off.
func (s *silences) stamp(a pcommon.Map, scope people.Scope, now time.Time) {
	for _, name := range [...]string{gpusemconv.AttrSilenced, gpusemconv.AttrSilenceUntil, gpusemconv.AttrSilenceReason} {
		a.Remove(name)
	}
	k := s.of(scope, now)
	if nodes := s.nodes.Load(); k == nil && nodes != nil && scope.Node != "" {
		// The group that the node was in at the last tick.
		if k = (*nodes)[nodeKey{scope.Cluster, scope.Node}]; k != nil {
			k = s.of(people.Scope{Cluster: k.Cluster, Node: k.Node, Job: k.Job, Group: k.Group}, now) // it may have ended
		}
	}
	if k == nil {
		return
	}
	a.PutBool(gpusemconv.AttrSilenced, true)
	a.PutStr(gpusemconv.AttrSilenceUntil, k.Until.UTC().Format(iso8601))
	a.PutStr(gpusemconv.AttrSilenceReason, k.Reason)
}

// pass stamps the records that say something of a GPU or of a node. Logs of jobs pass
// unchanged.
func (s *silences) pass(ld plog.Logs, caller, defaultCluster string, now time.Time) {
	for _, rl := range ld.ResourceLogs().All() {
		var names identity.Names
		var scope people.Scope
		for _, sl := range rl.ScopeLogs().All() {
			for _, lr := range sl.LogRecords().All() {
				switch lr.EventName() {
				case gpusemconv.EventXid, gpusemconv.EventHealthChange, gpusemconv.EventStraggler:
				default:
					continue
				}
				if scope.Cluster == "" { // most resources have no such record
					metricreading.Identify(&names, rl.Resource().Attributes())
					scope = people.Scope{Cluster: names.Cluster(caller, defaultCluster), Node: names.Node()}
					if v, ok := rl.Resource().Attributes().Get(gpusemconv.AttrJobID); ok {
						scope.Job = metricreading.Text(v)
					}
				}
				s.stamp(lr.Attributes(), scope, now)
			}
		}
	}
}

// scope is what an episode is about.
func (ep *episode) scope(s *silences) people.Scope {
	scope := people.Scope{Cluster: ep.Cluster, Node: ep.Node, Group: ep.Group, Job: s.job(ep.Peers)}
	switch {
	case ep.hang != nil:
		scope.Job = ep.hang.Job
	case ep.link != nil:
		scope.Job = ep.link.Job
	}
	return scope
}
