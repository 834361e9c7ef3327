// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/jobcost"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// jobLedger keeps what stragglers cost each job, from tick to tick.
type jobLedger struct {
	peer int // place of the job among the peers, from 1 on; 0 is without jobs
	jobs map[jobKey]*job
	at   time.Time
	// open are the hangs and slow communicators that were told, by the episode's id.
	open map[string]trouble
}

// trouble is an open episode about a job.
type trouble struct {
	of    jobKey
	since time.Time // a hang began; zero of communicators
	slow  int       // communicators
}

type jobKey struct{ cluster, id string }

// job is what is kept of one, for as long as it has a peer group: they are bounded.
type job struct {
	ledger jobcost.Ledger
	// Of the tick: whether the job is there, what its worst node loses, its groups.
	seen   bool
	gap    float64
	groups []string
	stands time.Duration
	slow   int // communicators
}

func newJobLedger(peer int) *jobLedger {
	return &jobLedger{peer: peer, jobs: make(map[jobKey]*job), open: make(map[string]trouble)}
}

// note keeps in mind what is told of a job's hang, or of its communicators.
func (l *jobLedger) note(ep *episode) {
	switch {
	case ep.hang == nil && ep.link == nil:
	case ep.Kind == straggler.EventEnd:
		delete(l.open, ep.ID)
	case ep.hang != nil:
		l.open[ep.ID] = trouble{of: jobKey{ep.Cluster, ep.hang.Job}, since: ep.Since}
	default:
		l.open[ep.ID] = trouble{of: jobKey{ep.Cluster, ep.link.Job}, slow: ep.link.Count}
	}
}

// of returns the job of a peer group, nil of a group without one.
func (l *jobLedger) of(g *straggler.GroupReport) *job {
	if l.peer == 0 || l.peer > len(g.Peers) || g.Peers[l.peer-1] == "" {
		return nil
	}
	return l.jobs[jobKey{g.Cluster, g.Peers[l.peer-1]}]
}

// tick adds up what the jobs have lost since the tick before.
func (l *jobLedger) tick(r *straggler.Report, facts *factReader) {
	for _, j := range l.jobs {
		j.seen, j.gap, j.groups, j.stands, j.slow = false, 0, j.groups[:0], 0, 0
	}
	for _, t := range l.open {
		j := l.jobs[t.of]
		switch {
		case j == nil:
		case t.slow > 0:
			j.slow += t.slow
		default:
			j.stands = max(j.stands, r.At.Sub(t.since))
		}
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		if l.peer == 0 || l.peer > len(g.Peers) || g.Peers[l.peer-1] == "" {
			continue
		}
		j := l.of(g)
		if j == nil {
			j = new(job)
			l.jobs[jobKey{g.Cluster, g.Peers[l.peer-1]}] = j
		}
		j.seen, j.groups = true, append(j.groups, g.Group)
		if g.Stragglers == 0 {
			continue
		}
		for _, n := range groupMembers(r.Nodes, g.Cluster, g.Group) {
			if n.Straggler && n.State == straggler.StateActive {
				j.gap = max(j.gap, n.Gap)
			}
		}
	}
	for k, j := range l.jobs {
		if !j.seen {
			delete(l.jobs, k)
			continue
		}
		gpus, known := 0, true
		for _, g := range j.groups {
			if j.gap > 0 && known {
				var n int
				n, known = activeGPUs(groupMembers(r.Nodes, k.cluster, g), facts)
				gpus += n
			}
		}
		if !known {
			gpus = 0
		}
		j.ledger.Add(r.At, r.At.Sub(l.at), j.gap, gpus)
	}
	l.at = r.At
}

// append adds what the jobs of a cluster lose, a point per peer group.
func (l *jobLedger) append(to nodereport.Gauges, groups []straggler.GroupReport) {
	if l == nil || len(l.jobs) == 0 {
		return
	}
	slowdown, lost := to.Metric(gpusemconv.MetricJobSlowdown), to.Metric(gpusemconv.MetricJobTimeLost)
	stands, slow := to.Metric(gpusemconv.MetricJobStandstill), to.Metric(gpusemconv.MetricJobSlowLinks)
	for i := range groups {
		g := &groups[i]
		j := l.of(g)
		if j == nil {
			continue
		}
		for _, p := range [...]pmetric.NumberDataPoint{
			to.Double(slowdown, j.ledger.S), to.Double(lost, 3600*j.ledger.Today),
			to.Double(stands, j.stands.Seconds()), to.Count(slow, j.slow),
		} {
			p.Attributes().PutStr(gpusemconv.AttrPeerGroup, g.Group)
			p.Attributes().PutStr(gpusemconv.AttrJobID, g.Peers[l.peer-1])
		}
	}
}

// activeGPUs counts the GPUs of the active nodes, false unless all have told theirs.
func activeGPUs(members []straggler.NodeReport, facts *factReader) (gpus int, known bool) {
	for i := range members {
		if members[i].State != straggler.StateActive {
			continue
		}
		n, ok := facts.store.GPUs(members[i].Cluster, members[i].Node)
		if !ok {
			return 0, false
		}
		gpus += n
	}
	return gpus, true
}
