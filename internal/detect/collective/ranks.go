// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"cmp"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// rank is what is kept of one.
type rank struct {
	Rank
	key        string    // of its node's ranks
	first      time.Time // its first report
	reportedAt time.Time // its last report
	among      population
	values     nodesignal.Values
	changed    bool      // some are of this tick
	stalled    time.Time // zero while its operations end
}

// find returns what is kept of a rank.
func (b *Tracker) find(of *Rank, now time.Time) (*rank, error) {
	at, name := key{of.Cluster, of.Node}, of.name()
	n := b.nodes[at]
	if n == nil {
		n = &node{ranks: make(map[string]*rank)}
	}
	r := n.ranks[name]
	switch {
	case r == nil:
		r = &rank{Rank: of.own(), first: now}
		if !b.take(key{r.Cluster, r.Node}) {
			return nil, ErrTooMany
		}
		delete(b.left, key{r.Cluster, b.jobOf(&r.Rank)})
		r.key = r.name()
		n.ranks[r.key] = r
		b.nodes[key{r.Cluster, r.Node}] = n
	case r.Rank != *of:
		r.Rank = of.own()
	}
	r.reportedAt, n.reportedAt = now, now
	return r, nil
}

// setSignal stores a signal of a rank.
func (b *Tracker) setSignal(of *Rank, s nodesignal.Signal, v float64, now time.Time) error {
	r, err := b.find(of, now)
	if err == nil {
		r.values.Set(s, v)
		r.changed = true
	}
	return err
}

// Share takes a rank's share of wall time in collectives since its last report.
func (b *Tracker) Share(of *Rank, share float64, now time.Time) error {
	return b.setSignal(of, nodesignal.Communication, share, now)
}

// noProcess stands for all of a node's job.
const noProcess = -1

// Steps takes that a job steps on a node.
func (b *Tracker) Steps(of *Rank, now time.Time) error {
	_, err := b.find(&Rank{Cluster: of.Cluster, Node: of.Node, Job: of.Job, PID: noProcess}, now)
	return err
}

// OwnTime takes what a step took a rank without the wait for others, since its last report,
// in seconds. Ranks without a name look alike, so that such a report only counts as a step.
func (b *Tracker) OwnTime(of *Rank, seconds float64, now time.Time) error {
	if !of.Named() {
		return b.Steps(of, now)
	}
	if n := b.nodes[key{of.Cluster, of.Node}]; n != nil {
		if r := n.ranks[of.name()]; r != nil { // its communicator is known from elsewhere
			of.Communicator = r.Communicator
		}
	}
	return b.setSignal(of, nodesignal.Throughput, 1/seconds, now)
}

// peers names the ranks that a rank is compared with: those of the same role in the job,
// else those that end operations together with it.
func (b *Tracker) peers(r *rank) [2]string {
	switch {
	case r.Job != "" && r.Role != "":
		return [2]string{r.Job, r.Role}
	case r.Job == "" && r.ID == "": // other nodes' ranks may be of another job
		return [2]string{r.Node, r.Role}
	}
	return [2]string{b.jobOf(&r.Rank), b.parts.name(&r.Rank)}
}

// population are ranks that are compared with one another.
type population struct {
	cluster string
	peers   [2]string
}

// census counts the ranks of a population, the most of a node and of all other nodes, their
// nodes, and those of them that have a rank that is not slow.
type census struct {
	ranks, most, next, nodes, well int
	mostOf, lastWell               *node
}

func (b *Tracker) populate(now time.Time) map[population]census {
	sizes := make(map[population]census)
	own := make(map[population]int)
	for at, n := range b.nodes {
		clear(own)
		for _, r := range n.ranks {
			if r.compared(b, now) {
				r.among = population{at.cluster, b.peers(r)}
				own[r.among]++
			}
		}
		for p, ranks := range own {
			c := sizes[p]
			c.ranks, c.nodes = c.ranks+ranks, c.nodes+1
			if ranks > c.most {
				c.most, c.next, c.mostOf = ranks, c.most, n
			} else {
				c.next = max(c.next, ranks)
			}
			sizes[p] = c
		}
	}
	return sizes
}

// maxGPUs of a node count at most, and where it does not report their number.
const maxGPUs = 64

func (r *rank) compared(b *Tracker, now time.Time) bool {
	return r.PID != noProcess && b.fresh(r.reportedAt, now)
}

// compared are the ranks of a node that count, the oldest first: of each population as many
// as the node has GPUs, and half as many as all others have together, or as many as another
// node. So no node outvotes the others by ranks, or GPUs, that it makes up. Of two nodes
// either may be wrong.
func (b *Tracker) compared(n *node, sizes map[population]census, now time.Time) (list []*rank) {
	own := make(map[population]int, 1)
	for _, r := range n.ranks {
		if r.compared(b, now) {
			own[r.among]++
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(x, y *rank) int { return cmp.Or(x.first.Compare(y.first), cmp.Compare(x.key, y.key)) })
	counted := make(map[population]int, len(own))
	return slices.DeleteFunc(list, func(r *rank) bool {
		most := min(cmp.Or(n.gpus, maxGPUs), maxGPUs)
		if all := sizes[r.among]; all.nodes > 1 {
			another := all.most
			if all.mostOf == n {
				another = all.next
			}
			most = min(most, max((all.ranks-own[r.among])/2, another))
		}
		counted[r.among]++
		return counted[r.among] > most
	})
}

// Gone forgets a rank whose process has ended.
func (b *Tracker) Gone(of *Rank) {
	n := b.nodes[key{of.Cluster, of.Node}]
	if n == nil || n.ranks[of.name()] == nil || n.ranks[of.name()].ID != of.ID {
		return // it is in another communicator now
	}
	job := key{n.ranks[of.name()].Cluster, b.jobOf(&n.ranks[of.name()].Rank)}
	delete(n.ranks, of.name())
	b.give(key{of.Cluster, of.Node})
	for _, r := range n.ranks {
		if r.PID == of.PID {
			return
		}
	}
	b.left[job]++
}

// compare judges the ranks, and gives the verdict on each node to the nodes' engine.
func (b *Tracker) compare(to *straggler.Engine, now time.Time) {
	sizes := b.populate(now)
	for at, n := range b.nodes {
		n.verdict, n.slow, n.of = straggler.RankVerdict{}, 0, 0
		for name, r := range n.ranks {
			if now.Sub(r.reportedAt) > b.cfg.Retention || !b.fresh(n.reportedAt, now) {
				delete(n.ranks, name)
				b.give(at)
			}
		}
		for _, r := range b.compared(n, sizes, now) {
			if !r.changed {
				continue
			}
			r.changed = false
			o := nodesignal.Observation{
				Cluster: r.Cluster, Node: r.key, GroupLabels: r.among.peers[:], State: nodesignal.StateActive, HasState: true, Values: r.values,
			}
			if err := b.engine.Observe(&o, r.reportedAt); err != nil {
				b.Refused[err]++
			}
		}
		for _, r := range n.ranks {
			if r.changed {
				r.changed = false
				b.Refused[ErrTooManyRanks]++
			}
			r.values.Known = [nodesignal.Count]bool{}
		}
		if len(n.ranks) == 0 {
			delete(b.nodes, at)
		}
	}
	report := b.engine.Tick(now)
	judged := func(row *straggler.NodeReport) (*node, *rank) {
		if n := b.nodes[key{row.Cluster, nodeOf(row.Node)}]; n != nil && row.Unjudged.Compared() {
			return n, n.ranks[row.Node]
		}
		return nil, nil
	}
	for i := range report.Nodes {
		if n, r := judged(&report.Nodes[i]); r != nil && !report.Nodes[i].Straggler {
			if c := sizes[r.among]; c.lastWell != n {
				c.lastWell, c.well = n, c.well+1
				sizes[r.among] = c
			}
		}
	}
	groups := report.Groups
	for i := range report.Nodes {
		row := &report.Nodes[i]
		for groups[0].Cluster != row.Cluster || groups[0].Group != row.Group {
			groups = groups[1:]
		}
		n, r := judged(row)
		if r == nil {
			continue
		}
		if c := sizes[r.among]; row.Straggler && c.nodes > 2 && c.well < 2 {
			continue // one node against all others is no measure of them
		}
		n.addRank(row, r, &groups[0], &b.cfg.Signals[row.Signal])
	}
	for at, n := range b.nodes {
		// All ranks of the node are slow: the node is at fault, by its host or its data.
		if n.slow > 1 && n.slow == n.of {
			n.verdict.Culprit = nodesignal.Subject{}
		}
		to.SetRankVerdict(at.cluster, at.name, &n.verdict)
	}
}

// addRank keeps the verdict on the rank that is furthest behind of its node.
func (n *node) addRank(row *straggler.NodeReport, r *rank, g *straggler.GroupReport, spec *nodesignal.Spec) {
	value, peers := r.values.V[row.Signal], &g.Signals[row.Signal]
	median := peers.Median
	n.of++
	if row.Straggler {
		n.slow++
	}
	w := &n.verdict
	for i, s := range straggler.RankSignals {
		v, l := r.values.V[s], &w.Levels[i]
		if m := g.Signals[s].Median; g.Signals[s].N > 0 && v > 0 && (l.Median == 0 || v/m < l.Value/l.Median) {
			*l = straggler.RankLevel{Value: v, Median: m}
		}
	}
	if w.Judged && (w.Slow && !row.Straggler || w.Slow == row.Straggler && w.Gap >= row.Gap) {
		return
	}
	*w = straggler.RankVerdict{
		Judged: true, Slow: row.Straggler, Why: row.Unjudged, Signal: row.Signal, Job: r.Job, Culprit: r.culprit(), Since: row.Since, Gap: row.Gap, Suspicion: row.Suspicion,
		Behind: peers.N == 0 || spec.Loss(spec.Level(median)-spec.Level(value)) > row.Gap/2, Value: value, Median: median,
		Ranks:  g.Counts[nodesignal.StateActive], // also those without a report since the tick before
		Levels: w.Levels,
	}
}
