// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"
)

// Say takes a person's word. The same word counts once. It reports whether the word was
// known, and could be used.
func (m *Machine) Say(w *Word, now time.Time) bool {
	id := w.ID
	if id == "" {
		sum := sha256.Sum256([]byte(string(w.Kind) + "\x00" + w.Node + "\x00" + w.Job + "\x00" + w.Group + "\x00" + w.Person + "\x00" + w.Reason + "\x00" + w.Until.UTC().Format(time.RFC3339)))
		id = "w" + hex.EncodeToString(sum[:8])
	}
	// A silence lasts, so the next leader obeys it anew.
	if slices.Contains(m.state.Words, id) || w.Kind != RuleWordSilence && slices.Contains(m.state.Words, shortWord(id)) {
		return true
	}
	c := m.state.Cases[w.Node]
	used := m.obey(w, c, now)
	r := Record{
		At: now, ID: "word/" + id, Step: StepWord, Outcome: Taken, Rule: w.Kind, Actor: w.Person, Reason: w.Reason,
		Node: w.Node, Job: w.Job, Group: w.Group, Until: w.Until,
	}
	if !used {
		r.Outcome = Refused
	}
	if c != nil {
		m.record(c, r)
	} else {
		m.records = append(m.records, r)
	}
	if len(m.state.Words) == maxWords {
		m.state.Words = slices.Delete(m.state.Words, 0, 1)
	}
	m.state.Words = append(m.state.Words, id)
	m.changed = true
	if used && c != nil {
		m.advance(c, RulePerson, now)
	}
	return used
}

func (m *Machine) obey(w *Word, c *Case, now time.Time) bool {
	switch w.Kind {
	case RuleWordSilence:
		if !w.Until.After(now) || w.Node == "" && w.Job == "" && w.Group == "" || len(m.state.Silences) >= maxSilences {
			return false
		}
		m.state.Silences = append(m.state.Silences, Silence{w.Node, w.Job, w.Group, w.Person, w.Reason, w.Until})
		return true
	case RuleWordConfirm:
		if c == nil && w.Node != "" && len(m.state.Cases) < m.cfg.MaxCases {
			c = m.newCase(w.Node, "word:"+w.Person+w.Reason, now)
			m.move(c, Suspect, RulePerson, now)
		}
		if c == nil || c.State != Suspect {
			return false
		}
		m.confirm(c, RulePerson, now)
		return true
	case RuleWordRepaired:
		if c == nil || c.State != KeptOff && c.State != UnderRepair {
			return false
		}
		c.Repaired = true
		return true
	case RuleWordRelease:
		if c == nil {
			return false
		}
		m.release(c, w.Person, w.Reason, now)
		return true
	case RuleWordAcknowlege:
		return c != nil
	default:
		return false
	}
}

// release ends a case by a person's word, without a test. The node is silent for a while,
// so that an episode that goes on does not undo that.
func (m *Machine) release(c *Case, person, reason string, now time.Time) {
	if len(m.state.Silences) < maxSilences {
		m.state.Silences = append(m.state.Silences, Silence{Node: c.Node, Person: person, Reason: reason, Until: now.Add(m.cfg.Again)})
	}
	c.Signals = nil
	m.heal(c, RulePerson, now)
	m.advance(c, RulePerson, now)
}

// ResetBreaker closes the breaker if the word is a new one.
func (m *Machine) ResetBreaker(word, person string, now time.Time) {
	known := m.state.Breaker.knows(word)
	if m.state.Breaker.reset(word) {
		m.records = append(m.records, Record{
			At: now, ID: "breaker/reset/" + word, Step: StepBreaker, Undo: true, Outcome: Taken, Rule: RuleReset, Actor: person, Reason: word,
		})
		if m.cfg.enabled(StepNotify) {
			m.state.Alerts = append(m.state.Alerts, Intent{
				ID: "breaker/" + strconv.Itoa(m.state.Breaker.Opened) + "/notify/reset", Step: StepNotify, Rule: RuleReset, State: Healthy,
			})
		}
		for _, c := range m.state.Cases {
			c.Told = slices.DeleteFunc(c.Told, func(t string) bool { return t == string(RuleBreakerOpen) })
		}
	}
	m.changed = m.changed || !known
}
