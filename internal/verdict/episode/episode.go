// SPDX-License-Identifier: Apache-2.0

// Package episode has the one form of a verdict on a node, a peer group, a communicator or
// a job: the Episode. A Tracker follows those of nodes and groups from tick to tick. Pure.
package episode // import "github.com/gpu-collector/gpu-collector/internal/verdict/episode"

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Phase is what the last record of an episode was for. Each episode has one onset, first,
// and one end, last.
type Phase string

// The phases.
const (
	PhaseOnset    Phase = "onset"
	PhaseSeverity Phase = "severity"
	PhaseUpdate   Phase = "update" // an incident has more nodes, or a job's culprit is known
	PhaseEnd      Phase = "end"
)

// Subject is what an episode is about.
type Subject string

// The subjects.
const (
	SubjectNode    Subject = "node"         // a slow node
	SubjectGroup   Subject = "group"        // many slow nodes of a group
	SubjectMissing Subject = "missing"      // a missing node, or many at once
	SubjectLink    Subject = "communicator" // one that became slow, and no rank of it
	SubjectJob     Subject = "job"          // one that stands still
)

// Severity of an episode, by its gap. A greater one is worse; the zero value is unknown.
type Severity uint8

// The severities.
const (
	SeverityMinor Severity = iota + 1
	SeverityMajor
	SeverityCritical
)

var severities = [...]string{"", "minor", "major", "critical"}

func (s Severity) String() string { return severities[s] }

// MarshalText implements encoding.TextMarshaler.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads minor, major or critical; anything else is unknown.
func (s *Severity) UnmarshalText(text []byte) error {
	*s = Severity(max(0, slices.Index(severities[:], string(text))))
	return nil
}

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

// Causes of an end, and of an incident.
const (
	CauseRecovered = "recovered" // the node or group is well, or the node is back
	CauseIdle      = "idle"      // it has no work, or nothing to be compared by, any more
	CauseMoved     = "moved"     // it went to another peer group
	CauseMissing   = "missing"   // it stopped reporting
	CauseContested = "contested" // two nodes claim its name
	CauseForgotten = "forgotten" // it was missing for the retention

	CauseStragglers = "stragglers" // SubjectGroup: too many of its nodes are slow

	// The causes of an end without a record: another episode of the same subject, a healthy
	// view for `episode_doubt`, and the end of the process.
	CauseSuperseded  = "superseded"
	CauseUnconfirmed = "unconfirmed"
	CauseRestart     = "restart"
)

// Bounds of an episode.
const (
	MaxNodes   = 100 // names in Nodes
	MaxHolders = 16
)

// Episode is a time in which a node, a peer group, a communicator or a job stood out: what
// is known of it at Updated. Gateway, log record, view, history and API share it.
type Episode struct {
	// ID belongs to one spell and is never reused. Another cluster may have the same.
	ID      string  `json:"id" doc:"Of no other episode of the cluster"`
	Phase   Phase   `json:"phase,omitempty" enum:"onset,severity,update,end" doc:"What its last log record was for"`
	Subject Subject `json:"subject" enum:"node,group,missing,communicator,job"`
	Cluster string  `json:"cluster"`
	// Group is empty where nodes of several are missing, Node where many are meant.
	Group string `json:"group,omitempty"`
	Node  string `json:"node,omitempty"`
	// GroupLabels are the values of the `group_by` attributes.
	GroupLabels []string  `json:"-"`
	Since       time.Time `json:"since"`
	SinceBefore bool      `json:"since_before,omitempty" doc:"It began at that time or earlier"`
	Updated     time.Time `json:"updated" doc:"When its figures were taken"`
	Ended       time.Time `json:"ended,omitzero"`
	Concluded   bool      `json:"concluded,omitempty" doc:"No record had the end; the views concluded it"`

	Signal   string   `json:"signal,omitempty"`
	Severity Severity `json:"severity,omitzero" enum:"minor,major,critical"`
	// Confidence is 1-exp(-deviation/limit); at the end, the episode's greatest.
	Confidence *float64 `json:"confidence,omitempty" doc:"0 to 1"`
	Gap        *float64 `json:"gap,omitempty" doc:"Share of the peers' level that is lost"`
	Value      *float64 `json:"value,omitempty" doc:"In the signal's unit"`
	Median     *float64 `json:"median,omitempty" doc:"The peers'; of a communicator its own of the last hour"`
	// Recovering: the node kept up at its last value. Its average has to follow.
	Recovering bool   `json:"recovering,omitempty" doc:"It keeps up now; the verdict ends when its average of some minutes does"`
	Rank       *int64 `json:"rank,omitempty" doc:"Place in the group, 1 for the worst"`
	Active     *int64 `json:"active,omitempty" doc:"Active peers"`
	// Cost is the gap times the GPUs that wait for it.
	Cost *float64 `json:"gpu_hours_lost_per_hour,omitempty"`

	Nodes     []string `json:"nodes,omitempty" doc:"Affected nodes, at most 100"`
	NodeCount int64    `json:"node_count,omitempty"`
	Cause     string   `json:"cause,omitempty" enum:"recovered,idle,moved,missing,contested,forgotten,stragglers,superseded,unconfirmed,restart" doc:"Why it ended, or what made an incident. restart, superseded and unconfirmed: no record had the end; the process ended, another one began, or the node is well"`

	Reason string `json:"reason,omitempty"`
	Action string `json:"action,omitempty"`
	// Observation: the peers have the fact too, or are not known: no proof.
	Observation bool       `json:"observation,omitempty" doc:"The reason has no contrast with the peers: no proof"`
	GPU         string     `json:"gpu,omitempty" doc:"That the reason points at, else the culprit's"`
	Evidence    []Evidence `json:"evidence,omitempty"`
	// Shared of the Asked nodes of an incident have the reason.
	Shared int64 `json:"reason_nodes,omitempty"`
	Asked  int64 `json:"reason_nodes_asked,omitempty"`

	// Culprit is the rank or GPU that stands out from the node's others.
	Culprit nodesignal.Subject `json:"culprit,omitzero" doc:"Rank of the node that stood out from its others"`
	// Part is the culprit as people name it, such as `rank 3 (GPU 5)`.
	Part string `json:"part,omitempty" doc:"Rank and GPU as people name them"`
	// Ranks are compared: those of the communicator or job, or of the node's group.
	Ranks          int64            `json:"ranks,omitempty"`
	Job            string           `json:"job_id,omitempty" doc:"Of the ranks or the communicator that are meant"`
	Communicator   string           `json:"communicator,omitempty" doc:"Name of one that is slow"`
	CommunicatorID string           `json:"communicator_id,omitempty"`
	Holders        []reading.Holder `json:"allocations,omitempty" doc:"The containers and jobs that held the culprit's GPU at the onset, else those of the node, at most 16"`
	Text           string           `json:"text,omitempty" doc:"The body of its last log record"`
}

// Evidence is a fact that supports an episode's reason.
type Evidence struct {
	Fact  string   `json:"fact"`
	GPU   string   `json:"gpu,omitempty"`
	Unit  string   `json:"unit,omitempty"`
	Value *float64 `json:"value,omitempty"`
	Peers *float64 `json:"peers,omitempty" doc:"The peers' median"`
	// Since is when the fact began, zero where that is not known. Standing: before the
	// node became slow.
	Since    time.Time `json:"since,omitzero"`
	Standing bool      `json:"standing,omitempty" doc:"It was there before the node became slow"`
}

// GobEncode writes the evidence as JSON: to gob a figure of 0 is none.
func (v Evidence) GobEncode() ([]byte, error) { return json.Marshal(v) }

// GobDecode reads what GobEncode wrote.
func (v *Evidence) GobDecode(data []byte) error { return json.Unmarshal(data, v) }

// Key names an episode. Every client can read the IDs, so the cluster is part of the key:
// a client of one cluster cannot touch another's episodes.
type Key struct{ Cluster, ID string }

// Key returns what the episode is kept by.
func (e *Episode) Key() Key { return Key{e.Cluster, e.ID} }

// Open reports whether the episode goes on.
func (e *Episode) Open() bool { return e.Ended.IsZero() }

// Duration is the time from Since to the end, so far where it is open.
func (e *Episode) Duration() time.Duration {
	end := e.Ended
	if e.Open() {
		end = e.Updated
	}
	return max(end.Sub(e.Since), 0)
}

// End sets the end of an episode that was updated then.
func (e *Episode) End(at time.Time, cause string) {
	e.Phase, e.Updated, e.Ended, e.Recovering = PhaseEnd, at, at, false
	if cause != "" {
		e.Cause = cause
	}
}

// ID names an episode that began at since. It is the same at every gateway that sees the
// same. Two of one subject have the same name and since only if one is the other.
func ID(s Subject, cluster, group, name string, since time.Time) string {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s\x00%s\x00%s\x00%s\x00%d", s, cluster, group, name, since.UnixMilli()) // never fails
	return fmt.Sprintf("%016x", h.Sum64())
}
