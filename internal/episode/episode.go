// SPDX-License-Identifier: Apache-2.0

// Package episode names what is told of stragglers: for the engine that finds them and
// for all that tell of them.
package episode // import "github.com/gpu-collector/gpu-collector/internal/episode"

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
)

// EventKind is where in its episode an event stands.
type EventKind uint8

// Kinds of events. Each episode has one onset, first, and one end, last.
const (
	EventOnset EventKind = iota
	EventSeverity
	EventUpdate // more nodes are in a group's incident
	EventEnd
)

func (k EventKind) String() string { return [...]string{"onset", "severity", "update", "end"}[k] }

// Subject is what an episode is about.
type Subject uint8

// Subjects.
const (
	SubjectNode    Subject = iota // a slow node
	SubjectGroup                  // many slow nodes of a group
	SubjectMissing                // a silent node, or many at once
	SubjectLink                   // a communicator that became slow, and no rank of it
	SubjectJob                    // a job that stands still
)

func (s Subject) String() string {
	return [...]string{"node", "group", "missing", "communicator", "job"}[s]
}

// Severity of an episode, by its gap.
type Severity uint8

// Severities.
const (
	SeverityMinor Severity = iota
	SeverityMajor
	SeverityCritical
)

func (s Severity) String() string { return [...]string{"minor", "major", "critical"}[s] }

// SeverityOf returns the severity of a gap, a fraction of the peers' level: 10 % is the
// least that Greyhound (ATC '25) acts on, 25 % where NVIDIA's resiliency extension flags a
// rank (score below 0.75).
func SeverityOf(gap float64) Severity {
	switch {
	case gap >= 0.25:
		return SeverityCritical
	case gap >= 0.10:
		return SeverityMajor
	}
	return SeverityMinor
}

// Causes of an event.
const (
	CauseRecovered = "recovered" // the node, group or silence is over
	CauseIdle      = "idle"      // it has no work, or nothing to be compared by, any more
	CauseMoved     = "moved"     // it went to another peer group
	CauseMissing   = "missing"   // nothing is heard of it
	CauseContested = "contested" // two nodes claim its name
	CauseForgotten = "forgotten" // it was silent for the retention

	CauseStragglers = "stragglers" // SubjectGroup: too many of its nodes are slow
)

// Event is one change of one episode.
type Event struct {
	Kind    EventKind
	Subject Subject
	// ID is the same for all events of an episode and for no others.
	ID string
	// Group is empty where nodes of several fell silent, Node where many are meant.
	Cluster, Group, Node string
	Peers                []string // values of the peer-group attributes
	Signal               nodesignal.Signal
	Severity             Severity
	// At is the tick of the event, Since when what it tells of began.
	At, Since time.Time
	// Confidence is 1-exp(-deviation/limit), in [0,1]; at the end, the episode's greatest.
	Confidence float64
	// Gap is a fraction of the peers' level, positive for a loss. Value and Median are in
	// the unit of the signal, and of a node only known when Compared.
	Gap, Value, Median float64
	Compared           bool
	// Culprit is the rank or GPU of the node that stands out from the node's others, empty
	// for none; at the end, the last there was.
	Culprit nodesignal.Subject
	// Ranks that are compared, of a node by its ranks' communication, and the Job that they
	// are of, empty where it has no name.
	Ranks int
	Job   string
	// Detail is whom a job waits for, as text.
	Detail string
	// Rank in the group, 1 is the worst, among the Active nodes of the group.
	Rank, Active int
	// Nodes are those meant by an event of many, by name, at most 100 of NodeCount.
	Nodes     []string
	NodeCount int
	// Cause is why it ended, or why a group has an incident.
	Cause string
}
