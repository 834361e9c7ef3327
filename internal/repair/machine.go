// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"cmp"
	"slices"
	"strconv"
	"time"
)

// Bounds of what is kept besides the cases.
const (
	maxSilences  = 1000
	maxWords     = 1000
	maxNodes     = 10_000 // with onsets of the last day
	maxIncidents = 1000
	maxMuted     = 100_000
	// maxMute is the longest silence that the gateway takes, a year.
	maxMute   = 366 * 24 * time.Hour
	maxGroups = 10_000
	// activeGap is the longest time between two readings that counts as work.
	activeGap = 5 * time.Minute
	// freshVerdict is how fresh a verdict has to be for an episode to last.
	freshVerdict = 10 * time.Minute
)

type onset struct {
	At      time.Time `json:"at"`
	GPU     string    `json:"gpu"`
	Episode string    `json:"episode"`
}

// Machine has the cases of one cluster.
type Machine struct {
	cfg     Config
	state   snapshot
	groups  map[string]*groupState
	records []Record
	refused map[string]bool // refusals without a case that were told
	changed bool
	deaf    time.Time // until when silences may be unknown; not kept
	asked   string    // the step that Next returned and a driver may be at; not kept
}

type groupState struct {
	panicked, coverageLow, incident bool
	active                          int
	at                              time.Time
}

// New returns a machine without cases.
func New(cfg Config) *Machine {
	return &Machine{cfg: cfg, state: newSnapshot(), groups: map[string]*groupState{}, refused: map[string]bool{}}
}

// Take returns the records since it was last called.
func (m *Machine) Take() []Record {
	r := m.records
	m.records = nil
	return r
}

// Changed reports whether there is something to save, once.
func (m *Machine) Changed() bool {
	c := m.changed
	m.changed = false
	return c
}

// Cases returns copies of all cases, sorted by node.
func (m *Machine) Cases() []Case {
	var list []Case
	for _, c := range m.state.Cases {
		list = append(list, c.clone())
	}
	slices.SortFunc(list, func(a, b Case) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// Breaker returns the state of the breaker.
func (m *Machine) Breaker() Breaker { return m.state.Breaker }

// Episode takes a record of an episode.
func (m *Machine) Episode(e *Episode, now time.Time) {
	switch e.Subject {
	case "group", "cluster":
		m.incident(e, now)
		return
	case "missing":
		if !e.Ended && e.Node != "" {
			m.refuse(e.Node, e.ID, RuleMissing, now)
		}
		return
	case "node":
	default:
		return
	}
	if e.Node == "" || e.ID == "" {
		return
	}
	c := m.state.Cases[e.Node]
	if e.Ended {
		if c != nil {
			c.drop(e.ID)
			m.changed = true
			m.advance(c, RuleEnded, now)
		}
		return
	}
	s := &Signal{Kind: e.Signal, ID: e.ID, Source: SourcePeers, GPU: e.GPU, First: now, Last: now, Evidence: e.Evidence}
	if isHardware(e.Action) && !e.Observation && (e.Severity == "major" || e.Severity == "critical") {
		s.Proof = RuleHardware
	}
	if e.GPU != "" && m.again(e.Node, e.GPU, e.ID, now) {
		s.Proof = cmp.Or(s.Proof, RuleTwice)
	}
	c = m.open(e.Node, s, RuleOnset, now, func(c *Case) {
		c.Episode, c.Group, c.Job, c.Reason = e.ID, cmp.Or(e.Group, c.Group), e.Job, e.Reason
		c.Severity, c.Gap, c.Peers = e.Severity, e.Gap, e.Peers
		if e.GPU != "" {
			c.GPU = e.GPU
		}
	})
	if c != nil {
		m.advance(c, RuleOnset, now)
	}
}

// hardware are the actions of reasons that a job cannot cause; docs/reasons.md.
var hardware = []string{"drain_and_reboot", "drain_and_reset_gpu", "service", "check_power", "check_cooling", "check_pcie", "check_nvlink"}

func isHardware(action string) bool { return slices.Contains(hardware, action) }

// rubric are the actions of the health rubric that cannot wait for the job.
var rubric = []string{"reset_gpu", "reboot", "service"}

func isRubric(action string) bool { return slices.Contains(rubric, action) }

// Health takes a change of a GPU's state.
func (m *Machine) Health(h *Health, now time.Time) {
	id := "health:" + h.GPU
	if h.To != "unhealthy" {
		if c := m.state.Cases[h.Node]; c != nil {
			c.drop(id)
			m.changed = true
			m.advance(c, RuleEnded, now)
		}
		return
	}
	s := &Signal{Kind: "health", ID: id, Source: SourceDriver, GPU: h.GPU, First: now, Last: now, Evidence: h.Evidence}
	if slices.ContainsFunc(h.Actions, isRubric) {
		s.Proof = RuleHardware
	}
	if c := m.open(h.Node, s, RuleUnhealthy, now, func(c *Case) { c.GPU = cmp.Or(c.GPU, h.GPU) }); c != nil {
		m.advance(c, RuleUnhealthy, now)
	}
}

// Xid takes an error. It opens no case, as the state of health does that.
func (m *Machine) Xid(x *Xid, now time.Time) {
	c := m.state.Cases[x.Node]
	if c == nil || !isRubric(x.Action) {
		return
	}
	c.signal(&Signal{
		Kind: "xid", ID: "xid:" + x.GPU + ":" + strconv.Itoa(x.Code), Source: SourceDriver, GPU: x.GPU, First: now, Last: now,
		Evidence: "xid=" + strconv.Itoa(x.Code) + " gpu=" + x.GPU + " action=" + x.Action,
	})
	m.changed = true
	if c.State == OnProbation {
		m.relapse(c, now)
		return
	}
	m.advance(c, RuleSecondSignal, now)
}

// Reading takes what metrics say of a node.
func (m *Machine) Reading(r *Reading, now time.Time) {
	c := m.state.Cases[r.Node]
	if c == nil {
		return
	}
	m.changed = true
	c.Group = cmp.Or(c.Group, r.Group) // records of health name none
	if now.Sub(c.Hold) >= m.cfg.SilenceWait/5-m.cfg.SilenceWait {
		c.Hold = time.Time{}
	}
	bad := r.Suspicion != nil && *r.Suspicion >= m.cfg.Relapse
	if r.Straggler != nil {
		if *r.Straggler {
			c.LastBad, bad = now, true
			for i := range c.Signals {
				if c.Signals[i].Source == SourcePeers {
					c.Signals[i].Last = now
				}
			}
		} else {
			c.LastGood = now
		}
	}
	if c.State != OnProbation {
		return
	}
	if bad {
		m.relapse(c, now)
		return
	}
	if r.Active != nil {
		if *r.Active && !c.LastActive.IsZero() {
			c.Worked += int64(min(now.Sub(c.LastActive), activeGap))
		}
		c.LastActive = time.Time{}
		if *r.Active {
			c.LastActive = now
		}
	}
	m.advance(c, RuleProven, now)
}

// Group takes what metrics say of a peer group.
func (m *Machine) Group(g *Group, now time.Time) {
	s := m.groups[g.Group]
	if s == nil {
		if len(m.groups) >= maxGroups {
			return
		}
		s = &groupState{}
		m.groups[g.Group] = s
	}
	s.at = now
	set(&s.panicked, g.Panic)
	set(&s.coverageLow, g.CoverageLow)
	set(&s.incident, g.Incident)
	set(&s.active, g.Active)
}

func set[T any](to, from *T) {
	if from != nil {
		*to = *from
	}
}

// Mute takes the gateway's word that a node is silenced until then: by its name, its job
// or its group. A time that is not to come ends it.
func (m *Machine) Mute(node string, until, now time.Time) {
	if limit := now.Add(maxMute); until.After(limit) {
		until = limit
	}
	was, known := m.state.Muted[node]
	switch {
	case !until.After(now):
		if known {
			delete(m.state.Muted, node)
			m.changed = true
		}
	case was.Equal(until) || !known && len(m.state.Muted) >= maxMuted:
	default:
		m.state.Muted[node] = until
		m.changed = true
	}
}

// Listen has the machine wait for the gateway's word of silences before it does anything
// new: it has just started, or taken over.
func (m *Machine) Listen(now time.Time) { m.deaf = now.Add(m.cfg.SilenceWait) }

// waits reports whether that word may still be on its way.
func (m *Machine) waits(c *Case, now time.Time) bool {
	return now.Before(m.deaf) || now.Before(c.Hold)
}

// silenced reports whether nothing is done about the node of a case, nor told of it.
func (m *Machine) silenced(c *Case, now time.Time) bool {
	return now.Before(m.state.Muted[c.Node]) ||
		slices.ContainsFunc(m.state.Silences, func(s Silence) bool { return now.Before(s.Until) && s.covers(c) })
}

// Recall has the case know of marks that took effect, and of which a kill kept the word.
func (m *Machine) Recall(s *Sight, now time.Time) {
	c := m.state.Cases[s.Node]
	if c == nil || c.ID != s.CaseID {
		return
	}
	for _, step := range s.Ours {
		if c.marked(step) || !isMark(step) {
			continue
		}
		m.mark(c, step, now)
		m.changed = true
		if c.State == OnProbation || c.State == Healthy {
			c.ask(step, true, RuleAdopted)
		}
	}
}

// mark notes that a step took effect.
func (m *Machine) mark(c *Case, step Step, now time.Time) {
	if len(c.Marks) == 0 {
		m.state.Breaker.marked(c, now)
	}
	if c.Touched = true; c.Refused {
		c.Admitted, c.Refused = true, false
	}
	c.Marks = append(c.Marks, step)
	slices.SortFunc(c.Marks, func(a, b Step) int { return cmp.Compare(slices.Index(marks, a), slices.Index(marks, b)) })
}

// See takes what a driver sees of a node.
func (m *Machine) See(s *Sight, now time.Time) {
	c := m.state.Cases[s.Node]
	if c == nil {
		return
	}
	if s.Gone {
		m.changed = true
		m.record(c, Record{At: now, ID: c.ID + "/gone", Step: StepTransition, Outcome: Taken, Rule: RuleNoSuchNode, StateBefore: c.State, After: Healthy})
		delete(m.state.Cases, s.Node)
		return
	}
	for _, step := range s.Foreign {
		if !c.marked(step) {
			continue
		}
		m.changed = true
		c.Marks = slices.DeleteFunc(c.Marks, func(o Step) bool { return o == step })
		m.record(c, Record{At: now, ID: c.ID + "/" + string(step) + "/" + strconv.Itoa(c.Relapses) + "/foreign", Step: step, Undo: true, Outcome: Refused, Rule: RuleForeign, Reason: s.By})
	}
	// Somebody let jobs back onto the node: that person's word counts, not ours.
	if (c.State == KeptOff || c.State == UnderRepair) && !slices.ContainsFunc(c.Marks, Step.KeepsOff) && len(s.Foreign) > 0 {
		m.release(c, cmp.Or(s.By, "unknown"), "the mark was taken off by hand", now)
		return
	}
	if s.Empty != c.Empty {
		c.Empty, m.changed = s.Empty, true
	}
	m.advance(c, RuleEmpty, now)
}

// Tested takes the result of a burn-in.
func (m *Machine) Tested(t *Test, now time.Time) {
	c := m.state.Cases[t.Node]
	if c == nil || c.State != UnderRepair || !c.Testing || t.ID != c.ID+"/"+string(StepBurnIn)+"/"+strconv.Itoa(c.Tests) {
		return
	}
	m.changed = true
	c.Testing, c.Repaired, c.LastTest = false, false, now
	c.Tests++
	rule := RuleTestFailed
	if t.ExitCode == 0 {
		rule = RuleTestPassed
	}
	if t.ExitCode != 0 { // before the record, which has it as evidence
		c.By = rule
		c.signal(&Signal{
			Kind: string(StepBurnIn), ID: "test:" + t.Name, Source: SourceTest, GPU: c.GPU, First: now, Last: now, Proof: rule,
			Evidence: "test=" + t.Name + " exit=" + strconv.Itoa(t.ExitCode),
		})
	}
	m.record(c, Record{At: now, ID: t.ID, Step: StepBurnIn, Outcome: Taken, Rule: rule, Driver: t.Driver, Test: t})
	if t.ExitCode == 0 {
		m.probation(c, now)
	} else {
		m.tell(c, rule)
	}
}

// Adopt takes over a node that carries our marks and has no case, since the state was
// lost. The node counts as kept off.
func (m *Machine) Adopt(node, id string, steps []Step, now time.Time) {
	if m.state.Cases[node] != nil || len(steps) == 0 {
		return
	}
	m.changed = true
	c := &Case{ID: id, Node: node, State: Confirmed, Since: now, Admitted: true, Marks: slices.Clone(steps)}
	m.state.Cases[node] = c
	m.move(c, KeptOff, RuleAdopted, now)
}

// Tick lets time pass.
func (m *Machine) Tick(now time.Time) {
	m.state.Silences = slices.DeleteFunc(m.state.Silences, func(s Silence) bool {
		over := !now.Before(s.Until)
		m.changed = m.changed || over
		return over
	})
	for node, until := range m.state.Muted {
		if !now.Before(until) {
			delete(m.state.Muted, node)
			m.changed = true
		}
	}
	for node, list := range m.state.Onsets {
		if list = slices.DeleteFunc(list, func(o onset) bool { return now.Sub(o.At) >= m.cfg.Again }); len(list) == 0 {
			delete(m.state.Onsets, node)
		} else {
			m.state.Onsets[node] = list
		}
	}
	for id, i := range m.state.Incidents {
		if now.Sub(i.At) >= m.cfg.Again { // nobody told its end
			delete(m.state.Incidents, id)
		}
	}
	for _, c := range m.sorted() {
		m.age(c, now)
		m.advance(c, RuleAged, now)
		m.repeat(c, now)
	}
	m.repeatAlert(now)
}

// age drops signals that nobody repeats: metrics call the node good, or nobody has spoken
// of the node for a day.
func (m *Machine) age(c *Case, now time.Time) {
	c.Signals = slices.DeleteFunc(c.Signals, func(s Signal) bool {
		if s.Source != SourcePeers {
			return false
		}
		healthy := c.LastGood.After(s.Last) && now.Sub(s.Last) >= m.cfg.Stale
		old := healthy || now.Sub(s.Last) >= max(m.cfg.Again, m.cfg.Stale)
		m.changed = m.changed || old
		return old
	})
}

// open returns the node's case with the signal in it; nil when there is no room.
func (m *Machine) open(node string, s *Signal, rule Rule, now time.Time, fill func(*Case)) *Case {
	c := m.state.Cases[node]
	if c == nil {
		if len(m.state.Cases) >= m.cfg.MaxCases {
			m.refuse(node, s.ID, RuleTooManyCases, now)
			return nil
		}
		c = m.newCase(node, s.ID, now)
	}
	m.changed = true
	if c.State == OnProbation || c.State == Suspect || c.State == Healthy || c.Episode == "" {
		fill(c)
	}
	c.signal(s)
	switch c.State {
	case Healthy:
		m.suspect(c, rule, now)
	case OnProbation:
		m.relapse(c, now)
	}
	return c
}

// suspect begins a case, or takes one up again that was not over. People who were not told
// of its end know of the suspicion, and the end is news no more.
func (m *Machine) suspect(c *Case, rule Rule, now time.Time) {
	known := map[Step]bool{}
	c.Pending = slices.DeleteFunc(c.Pending, func(p Intent) bool {
		untold := p.Step.tells() && p.State == Healthy && p.ID != m.asked
		known[p.Step] = known[p.Step] || untold
		return untold
	})
	if len(c.Told) > 0 || len(known) > 0 {
		c.Returns++
	}
	m.move(c, Suspect, rule, now)
	for _, s := range []Step{StepNotify, StepEvent} {
		if known[s] {
			continue
		}
		c.Told = slices.DeleteFunc(c.Told, func(told string) bool { return c.isOf(told, s) })
		if s == StepNotify {
			c.Noticed = time.Time{}
		}
		m.ask(c, s, rule)
	}
}

func (m *Machine) newCase(node, signal string, now time.Time) *Case {
	c := &Case{ID: caseID(node, signal, m.state.Opened), Node: node, State: Healthy, Since: now, Hold: now.Add(m.cfg.SilenceWait)}
	m.state.Opened++
	m.state.Cases[node] = c
	return c
}

// again remembers an onset, and reports whether another one named the same GPU.
func (m *Machine) again(node, gpu, episode string, now time.Time) bool {
	list := m.state.Onsets[node]
	found := false
	for i := range list {
		if list[i].Episode == episode {
			return slices.ContainsFunc(list[:i], func(o onset) bool { return o.GPU == gpu })
		}
		found = found || list[i].GPU == gpu && now.Sub(list[i].At) < m.cfg.Again
	}
	if len(list) == 0 && len(m.state.Onsets) >= maxNodes {
		return false
	}
	if len(list) == maxOnsets {
		list = slices.Delete(list, 0, 1)
	}
	m.state.Onsets[node] = append(list, onset{now, gpu, episode})
	return found
}

func (m *Machine) incident(e *Episode, now time.Time) {
	m.changed = true
	if e.Ended {
		delete(m.state.Incidents, e.ID)
	} else if len(m.state.Incidents) < maxIncidents {
		group := e.Group
		if e.Subject == "cluster" {
			group = ""
		}
		m.state.Incidents[e.ID] = incident{Group: group, At: now}
	}
}

// refuse tells of a node without a case, once.
func (m *Machine) refuse(node, id string, rule Rule, now time.Time) {
	key := node + "\x00" + id + string(rule)
	if m.refused[key] {
		return
	}
	if len(m.refused) >= maxNodes {
		clear(m.refused)
	}
	m.refused[key] = true
	m.records = append(m.records, Record{
		At: now, ID: caseID(node, id, -1) + "/" + string(rule), Case: caseID(node, id, -1), Node: node, Step: StepTransition, Outcome: Refused, Rule: rule,
		StateBefore: Healthy, After: Healthy, Episode: id,
	})
}

// record adds what the case knows.
func (m *Machine) record(c *Case, r Record) {
	r.Case, r.Node, r.Episode, r.EpisodeReason = c.ID, c.Node, c.Episode, c.Reason
	r.Group, r.Job, r.GPU = c.Group, c.Job, c.GPU
	if r.StateBefore == "" {
		r.StateBefore, r.After = c.State, c.State
	}
	r.Evidence = c.evidence()
	m.records = append(m.records, r)
}

func (m *Machine) sorted() []*Case {
	list := make([]*Case, 0, len(m.state.Cases))
	for _, c := range m.state.Cases {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *Case) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Node, b.Node))
	})
	return list
}
