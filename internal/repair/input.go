// SPDX-License-Identifier: Apache-2.0

package repair

import "time"

// Episode is one record of an episode of the gateway.
type Episode struct {
	ID, Node         string
	Subject          string // node, group, missing, cluster; others are ignored
	Ended            bool
	Signal, Severity string
	Reason, Action   string // the gateway's, see docs/reasons.md
	Observation      bool   // the reason has no contrast with the peers
	GPU, Job, Group  string
	Gap              float64 // a fraction of the peers' level
	Peers            int     // other active nodes of the group; 0 is unknown
	Evidence         string  // one sentence for people
}

// Health is a change of the state of one GPU.
type Health struct {
	Node, GPU string
	To        string
	Actions   []string // of the rubric
	Evidence  string
}

// Xid is one error that the driver reported, with the action of our catalogue.
type Xid struct {
	Node, GPU, Action string
	Code              int
	At                time.Time
}

// Reading is what metrics say of a node now.
type Reading struct {
	Node string
	// Group is the peer group that the verdict is of; empty is unknown.
	Group     string
	Straggler *bool
	Suspicion *float64
	Active    *bool
}

// Group is what metrics say of a peer group now; nil is unknown.
type Group struct {
	Group                        string
	Panic, CoverageLow, Incident *bool
	Active                       *int
}

// Word is what a person says, of a node, a job or a group.
type Word struct {
	// ID makes the same word count once; empty is made from the rest.
	ID               string
	Kind             Rule // RuleWordConfirm and its siblings
	Node, Job, Group string
	Person, Reason   string
	Until            time.Time // of a silence
}

// Sight is what a driver sees of a node that has a case.
type Sight struct {
	Node string
	// Empty says that no job is left on it.
	Empty bool
	// Ours are marks of the node that are noted as the case's, with CaseID.
	Ours   []Step
	CaseID string
	// Foreign are our steps that somebody else has changed since.
	Foreign []Step
	// By says by whom or by what, as far as that is known.
	By string
	// Gone says that the cluster has no such node.
	Gone bool
}

// Test is the result of a burn-in.
type Test struct {
	Node, ID string // of the intent
	Name     string
	Driver   string
	ExitCode int
	Output   string
}

// Result is how an intent went.
type Result struct {
	Outcome       Outcome
	Rule          Rule
	Driver        string
	Before, After string
	Text          string
	// Again asks for the step once more after that time: pods are left, for one.
	Again time.Duration
	// Parts are the things that one step did, such as one pod each.
	Parts []Part
}

// Part is one thing of a step.
type Part struct {
	Name          string // unique for the thing, such as a pod's UID
	Outcome       Outcome
	Rule          Rule
	Before, After string
	Text          string
}

// Record is one decision, for the audit.
type Record struct {
	At                     time.Time
	ID, Case               string
	Node                   string
	Step                   Step
	Undo                   bool
	Outcome                Outcome
	Rule                   Rule
	Driver                 string
	Actor                  string // empty: nobody but the actor itself
	Reason                 string
	StateBefore, After     State
	ObjectBefore, ObjectIs string
	Evidence               []string
	Test                   *Test
	Until                  time.Time
	Episode, EpisodeReason string
	Group, Job, GPU        string
}

// Silence keeps the machine from acting.
type Silence struct {
	Node   string    `json:"node,omitempty"`
	Job    string    `json:"job,omitempty"`
	Group  string    `json:"group,omitempty"`
	Person string    `json:"person"`
	Reason string    `json:"reason"`
	Until  time.Time `json:"until"`
}

func (s *Silence) covers(c *Case) bool {
	return s.Node != "" && s.Node == c.Node || s.Job != "" && s.Job == c.Job || s.Group != "" && s.Group == c.Group
}
