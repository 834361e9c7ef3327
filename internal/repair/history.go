// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Bounds of a history. An object of Kubernetes has room for 256 KiB of annotations.
const (
	maxHistory      = 200 << 10
	maxHandedWords  = 512
	maxHandedAlerts = 8
	maxHandedText   = 64
	maxProven       = 256 // nodes on probation that carry no mark any more
)

// History is what the next leader has to know: the breaker, the nodes that were acted
// upon, and the words that were obeyed. It says nothing of suspects, which are found anew.
// The same state has the same history, byte for byte.
func (m *Machine) History() ([]byte, error) {
	h := newSnapshot()
	h.Opened, h.Breaker = m.state.Opened, m.state.Breaker
	h.Cases = m.handed()
	for _, w := range m.state.Words[max(0, len(m.state.Words)-maxHandedWords):] {
		h.Words = append(h.Words, shortWord(w))
	}
	for _, p := range m.state.Alerts[max(0, len(m.state.Alerts)-maxHandedAlerts):] {
		p.Attempts, p.NotBefore = 0, time.Time{}
		h.Alerts = append(h.Alerts, p)
	}
	for _, s := range m.state.Silences {
		s.Person, s.Reason = cut(s.Person), cut(s.Reason)
		h.Silences = append(h.Silences, s)
	}
	for {
		data, err := json.Marshal(&h)
		switch {
		case err != nil || len(data) <= maxHistory:
			return data, err
		case len(h.Silences) > 0: // a node of those is at worst taken on once more
			h.Silences = h.Silences[(len(h.Silences)+1)/2:]
		case !dropProven(h.Cases):
			return nil, fmt.Errorf("the history of the breaker has %d bytes and may have %d: lower `breaker::max_nodes` or `breaker::max_per_hour`", len(data), maxHistory)
		}
	}
}

// dropProven forgets the case of a node that works again.
func dropProven(cases map[string]*Case) bool {
	for _, node := range slices.Sorted(maps.Keys(cases)) {
		if c := cases[node]; c.State == OnProbation && len(c.Marks) == 0 {
			delete(cases, node)
			return true
		}
	}
	return false
}

// handed are the cases of nodes that were acted upon, without what a look or the metrics
// tell anew.
func (m *Machine) handed() map[string]*Case {
	list := map[string]*Case{}
	proven := 0
	for _, c := range m.sorted() {
		if !c.acted() && c.State != OnProbation {
			continue
		}
		if c.State == OnProbation && len(c.Marks) == 0 {
			if proven++; proven > maxProven {
				continue
			}
		}
		k := c.clone()
		k.Signals, k.Worked, k.Empty, k.Hold = nil, 0, false, time.Time{}
		k.LastActive, k.LastBad, k.LastGood = time.Time{}, time.Time{}, time.Time{}
		list[c.Node] = &k
	}
	return list
}

func cut(s string) string { return s[:min(len(s), maxHandedText)] }

// shortWord is a word's id in a history, and of itself.
func shortWord(id string) string {
	if len(id) == 2*shortBytes+1 && id[0] == '#' {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return "#" + hex.EncodeToString(sum[:shortBytes])
}

const shortBytes = 8

// Inherit takes over from the leader that wrote the history. Where that was this machine,
// nothing changes. Otherwise what it has done itself is of a former time: only the history
// knows which nodes are kept off now.
func (m *Machine) Inherit(data []byte, now time.Time) error {
	own, err := m.History()
	if err != nil {
		return err
	}
	if string(own) == string(data) {
		return nil
	}
	h, err := parse(data)
	if err != nil {
		return err
	}
	s := &m.state
	for node, c := range s.Cases {
		switch {
		case h.Cases[node] != nil || len(c.Marks) > 0 || c.State == OnProbation || c.State == KeptOff || c.State == UnderRepair:
			delete(s.Cases, node)
		default: // it was admitted here, and nowhere else
			c.Admitted = false
			c.Pending = slices.DeleteFunc(c.Pending, func(p Intent) bool { return !p.Step.tells() })
		}
	}
	for node, c := range h.Cases {
		s.Cases[node] = c
		m.takeUp(c)
	}
	lost := s.Breaker.Open && s.Breaker.Rule == RuleStateLost && !h.Breaker.Open
	s.Breaker, s.Opened = h.Breaker, max(s.Opened, h.Opened)
	if lost { // a person has been told so
		s.Breaker.Open, s.Breaker.Rule, s.Breaker.Since = true, RuleStateLost, now
	}
	s.Words, s.Alerts, s.Silences = h.Words, h.Alerts, h.Silences
	// The gateway repeats both.
	clear(s.Muted)
	clear(s.Incidents)
	clear(m.groups)
	m.changed = true
	return nil
}

// takeUp asks again for what the former leader may have left undone. Steps that took
// effect change nothing.
func (m *Machine) takeUp(c *Case) {
	m.tell(c, RuleAdopted)
	switch c.State {
	case Confirmed:
		for _, s := range marks {
			if c.Admitted && m.cfg.enabled(s) && !c.marked(s) {
				c.ask(s, false, RuleAdopted)
			}
		}
	case KeptOff:
		m.ask(c, StepEvict, RuleAdopted)
	case UnderRepair:
		if c.Testing {
			m.ask(c, StepBurnIn, RuleAdopted)
		}
	case OnProbation, Healthy:
		m.undo(c, RuleAdopted)
	}
}
