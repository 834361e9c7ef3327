// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// advance takes the case as far as it goes. The rule is of what came last.
func (m *Machine) advance(c *Case, rule Rule, now time.Time) {
	switch c.State {
	case Suspect:
		if proof := m.proof(c, now); proof != "" {
			m.confirm(c, proof, now)
		} else if len(c.Signals) == 0 {
			m.heal(c, cmp.Or(rule, RuleEnded), now)
		}
	case Confirmed:
		m.keepOff(c, rule, now)
	case KeptOff:
		if c.Empty {
			c.Pending = slices.DeleteFunc(c.Pending, func(p Intent) bool {
				if p.Step == StepEvict { // the pods left before it was tried once more
					m.record(c, Record{At: now, ID: p.ID, Step: p.Step, Outcome: Taken, Rule: p.Rule, ObjectIs: "no pods"})
				}
				return p.Step == StepEvict
			})
			m.move(c, UnderRepair, RuleEmpty, now)
			m.test(c, now)
		}
	case UnderRepair:
		m.test(c, now)
	case OnProbation:
		if time.Duration(c.Worked) >= m.cfg.Probation && !m.unfinished(c) {
			m.heal(c, RuleProven, now)
		}
	}
	if c.State == Healthy && len(c.Pending) == 0 && m.state.Cases[c.Node] == c {
		delete(m.state.Cases, c.Node)
		m.changed = true
	}
}

// unfinished reports whether a mark has still to be taken off.
func (m *Machine) unfinished(c *Case) bool {
	return slices.ContainsFunc(c.Pending, func(p Intent) bool { return p.Undo })
}

// proof names the rule that confirms the case, if one does.
func (m *Machine) proof(c *Case, now time.Time) Rule {
	sources := map[Source]bool{}
	for i := range c.Signals {
		s := &c.Signals[i]
		if s.Proof != "" {
			return s.Proof
		}
		sources[s.Source] = true
	}
	if len(sources) > 1 {
		return RuleSecondSignal
	}
	spoken := !c.LastBad.IsZero() || !c.LastGood.IsZero()
	for i := range c.Signals {
		if c.Signals[i].Source == SourcePeers && now.Sub(c.Signals[i].First) >= m.cfg.Lasting &&
			(!spoken || now.Sub(c.LastBad) < freshVerdict) {
			return RuleLasting
		}
	}
	return ""
}

func (m *Machine) confirm(c *Case, rule Rule, now time.Time) {
	m.move(c, Confirmed, rule, now)
	c.By = rule
	m.tell(c, rule)
	m.keepOff(c, rule, now)
}

// keepOff asks for the marks of a confirmed node, or sees that they are there.
func (m *Machine) keepOff(c *Case, rule Rule, now time.Time) {
	if !c.Admitted {
		if len(c.Signals) == 0 && now.Sub(c.Since) >= m.cfg.Probation {
			m.heal(c, RuleEnded, now) // nothing was done, and nothing is wrong any more
			return
		}
		first := slices.IndexFunc(marks, m.cfg.enabled)
		if first < 0 || c.Refused || m.waits(c, now) {
			return
		}
		if refusal := m.gate(c, now); refusal != "" {
			if c.once(string(refusal)) {
				m.record(c, Record{At: now, ID: c.ID + "/" + string(marks[first]) + "/" + strconv.Itoa(c.Relapses), Step: marks[first], Outcome: Refused, Rule: refusal})
				m.changed = true
			}
			return
		}
		c.Admitted, c.Taken, c.Touched, m.changed = true, now, false, true
		for _, s := range marks {
			if m.cfg.enabled(s) && !c.marked(s) {
				c.ask(s, false, cmp.Or(c.By, rule))
			}
		}
		return
	}
	if slices.ContainsFunc(c.Pending, func(p Intent) bool { return isMark(p.Step) && !p.Undo }) {
		return
	}
	if slices.ContainsFunc(c.Marks, Step.KeepsOff) {
		m.move(c, KeptOff, RuleMarked, now)
		m.tell(c, RuleMarked)
		if m.cfg.enabled(StepEvict) {
			c.ask(StepEvict, false, RuleMarked)
		}
		return
	}
	if len(c.Marks) == 0 {
		c.Admitted, c.Refused, m.changed = false, true, true
		m.state.Breaker.leave(c)
		return
	}
	// Told by a condition or label alone: it is over when nothing is wrong any more.
	if len(c.Signals) == 0 && now.Sub(c.Since) >= m.cfg.Probation {
		m.heal(c, RuleEnded, now)
	}
}

// gate names what forbids to act, if something does.
func (m *Machine) gate(c *Case, now time.Time) Rule {
	if m.silenced(c, now) {
		return RuleSilenced
	}
	for _, i := range m.state.Incidents {
		if i.Group == "" || i.Group == c.Group {
			return RuleGroupIncident
		}
	}
	peers := c.Peers
	g := m.groups[c.Group]
	if g != nil {
		switch {
		case g.incident:
			return RuleGroupIncident
		case g.panicked:
			return RulePanic
		case g.coverageLow:
			return RuleCoverage
		}
		if g.active > 0 {
			peers = g.active - 1
		}
	}
	kept, inGroup, late := 0, 0, 0
	size := 0 // of the group; 0 is unknown
	if peers > 0 {
		size = peers + 1
	}
	for _, o := range m.state.Cases {
		if o != c && o.late(now) {
			late++
		}
		if o != c && o.keptOff() {
			kept++
			if o.Group == c.Group {
				inGroup++
				// An empty node is no longer one of the active ones.
				if o.State == UnderRepair && g != nil && g.active > 0 && g.at.After(o.Since) {
					size++
				}
			}
		}
	}
	if c.Group == "" { // it is counted to the cluster
		inGroup, size = kept, m.largest(now)
	}
	if c.Group != "" && peers > 0 && peers < m.cfg.MinPeers {
		return RulePeers
	}
	wasOpen := m.state.Breaker.Open
	rule := m.state.Breaker.admit(&m.cfg.Breaker, kept, inGroup, size, late, now)
	if rule == "" || wasOpen {
		return rule
	}
	m.alert(rule, now)
	return RuleBreakerOpen
}

// alert tells of an open breaker, once.
func (m *Machine) alert(rule Rule, now time.Time) {
	m.changed = true
	id := "breaker/" + strconv.Itoa(m.state.Breaker.Opened)
	m.records = append(m.records, Record{
		At: now, ID: id, Step: StepBreaker, Outcome: Taken, Rule: rule,
		Reason: "the breaker is open: nothing more is done until a person resets it",
	})
	if m.cfg.enabled(StepNotify) {
		m.state.Alerts = append(m.state.Alerts, Intent{ID: id + "/notify", Step: StepNotify, Rule: rule})
	}
}

// RepeatAfter is when people are notified once more of what has not ended. A receiver may
// take for ended what nobody has repeated for twice that time.
const RepeatAfter = 12 * time.Hour

// repeat notifies once more of a case that is open, and is not being told of.
func (m *Machine) repeat(c *Case, now time.Time) {
	if c.State == Healthy || !m.due(c.Noticed, now) || slices.ContainsFunc(c.Pending, func(p Intent) bool { return p.Step == StepNotify }) {
		return
	}
	m.changed = true
	c.Pending = append(c.Pending, Intent{
		ID:   c.ID + "/" + string(StepNotify) + "/" + c.round(StepNotify) + "/" + string(c.State) + "/repeat/" + strconv.FormatInt(c.Noticed.Unix(), 10),
		Step: StepNotify, Rule: RuleRepeated, State: c.State,
	})
}

// repeatAlert is repeat for the open breaker.
func (m *Machine) repeatAlert(now time.Time) {
	b := &m.state.Breaker
	if !b.Open || !m.due(b.Noticed, now) || len(m.state.Alerts) > 0 {
		return
	}
	m.changed = true
	m.state.Alerts = append(m.state.Alerts, Intent{
		ID:   "breaker/" + strconv.Itoa(b.Opened) + "/notify/repeat/" + strconv.FormatInt(b.Noticed.Unix(), 10),
		Step: StepNotify, Rule: RuleRepeated,
	})
}

func (m *Machine) due(noticed, now time.Time) bool {
	return m.cfg.enabled(StepNotify) && !noticed.IsZero() && now.Sub(noticed) >= RepeatAfter
}

// largest is the size of the largest group that metrics told of lately, 0 where there is
// none. Groups share nodes, so their sum may be more than the cluster.
func (m *Machine) largest(now time.Time) (size int) {
	for _, g := range m.groups {
		if now.Sub(g.at) < freshVerdict {
			size = max(size, g.active)
		}
	}
	return size
}

// test asks for the burn-in when it is due.
func (m *Machine) test(c *Case, now time.Time) {
	due := c.Repaired || m.cfg.TestAfterDrain && c.LastTest.IsZero() ||
		m.cfg.Retest > 0 && !c.LastTest.IsZero() && now.Sub(c.LastTest) >= m.cfg.Retest
	if due && !c.Testing && m.cfg.enabled(StepBurnIn) {
		c.Testing, m.changed = true, true
		c.ask(StepBurnIn, false, RuleEmpty)
	}
}

// probation gives the node back to the scheduler, under its peers' eyes.
func (m *Machine) probation(c *Case, now time.Time) {
	m.move(c, OnProbation, RuleTestPassed, now)
	c.Admitted, c.Signals, c.Worked, c.LastActive, c.Empty = false, nil, 0, time.Time{}, false
	m.tell(c, RuleTestPassed)
	m.undo(c, RuleTestPassed)
}

// relapse returns a node on probation to the confirmed at once.
func (m *Machine) relapse(c *Case, now time.Time) {
	c.Relapses++
	c.Worked, c.Repaired, c.Empty, c.LastTest = 0, false, false, time.Time{}
	c.Told = nil
	// Marks that still wait to be undone stay on the node.
	c.Pending = slices.DeleteFunc(c.Pending, func(p Intent) bool { return p.Undo })
	if c.Relapses == m.cfg.Relapses {
		m.record(c, Record{At: now, ID: c.ID + "/service", Step: StepNotify, Outcome: Taken, Rule: RuleProposeService, Reason: "relapsed " + strconv.Itoa(c.Relapses) + " times: have the board serviced"})
		m.ask(c, StepNotify, RuleProposeService)
	}
	m.confirm(c, RuleRelapse, now)
}

// heal ends a case, and undoes what is left of it.
func (m *Machine) heal(c *Case, rule Rule, now time.Time) {
	if m.silenced(c, now) || m.waits(c, now) { // what was held back is news no more
		c.Pending = slices.DeleteFunc(c.Pending, func(p Intent) bool { return p.Step.tells() && p.ID != m.asked })
	}
	tell := c.acted() || c.State == OnProbation || rule == RuleProven || c.heard()
	m.move(c, Healthy, rule, now)
	c.Admitted, c.Refused = false, false
	if tell {
		m.tell(c, rule)
	}
	m.undo(c, rule)
}

// undo drops what was asked for, and asks to take back each mark, the last one first.
func (m *Machine) undo(c *Case, rule Rule) {
	c.Pending = slices.DeleteFunc(c.Pending, func(p Intent) bool { return !p.Undo && !p.Step.tells() })
	for _, s := range slices.Backward(c.Marks) {
		c.ask(s, true, rule)
	}
}

// tell asks for the steps that only tell people.
func (m *Machine) tell(c *Case, rule Rule) {
	m.ask(c, StepNotify, rule)
	m.ask(c, StepEvent, rule)
}

func (m *Machine) ask(c *Case, s Step, rule Rule) {
	if m.cfg.enabled(s) {
		c.ask(s, false, rule)
	}
}

func (m *Machine) move(c *Case, to State, rule Rule, now time.Time) {
	before := c.State
	c.State, c.Since, m.changed = to, now, true
	m.record(c, Record{
		At: now, ID: c.ID + "/transition/" + string(to) + "/" + c.round(StepTransition) + "." + strconv.Itoa(c.Tests),
		Step: StepTransition, Outcome: Taken, Rule: rule, StateBefore: before, After: to,
	})
}
