// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
)

// Report is what one tick found. It and all it holds belong to the engine and
// are valid until the next Tick; only read it.
type Report struct {
	At     time.Time
	Groups []GroupReport
	// Nodes lists every node kept, by cluster, group and name.
	Nodes []NodeReport
	// Changes lists the nodes whose verdict changed with this tick.
	Changes []NodeReport
	// Events are the news of the episodes, by cluster and group.
	Events []Event
	// Ranks lists the most suspicious nodes of each cluster, worst first, at
	// most `max_ranked` per cluster, whether or not one is a straggler.
	Ranks []Rank
	// Counters are since the report before.
	Counters Counters
}

// GroupReport is one peer group, or a whole cluster when Group is empty.
type GroupReport struct {
	Cluster, Group string
	// Peers are the values of the peer-group attributes, nil of a whole cluster.
	Peers []string
	// Valid is false until a quorum was met once; then Threshold is the newest
	// that had a quorum and no panic.
	Valid     bool
	Quorum    bool
	Threshold float64
	Median    float64
	// MAD is the plain median absolute deviation, without the factor MADToSigma.
	MAD float64
	// Ref is the median throughput of the busy nodes, 0 below the quorum.
	Ref         float64
	Counts      [numStates]int // indexed by State
	CoverageLow bool
	Panic       bool
	// PanicBegan is true on the first tick of a panic.
	PanicBegan bool
	Stragglers int

	// Signals is how the nodes are compared by each signal; all unknown for a
	// whole cluster and for a group that is split.
	Signals [nodesignal.Count]SignalReport
	// Cohorts are the parts of a group that is split, the lowest first, else empty. SplitBy is the signal that tells them apart.
	Cohorts []CohortReport
	SplitBy nodesignal.Signal
	// Held is true when an incident kept the nodes' means of SplitBy where they
	// were at this tick.
	Held bool
	// Settled is true of a group that was there long before: nodes that come to it
	// take longer to warm up.
	Settled bool
	// Turns is true while its nodes take each other's work in turns: a node whose value
	// is at a lower cohort's level becomes one of its nodes.
	Turns bool
	// Incident is true while many of its nodes are slow.
	Incident      bool
	IncidentSince time.Time
	// Unjudged counts the nodes by why there is no verdict on them.
	Unjudged [unjudged.Count]int
	// Detectable is the smallest loss that is found within an hour now, a fraction of
	// the peers' level; 0 while nobody is compared.
	Detectable float64
}

// CohortReport is one part of a group that is split for its nodes do two kinds
// of work. A node belongs to the last cohort whose From is not above its own
// mean of SplitBy over the split's window.
type CohortReport struct {
	From    float64
	HasFrom bool
	Active  int
	Signals [nodesignal.Count]SignalReport
}

// SignalReport is how nodes are compared by one signal.
type SignalReport struct {
	// Known is false when too few of them report it: nobody is judged by it.
	Known  bool
	Params Params
	// Threshold is the value from which on evidence against a node gathers, in the
	// signal's unit. A node's own bias shifts it.
	Threshold float64
	// N nodes were compared, Phi is how much of a deviation lasts to the next tick.
	N   int
	Phi float64
	// Fall is how far the group's median is below its usual level, a fraction;
	// negative above. That all fall is no event: it is another phase of the work.
	Fall float64
}

// NodeName says which node a report is about.
type NodeName struct {
	Cluster, Group, Node string
	// Peers are the values of the peer-group attributes.
	Peers []string
}

// NodeReport is the verdict on one node. The name is apart, since it stays from
// tick to tick: what a tick writes fits into one cache line.
type NodeReport struct {
	*NodeName
	State     State
	Straggler bool
	// Contested is true while several nodes seem to use the name.
	Contested bool
	// Waits is true while the node, which has come to a group without labels, is
	// given time for others that do the same other work: it is compared with nobody.
	Waits bool
	// Unjudged is why there is no verdict on it, UnjudgedBefore at the tick before. Until
	// is when it ends, in unix milliseconds, if that is known.
	Unjudged, UnjudgedBefore unjudged.Reason
	Until                    int64
	// Signal is the one with the greatest Suspicion, S/h in [0,2], and Gap the
	// node's loss in it, a fraction of the peers' level.
	Signal    nodesignal.Signal
	Suspicion float64
	Gap       float64
	Since     time.Time
}

// Rank is one place in a cluster's rank list.
type Rank struct {
	// Rank is 1 for the worst.
	Rank int
	NodeReport
}

// Counters count what was not taken at its word.
type Counters struct {
	// GroupChanges are moves of a node to another peer group.
	GroupChanges int64
	// ReclaimedClusters fell silent and were forgotten to make room for others.
	ReclaimedClusters int64
	// Contested counts names that became contested. Stuck counts nodes that were not
	// accused since their throughput never changes. Flapping counts episodes that were
	// held open, Folded the onsets in a group's or cluster's event.
	Contested, Stuck, Flapping, Folded int64
}
