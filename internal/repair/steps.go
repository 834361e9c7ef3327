// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"slices"
	"time"
)

// Delays between the attempts of a step that failed.
const firstDelay, maxDelay = 5 * time.Second, 5 * time.Minute

// maxAttempts of telling people, which takes an hour. Marks are tried for ever.
const maxAttempts = 18

// Next returns a step that is due, and false when there is none. It returns the same one
// until Done tells how it went. The steps of one case come in their order. A node that is
// silenced, or may be, has only steps that end something.
func (m *Machine) Next(now time.Time) (Intent, bool) {
	if a := m.state.Alerts; len(a) > 0 && !now.Before(a[0].NotBefore) { // in their order: the last one holds
		m.asked = a[0].ID
		return a[0], true
	}
	for _, c := range m.sorted() {
		silenced := m.silenced(c, now) || m.waits(c, now)
		notice := true // none waits before it: the last one holds
		for _, p := range c.Pending {
			if p.Step == StepEvict && m.state.Breaker.Open {
				continue
			}
			if silenced && !p.Undo && p.State != Healthy { // our marks are taken off all the same
				continue
			}
			if p.Step == StepNotify && !notice {
				continue
			}
			if !now.Before(p.NotBefore) {
				m.asked = p.ID
				p.Case = c.clone()
				return p, true
			}
			notice = notice && p.Step != StepNotify
			if !p.Step.tells() {
				break // a mark waits for the one before; telling people holds nothing up
			}
		}
	}
	return Intent{}, false
}

// Done takes how a step went. An unknown id says nothing.
func (m *Machine) Done(id string, r *Result, now time.Time) {
	if m.asked == id {
		m.asked = ""
	}
	if i := slices.IndexFunc(m.state.Alerts, func(p Intent) bool { return p.ID == id }); i >= 0 {
		m.alerted(i, r, now)
		return
	}
	for _, c := range m.state.Cases {
		if i := slices.IndexFunc(c.Pending, func(p Intent) bool { return p.ID == id }); i >= 0 {
			m.done(c, i, r, now)
			return
		}
	}
}

// alerted is done for the alert of the breaker, which has no case.
func (m *Machine) alerted(i int, r *Result, now time.Time) {
	m.changed = true
	p := &m.state.Alerts[i]
	if r.Outcome == Failed {
		p.retry(now)
		if 1 < p.Attempts && p.Attempts < maxAttempts {
			return
		}
	}
	m.records = append(m.records, Record{At: now, ID: p.ID, Step: p.Step, Outcome: r.Outcome, Rule: p.Rule, Driver: r.Driver, Reason: r.Text})
	if r.Outcome != Failed || p.Attempts >= maxAttempts {
		if p.State != Healthy && (r.Outcome != Failed || p.Rule != RuleRepeated) { // one that failed is due still
			m.state.Breaker.Noticed = now
		}
		m.state.Alerts = slices.Delete(m.state.Alerts, i, i+1)
	}
}

func (p *Intent) retry(now time.Time) {
	p.NotBefore = now.Add(min(firstDelay<<min(p.Attempts, 10), maxDelay))
	p.Attempts++
}

func (m *Machine) done(c *Case, i int, r *Result, now time.Time) {
	m.changed = true
	p := c.Pending[i]
	rule := r.Rule
	if rule == "" {
		rule = p.Rule
	}
	for _, part := range r.Parts {
		id := p.ID + "/" + part.Name
		partRule := part.Rule
		if partRule == "" {
			partRule = p.Rule
		}
		if c.once(id + string(part.Outcome) + string(partRule)) {
			m.record(c, Record{
				At: now, ID: id, Step: p.Step, Undo: p.Undo, Outcome: part.Outcome, Rule: partRule, Driver: r.Driver,
				Reason: part.Text, ObjectBefore: part.Before, ObjectIs: part.After,
			})
		}
	}
	if r.Again > 0 {
		c.Pending[i].NotBefore = now.Add(r.Again)
		return
	}
	if r.Outcome != Failed || c.once(p.ID+r.Text) {
		m.record(c, Record{
			At: now, ID: p.ID, Step: p.Step, Undo: p.Undo, Outcome: r.Outcome, Rule: rule, Driver: r.Driver,
			Reason: r.Text, ObjectBefore: r.Before, ObjectIs: r.After,
		})
	}
	if r.Outcome == Failed && (!p.Step.tells() || p.Attempts < maxAttempts) {
		c.Pending[i].retry(now)
		return
	}
	c.Pending = slices.Delete(c.Pending, i, i+1)
	switch {
	case p.Step == StepNotify && p.Rule == RuleRepeated:
		if r.Outcome != Failed { // else it is due still
			c.Noticed = now
		}
	case p.Step.tells():
		c.once(p.ID)
		if p.Step == StepNotify {
			c.Noticed = now
		}
	}
	if isMark(p.Step) {
		switch {
		case p.Undo: // refused: it is somebody else's now
			c.Marks = slices.DeleteFunc(c.Marks, func(s Step) bool { return s == p.Step })
			if c.Admitted && c.State == Confirmed && len(c.Marks) == 0 { // it is asked for anew
				c.Admitted = false
				m.state.Breaker.leave(c)
			}
		case r.Outcome == Taken && !c.marked(p.Step):
			m.mark(c, p.Step, now)
		}
	}
	if p.Step == StepBurnIn && r.Outcome == Refused {
		c.Testing, c.LastTest, c.Repaired = false, now, false
	}
	m.advance(c, rule, now)
}
