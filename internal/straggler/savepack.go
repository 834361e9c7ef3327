// SPDX-License-Identifier: Apache-2.0

package straggler

import (
	"time"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/packed"
	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/topology"
)

// Bounds of what is read: an event lists so many nodes at most, and a node has so many
// episodes within its window.
const maxIDLength, maxCauseLength = 64, 64

// head begins either part.
func (e *Engine) head(c *packed.Coder, settings string) {
	c.Text(&settings, len(settings))
	c.Time(&e.ticked)
	packed.Int(c, &e.hearing)
}

func (e *Engine) readHead(c *packed.Coder, want string) error {
	settings := ""
	c.Text(&settings, c.Len())
	if c.Err() == nil && settings != want {
		return ErrSettings
	}
	c.Time(&e.ticked)
	packed.Int(c, &e.hearing)
	return c.Err()
}

func (c *cluster) pack(to *packed.Coder) {
	to.Text(&c.name, maxNameLength)
	packed.Int(to, &c.since)
	packed.Int(to, &c.seen)
	c.wide.pack(to)
}

func (r *rule) pack(c *packed.Coder) {
	for _, x := range [...]*float64{&r.threshold, &r.median, &r.mad, &r.ref} {
		c.Float(x)
	}
	for _, x := range [...]*int{&r.active, &r.below, &r.calm} {
		packed.Count(c, x)
	}
	for _, x := range [...]*bool{&r.valid, &r.quorum, &r.panic, &r.began} {
		c.Bool(x)
	}
}

// packGroup is all of a group but its nodes, and its incident, which goes with the changes.
func (e *Engine) packGroup(c *packed.Coder, g *group) {
	packed.Int(c, &g.since)
	c.Bool(&g.settled)
	c.Bool(&g.scored)
	g.rule.pack(c)
	g.split.pack(c)
	for s := range nodesignal.Count {
		has := g.signals[s] != nil
		if c.Bool(&has); !has {
			continue
		}
		sig := g.signal(s)
		if c.Reads() {
			sig.cohorts = make([]estimator, len(g.split.edges)+1)
		}
		for k := range sig.cohorts {
			sig.cohorts[k].pack(c)
		}
		means := g.split.means[s] != nil
		if c.Bool(&means); means && c.Reads() {
			g.split.means[s] = &splitMeans{}
		}
	}
}

func packFloats(c *packed.Coder, list *[]float64, most int) {
	n := c.Size(len(*list))
	if c.Reads() {
		c.Check(n <= most)
		*list = nil
		if n > 0 && c.Err() == nil {
			*list = make([]float64, n)
		}
	}
	for i := range *list {
		c.Float(&(*list)[i])
	}
}

func (p *splitState) pack(c *packed.Coder) {
	c.Bool(&p.held)
	packed.Below(c, &p.signal, nodesignal.Count)
	packFloats(c, &p.edges, maxCohorts-1)
	c.Time(&p.looked)
	packed.Count(c, &p.came)
	packed.Count(c, &p.settled)
	c.Bool(&p.turn)
	c.Bool(&p.known)
	packFloats(c, &p.trial, maxCohorts-1)
	for _, x := range [...]*int{&p.good, &p.bad, &p.rose, &p.fell} {
		packed.Count(c, x)
	}
	n := c.Size(len(p.rises))
	if c.Reads() {
		c.Check(n <= turnsRises)
		p.rises = make([]rise, min(n, turnsRises))
		for i := range p.rises {
			p.rises[i].node = &node{} // the group's own of that name, once there is one
		}
	}
	for i := range p.rises {
		c.Text(&p.rises[i].node.name, maxNameLength)
		packed.Int(c, &p.rises[i].at)
	}
}

func (p *Params) pack(c *packed.Coder) {
	for _, x := range [...]*float64{
		&p.Centre, &p.MinGap, &p.Scale, &p.Wander, &p.Step, &p.Change, &p.Offset, &p.MaxBias, &p.Limits[loud], &p.Limits[mid], &p.Limits[low],
	} {
		c.Float(x)
	}
	for _, x := range [...]*bool{&p.Relative, &p.High, &p.Burst} {
		c.Bool(x)
	}
	packed.Count(c, &p.Elapsed)
	c.Time(&p.Born)
}

func (t *estimator) pack(c *packed.Coder) {
	c.Bool(&t.known)
	t.params.pack(c)
	for _, x := range [...]*float64{
		&t.threshold, &t.scale, &t.phi, &t.wander, &t.offset, &t.maxBias, &t.change, &t.fast, &t.lasting, &t.step,
		&t.grows[loud], &t.grows[mid], &t.grows[low], &t.limits[loud], &t.limits[mid], &t.limits[low],
		&t.detectable, &t.usual, &t.fall, &t.before,
		&t.parting.cut, &t.together.centre, &t.together.apart, &t.together.moves,
	} {
		c.Float(x)
	}
	for _, x := range [...]*int{&t.n, &t.ticks, &t.usualTicks, &t.usualN, &t.low} {
		packed.Count(c, x)
	}
	for _, x := range [...]*time.Duration{&t.age, &t.reviewed, &t.parting.lasts, &t.together.lasts} {
		packed.Count(c, x)
	}
	packed.Int(c, &t.lowSince)
	packed.Int(c, &t.parting.since)
	for _, x := range [...]*bool{&t.parting.on, &t.parting.lower, &t.parting.back, &t.together.known} {
		c.Bool(x)
	}
	t.packWavers(c)
	has := t.tails != nil
	if c.Bool(&has); !has {
		return
	}
	if c.Reads() {
		t.tails = &tails{}
	}
	t.tails.pack(c)
}

func (t *estimator) packWavers(c *packed.Coder) {
	f := t.wavers
	switch {
	case c.Version < 2:
		return
	case c.Version == 2: // shares of deviations on one side, which say little
		var same, of float64
		var lasts time.Duration
		var on bool
		c.Float(&same)
		c.Float(&of)
		packed.Count(c, &lasts)
		if c.Bool(&on); on {
			t.wavers = &wavers{state: overlaps}
		}
		return
	}
	has := f != nil
	if c.Bool(&has); !has {
		return
	}
	if c.Reads() {
		f = &wavers{}
		t.wavers = f
	}
	for _, x := range [...]*float64{&f.long, &f.short, &f.of} {
		c.Float(x)
	}
	c.Bool(&f.moves)
	packed.Below(c, &f.state, numWaiting)
}

func (t *tails) pack(c *packed.Coder) {
	for j := range t.of {
		of := &t.of[j]
		for k := range numLevels {
			c.Float(&of.level[k])
			c.Float(&of.excess[k])
			c.Float(&of.number[k])
			c.Float(&of.mean[k])
			packed.Uint(c, &t.mostPeaks[j][k])
		}
		c.Float(&of.theta)
		packed.Uint(c, &t.mostOver[j])
	}
	for j := range t.hist {
		packed.Column(c, bins, func(i int) *float32 { return &t.hist[j][i] })
		packed.Uint(c, &t.mostGreat[j])
	}
	packed.Count(c, &t.ticks)
	c.Float(&t.nodeTicks)
	packed.Count(c, &t.hours)
	packed.Count(c, &t.hour)
}

// packNames begins some nodes of a group, those in slots.
func packNames(c *packed.Coder, g *group, slots []int) {
	n := c.Size(len(slots))
	c.Names(n, maxNameLength, func(i int) *string { return &g.nodes[slots[i]].name })
}

// packNodes is the nodes behind their names. A reader has places for them.
func (e *Engine) packNodes(c *packed.Coder, g *group, slots []int) {
	packMembers(c, g, slots)
	for s := range nodesignal.Count {
		has := g.signals[s] != nil
		if c.Bool(&has); has {
			g.signal(s).pack(c, slots)
		}
		means := g.split.means[s] != nil
		if c.Bool(&means); means {
			if g.split.means[s] == nil {
				c.Check(false)
				return
			}
			g.split.means[s].pack(c, slots)
		}
	}
	if g.plain != nil {
		for _, i := range slots {
			g.plain[i].pack(c)
		}
	}
	for _, i := range slots {
		g.nodes[i].pack(c, g.members[i].seen)
	}
}

func packMembers(c *packed.Coder, g *group, slots []int) {
	n, all := len(slots), g.members
	packed.Column(c, n, func(i int) *int64 { return &all[slots[i]].seen })
	packed.Column(c, n, func(i int) *signalSet { return &all[slots[i]].known })
	packed.Column(c, n, func(i int) *signalSet { return &all[slots[i]].fresh })
	packed.Column(c, n, func(i int) *State { return &all[slots[i]].reported })
	packed.Column(c, n, func(i int) *State { return &all[slots[i]].state })
	packed.Column(c, n, func(i int) *memberFlags { return &all[slots[i]].flags })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].cohort })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].was })
	packed.Column(c, n, func(i int) *int8 { return &all[slots[i]].toward })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].run })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].warm })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].late })
	packed.Column(c, n, func(i int) *nodesignal.Signal { return &all[slots[i]].signal })
	packed.Column(c, n, func(i int) *float32 { return &all[slots[i]].suspicion })
	packed.Column(c, n, func(i int) *float32 { return &all[slots[i]].gap })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].contest })
	packed.Column(c, n, func(i int) *unjudged.Reason { return &all[slots[i]].why })
}

func (s *signal) pack(c *packed.Coder, slots []int) {
	n, all := len(slots), s.tracks
	packed.Column(c, n, func(i int) *float64 { return &s.x[slots[i]] })
	for _, of := range [...]func(*track) *float32{
		func(t *track) *float32 { return &t.bias },
		func(t *track) *float32 { return &t.raw },
		func(t *track) *float32 { return &t.sum[loud] },
		func(t *track) *float32 { return &t.sum[mid] },
		func(t *track) *float32 { return &t.sum[low] },
		func(t *track) *float32 { return &t.gap },
		func(t *track) *float32 { return &t.recent },
		func(t *track) *float32 { return &t.lasting },
		func(t *track) *float32 { return &t.last },
		func(t *track) *float32 { return &t.change },
		func(t *track) *float32 { return &t.worst },
		func(t *track) *float32 { return &t.full },
		func(t *track) *float32 { return &t.short },
	} {
		packed.Column(c, n, func(i int) *float32 { return of(&all[slots[i]]) })
	}
	packed.Column(c, n, func(i int) *uint32 { return &all[slots[i]].lived })
	for j := range numSums {
		packed.Column(c, n, func(i int) *uint32 { return &all[slots[i]].since[j] })
		packed.Column(c, n, func(i int) *uint16 { return &all[slots[i]].peak[j] })
		packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].age[j] })
		packed.Column(c, n, func(i int) *uint16 { return &all[slots[i]].given.over[j] })
		for k := range numLevels {
			packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].given.peaks[j][k] })
		}
	}
	for j := range low {
		packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].given.great[j] })
	}
	packed.Column(c, n, func(i int) *uint16 { return &all[slots[i]].learnt })
	packed.Column(c, n, func(i int) *uint16 { return &all[slots[i]].calm })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].by })
	packed.Column(c, n, func(i int) *uint16 { return &all[slots[i]].same })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].stale })
	for _, i := range slots {
		c.Bool(&all[i].straggler)
		all[i].at.pack(c, markKnown)
	}
	s.packWavers(c, slots)
}

// packWavers is the newest values of nodes that wait for one another.
func (s *signal) packWavers(c *packed.Coder, slots []int) {
	if c.Version < 3 {
		return
	}
	has := s.wavers != nil
	if c.Bool(&has); !has || len(slots) == 0 {
		return
	}
	s.waver(0) // one for each
	n, all := len(slots), *s.wavers
	packed.Column(c, n, func(i int) *float32 { return &all[slots[i]].mean })
	packed.Column(c, n, func(i int) *float32 { return &all[slots[i]].sum })
	packed.Column(c, n, func(i int) *float32 { return &all[slots[i]].long })
	packed.Column(c, n, func(i int) *float32 { return &all[slots[i]].short })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].values })
	packed.Column(c, n, func(i int) *uint8 { return &all[slots[i]].in })
	for _, i := range slots {
		s.tracks[i].at.pack(c, markSilent)
	}
}

func (p *splitMeans) pack(c *packed.Coder, slots []int) {
	packed.Column(c, len(slots), func(i int) *float64 { return &p.mean[slots[i]] })
	packed.Column(c, len(slots), func(i int) *float64 { return &p.hour[slots[i]] })
	packed.Column(c, len(slots), func(i int) *uint8 { return &p.n[slots[i]] })
}

func (v *Verdict) pack(c *packed.Coder) {
	c.Bool(&v.Straggler)
	c.Time(&v.Since)
	packed.Count(c, &v.low)
	packed.Count(c, &v.high)
	c.Time(&v.lowSince)
}

// pack is a node without its name and what the arrays of its group have.
func (n *node) pack(c *packed.Coder, seen int64) {
	c.Bool(&n.told)
	c.Bool(&n.asked)
	packSubject(c, &n.culprit)
	packed.Uint(c, &n.peers.reports)
	told := c.Size(len(n.peers.told))
	if c.Reads() {
		n.peers.told = make([]telling, told)
	}
	for i := range n.peers.told {
		t := &n.peers.told[i]
		before, at := int64(0), t.at.UnixNano()
		if !c.Reads() && !t.at.IsZero() {
			before = seen - at + 1
		}
		packed.Int(c, &before)
		packed.Uint(c, &t.report)
		if c.Reads() && before != 0 {
			t.at = time.Unix(0, seen-before+1).UTC()
		}
	}
	has := n.labels != nil
	if c.Bool(&has); has {
		if c.Reads() {
			n.labels = new([]topology.Label)
		}
		packLabels(c, n.labels)
	}
	packTimes(c, &n.onsets)
	packTimes(c, &n.silences)
}

func packTimes(c *packed.Coder, list *[]int64) {
	n := c.Size(len(*list))
	if c.Reads() && n > 0 {
		*list = make([]int64, n)
	}
	for i := range *list {
		packed.Int(c, &(*list)[i])
	}
}

func packLabels(c *packed.Coder, list *[]topology.Label) {
	n := c.Size(len(*list))
	if c.Reads() {
		*list = make([]topology.Label, n)
	}
	for i := range *list {
		c.Text(&(*list)[i].Level, maxNameLength)
		c.Text(&(*list)[i].Value, maxNameLength)
	}
}

func packSubject(c *packed.Coder, s **nodesignal.Subject) {
	has := *s != nil
	if c.Bool(&has); !has {
		return
	}
	if c.Reads() {
		*s = &nodesignal.Subject{}
	}
	c.Text(&(*s).GPU, maxNameLength)
	packed.Int(c, &(*s).Rank)
	packed.Int(c, &(*s).LocalRank)
}

// packEpisodes is a node's two episodes. A reader has the events of many nodes, by id.
func (n *node) packEpisodes(c *packed.Coder, folds map[string]*fold) {
	packEpisode(c, &n.slow, folds)
	packEpisode(c, &n.silence, folds)
}

func packEpisode(c *packed.Coder, to **episode, folds map[string]*fold) {
	has := *to != nil
	if c.Bool(&has); !has {
		*to = nil
		return
	}
	if c.Reads() {
		*to = &episode{}
	}
	ep := *to
	c.Text(&ep.id, maxIDLength)
	packed.Int(c, &ep.since)
	fold := ""
	if ep.fold != nil {
		fold = ep.fold.ID
	}
	c.Text(&fold, maxIDLength)
	if c.Reads() && fold != "" {
		ep.fold = folds[fold] // nil of one that has ended since
	}
	packed.Below(c, &ep.signal, nodesignal.Count)
	packed.Below(c, &ep.severity, SeverityCritical+1)
	for _, x := range [...]*int{&ep.differs, &ep.waited} {
		packed.Count(c, x)
	}
	packed.Count(c, &ep.joins)
	if c.Version < 3 { // ticks
		ep.joins *= trialTick
	}
	packed.Int(c, &ep.last)
	for _, x := range [...]*bool{&ep.told, &ep.held, &ep.counted, &ep.accepted} {
		c.Bool(x)
	}
	packed.Column(c, 1, func(int) *float32 { return &ep.peak })
	packSubject(c, &ep.culprit)
}

func (in *incidentState) pack(c *packed.Coder) {
	if c.Bool(&in.on); !in.on {
		return
	}
	c.Text(&in.id, maxIDLength)
	packed.Below(c, &in.signal, nodesignal.Count)
	packed.Below(c, &in.severity, SeverityCritical+1)
	c.Float(&in.gap)
	packed.Int(c, &in.since)
	c.Time(&in.began)
	c.Time(&in.told)
	for _, x := range [...]*int{&in.ticks, &in.differs} {
		packed.Count(c, x)
	}
	packed.Count(c, &in.calm)
	if c.Version < 3 { // ticks
		in.calm *= trialTick
	}
	c.Bool(&in.joined)
	packFinding(c, &in.shared)
}

func packFinding(c *packed.Coder, f *topology.Finding) {
	packLabels(c, &f.Labels)
	if len(f.Labels) == 0 {
		f.Labels = nil
	}
	packed.Count(c, &f.Bad)
	packed.Count(c, &f.Nodes)
	c.Float(&f.P)
}

func packEvents(c *packed.Coder, list *[]Event) {
	n := c.Size(len(*list))
	if c.Reads() {
		*list = make([]Event, n)
	}
	for i := range *list {
		(*list)[i].Pack(c)
	}
}

// Pack writes or reads an event.
func (ev *Event) Pack(c *packed.Coder) {
	packed.Below(c, &ev.Kind, numEventKinds)
	packed.Below(c, &ev.Subject, SubjectJob+1)
	c.Text(&ev.ID, maxIDLength)
	for _, s := range [...]*string{&ev.Cluster, &ev.Group, &ev.Node} {
		c.Text(s, maxNameLength)
	}
	c.Texts(&ev.Peers, maxNameLength)
	packed.Below(c, &ev.Signal, nodesignal.Count)
	packed.Below(c, &ev.Severity, SeverityCritical+1)
	c.Time(&ev.At)
	c.Time(&ev.Since)
	for _, x := range [...]*float64{&ev.Confidence, &ev.Gap, &ev.Value, &ev.Median} {
		c.Float(x)
	}
	c.Bool(&ev.Compared)
	of := &ev.Culprit
	packSubject(c, &of)
	if of != nil {
		ev.Culprit = *of
	}
	for _, x := range [...]*int{&ev.Rank, &ev.Active, &ev.NodeCount} {
		packed.Count(c, x)
	}
	c.Texts(&ev.Nodes, maxNameLength)
	packFinding(c, &ev.Shared)
	c.Text(&ev.Cause, maxCauseLength)
}

// packFolds writes the events of many nodes that are open.
func (e *Engine) packFolds(c *packed.Coder) {
	n := 0
	for _, of := range e.order {
		n += len(of.folds)
	}
	c.Size(n)
	for _, of := range e.order {
		for _, f := range of.folds {
			f.Pack(c)
		}
	}
}

// packSilent is the nodes gone missing that nothing was told of.
func (c *cluster) packSilent(to *packed.Coder) {
	packed.Count(to, &c.silentTicks)
	n := to.Size(len(c.silent))
	if to.Reads() {
		c.silent = make([]*node, n)
		for i := range c.silent {
			c.silent[i] = &node{} // the cluster's own of that name, once there is one
		}
	}
	for _, n := range c.silent {
		to.Text(&n.name, maxNameLength)
	}
}

// pack writes or reads one of the marks.
func (m *marks) pack(c *packed.Coder, x marks) {
	on := m.has(x)
	c.Bool(&on)
	m.set(x, on)
}
