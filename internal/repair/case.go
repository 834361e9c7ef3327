// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxSignals and maxOnsets bound what a case and a node keep.
const maxSignals, maxOnsets, maxRefusals = 16, 8, 64

// Signal is something that is wrong with a node now.
type Signal struct {
	// Kind is the gpu.signal of an episode, `health`, `xid` or `missing`: signals of
	// different sources are independent, those of one are not.
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	Source Source `json:"source"`
	GPU    string `json:"gpu,omitempty"`
	// First is when we heard of it, not since when it claims to be.
	First    time.Time `json:"first"`
	Last     time.Time `json:"last"`
	Evidence string    `json:"evidence,omitempty"`
	// Proof is a rule that the signal meets by itself.
	Proof Rule `json:"proof,omitempty"`
}

// Source says by which way a signal was found.
type Source string

// The sources.
const (
	SourcePeers  Source = "peers"
	SourceDriver Source = "driver"
	SourceTest   Source = "test"
)

// Intent is a step that the machine asks a driver for.
type Intent struct {
	ID   string `json:"id"`
	Step Step   `json:"step"`
	Undo bool   `json:"undo,omitempty"`
	Rule Rule   `json:"rule,omitempty"`
	// State is the state that the step tells of.
	State State `json:"state"`
	// Attempts failed so far, and the next is not before NotBefore.
	Attempts  int       `json:"attempts,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	// Case is a copy of the case as it is now; not kept.
	Case Case `json:"-"`
}

// Case is what is known of one node that is not proven healthy.
type Case struct {
	ID    string    `json:"id"`
	Node  string    `json:"node"`
	State State     `json:"state"`
	Since time.Time `json:"since"`

	Episode  string   `json:"episode,omitempty"`
	Group    string   `json:"group,omitempty"`
	Peers    int      `json:"peers,omitempty"`
	Job      string   `json:"job,omitempty"`
	GPU      string   `json:"gpu,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Severity string   `json:"severity,omitempty"`
	Gap      float64  `json:"gap,omitempty"`
	Signals  []Signal `json:"signals,omitempty"`

	// Hold is until when the gateway may still have to say that the node is silenced.
	Hold time.Time `json:"hold,omitzero"`
	// By is the rule that confirmed it.
	By Rule `json:"by,omitempty"`
	// Admitted says that the breaker let the node pass, and Taken when it did: later when
	// the first mark took effect.
	Admitted bool      `json:"admitted,omitempty"`
	Taken    time.Time `json:"taken,omitzero"`
	// Touched says that a mark took effect since then.
	Touched bool `json:"touched,omitempty"`
	// Refused says that no mark holds and none is tried: nothing of ours was done, or
	// others took it off. The case does not count, until a mark is seen after all.
	Refused bool `json:"refused,omitempty"`
	// Marks are the steps that took effect and are ours to undo.
	Marks   []Step   `json:"marks,omitempty"`
	Pending []Intent `json:"pending,omitempty"`
	// Tests, Relapses and Returns count what makes steps happen again. A case returns that
	// is suspect again before its end was told and undone.
	Tests    int `json:"tests,omitempty"`
	Relapses int `json:"relapses,omitempty"`
	Returns  int `json:"returns,omitempty"`
	// Noticed is when people were last notified.
	Noticed time.Time `json:"noticed,omitzero"`
	// Repaired is the word that allows the next test.
	Repaired   bool      `json:"repaired,omitempty"`
	LastTest   time.Time `json:"last_test,omitzero"`
	Testing    bool      `json:"testing,omitempty"`
	Empty      bool      `json:"empty,omitempty"`
	Worked     int64     `json:"worked,omitempty"` // nanoseconds on probation
	LastActive time.Time `json:"last_active,omitzero"`
	LastBad    time.Time `json:"last_bad,omitzero"`
	LastGood   time.Time `json:"last_good,omitzero"`
	// BurnInPending says, in a copy alone, that the test was not started yet.
	BurnInPending bool `json:"-"`
	// Told are refusals that were told, and steps that told people, so that each is told once.
	Told []string `json:"told,omitempty"`
}

// caseID is made from the onset and the number of cases before it, which the snapshot has:
// a kill between onset and snapshot makes no second case.
func caseID(node, signal string, before int) string {
	sum := sha256.Sum256([]byte(node + "\x00" + signal + "\x00" + strconv.Itoa(before)))
	return "c" + hex.EncodeToString(sum[:8])
}

// acted reports whether something was done about the node, or is about to be.
func (c *Case) acted() bool { return c.Admitted || len(c.Marks) > 0 }

// keptOff reports whether the breaker counts the node: also while a mark has still to be
// taken off it.
func (c *Case) keptOff() bool {
	return c.Admitted && c.State != OnProbation || slices.ContainsFunc(c.Marks, Step.KeepsOff)
}

func (c *Case) marked(s Step) bool { return slices.Contains(c.Marks, s) }

// ask adds a step once per round. A case that heals and is suspect again before people were
// told all is told of once.
func (c *Case) ask(s Step, undo bool, rule Rule) {
	id := c.ID + "/" + string(s) + "/" + c.round(s)
	if s.tells() {
		id += "/" + string(c.State)
		if rule == RuleTestFailed { // each of them is news
			id += "/" + strconv.Itoa(c.Tests)
		}
	}
	if undo {
		id += "/undo"
	}
	if slices.ContainsFunc(c.Pending, func(p Intent) bool { return p.ID == id }) || slices.Contains(c.Told, id) {
		return
	}
	c.Pending = append(c.Pending, Intent{ID: id, Step: s, Undo: undo, Rule: rule, State: c.State})
}

func (c *Case) round(s Step) string {
	if s == StepBurnIn {
		return strconv.Itoa(c.Tests)
	}
	n := strconv.Itoa(c.Relapses)
	if c.Returns > 0 {
		n += "-" + strconv.Itoa(c.Returns)
	}
	return n
}

// heard reports whether people were told of the case, or are about to be.
func (c *Case) heard() bool {
	return !c.Noticed.IsZero() || slices.ContainsFunc(c.Pending, func(p Intent) bool { return p.Step.tells() }) ||
		slices.ContainsFunc(c.Told, func(told string) bool { return c.isOf(told, StepNotify) || c.isOf(told, StepEvent) })
}

// isOf reports whether what was told is of a step.
func (c *Case) isOf(told string, s Step) bool {
	return strings.HasPrefix(told, c.ID+"/"+string(s)+"/")
}

// signal adds or refreshes one.
func (c *Case) signal(s *Signal) {
	if i := slices.IndexFunc(c.Signals, func(o Signal) bool { return o.ID == s.ID }); i >= 0 {
		s.First = c.Signals[i].First
		if s.Proof == "" {
			s.Proof = c.Signals[i].Proof
		}
		c.Signals[i] = *s
		return
	}
	if len(c.Signals) == maxSignals {
		c.Signals = slices.Delete(c.Signals, 0, 1)
	}
	c.Signals = append(c.Signals, *s)
}

func (c *Case) drop(id string) {
	c.Signals = slices.DeleteFunc(c.Signals, func(s Signal) bool { return s.ID == id })
}

// evidence is one sentence per signal.
func (c *Case) evidence() []string {
	var list []string
	for i := range c.Signals {
		list = append(list, c.Signals[i].Evidence)
	}
	return list
}

// once reports whether a refusal was not told before, and remembers it.
func (c *Case) once(key string) bool {
	if slices.Contains(c.Told, key) {
		return false
	}
	if len(c.Told) == maxRefusals {
		c.Told = slices.Delete(c.Told, 0, 1)
	}
	c.Told = append(c.Told, key)
	return true
}

func (c *Case) clone() Case {
	k := *c
	k.Signals, k.Marks = slices.Clone(c.Signals), slices.Clone(c.Marks)
	k.BurnInPending = slices.ContainsFunc(c.Pending, func(p Intent) bool { return p.Step == StepBurnIn })
	k.Pending, k.Told = nil, nil
	return k
}
