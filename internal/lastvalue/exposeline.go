// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/gpu-collector/gpu-collector/internal/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// shown is a node that is written.
type shown struct {
	*node
	layout        uint32
	cluster, name string
	beat          uint64
	group         int32 // of nodes whose series may have the same labels
	runs, end     int   // in scrape.found

	text   []byte  // its labels as each of its lines has them
	labels []label // likewise
	named  int     // where its names end in text
	rest   int     // and in labels
	apart  int     // where what sets its group apart ends in text
}

// own is what sets the node apart from those whose series have other labels.
func (v *shown) own() []byte { return v.text[:v.apart] }

// labelName is a label's name and the hash of it.
type labelName struct {
	name string
	hash uint64
}

type label struct {
	name uint64 // its hash
	hash uint64 // of name and value
	end  int    // in shown.text
}

// line is a rendered series of the group at hand.
type line struct {
	hash     uint64
	from, to int
	time     uint32
	age      uint16
	dead     bool
}

// The labels that Prometheus makes of what names a service.
const (
	jobLabel      = "job"
	instanceLabel = "instance"
)

// resource renders the node's labels: of its attributes those that are asked for, and
// `job` and `instance` as OpenTelemetry's rules for Prometheus make them. Its names come
// first: a point cannot claim others, for whoever may speak for a cluster may not speak for
// another.
func (s *scrape) resource(v *shown, attrs []Attr, only []string) {
	wanted := func(only []string, key string) bool {
		return len(only) == 0 || key == identity.Cluster || slices.Contains(only, key)
	}
	// Where all are asked for besides some, each that does not fit is counted once.
	again := len(only) == 0 && len(s.Attributes) > 0
	add := func(key, value string) {
		name := s.labelName([]byte(key))
		if value == "" || (name == s.cluster && key != identity.Cluster) ||
			slices.ContainsFunc(v.labels, func(l label) bool { return l.name == name.hash }) {
			return
		}
		from := len(v.text)
		if v.text = promtext.AppendLabel(v.text, name.name, value); len(v.text) <= maxResourceText {
			v.labels = append(v.labels, label{name.hash, HashBytes(v.text[from:]), len(v.text)})
			return
		}
		v.text = v.text[:from]
		if !again || key != jobLabel && key != instanceLabel && !wanted(s.Attributes, key) {
			s.hide(v.cluster, HiddenLabel, 1)
		}
	}
	for _, key := range identity.Attributes {
		if wanted(only, key) {
			add(key, textOf(attrs, key))
		}
	}
	v.named, v.rest = len(v.text), len(v.labels)
	job := textOf(attrs, "service.name")
	if space := textOf(attrs, "service.namespace"); space != "" && job != "" {
		job = space + "/" + job
	}
	add(jobLabel, job)
	add(instanceLabel, textOf(attrs, "service.instance.id"))
	for i := range attrs {
		if a := &attrs[i]; wanted(only, a.Key) {
			add(a.Key, a.text())
		}
	}
	if v.apart = v.named; !slices.ContainsFunc(identity.Attributes[1:], func(key string) bool { return wanted(only, key) }) {
		v.apart = len(v.text) // no name is among them
	}
	if v.without > 0 && len(only) == 0 {
		s.hide(v.cluster, HiddenLabel, int(v.without))
	}
}

// keepNames bounds the names that a scrape remembers.
const keepNames = 1 << 12

func (s *scrape) labelName(key []byte) labelName {
	l, ok := s.labelNames[string(key)]
	if !ok {
		if len(s.labelNames) == keepNames {
			clear(s.labelNames)
		}
		l.name = promtext.LabelName(string(key))
		l.hash = HashString(l.name)
		s.labelNames[string(key)] = l
	}
	return l
}

// each yields the node's series of a family. The node's lock is held. Where a sweep
// has moved them, they are looked for among all.
func (s *scrape) each(f int32, v *shown, runs []run, yield func(*entry)) {
	if v.evicted {
		return
	}
	if v.node.layout != v.layout {
		for i := range v.entries {
			e := &v.entries[i]
			if e.is(gone) || e.metric == 0 || e.kind() == KindHash {
				continue
			}
			// Metrics that came since the scrape began have no family in it.
			if at, known := s.byMetric[v.names.metrics[e.metric-1]]; known && at == f {
				yield(e)
			}
		}
		return
	}
	for _, r := range runs {
		for i := r.from; i < r.to; i++ {
			if e := &v.entries[i]; !e.is(gone) && e.kind() != KindHash {
				yield(e)
			}
		}
	}
}

// render renders a node's series of a family.
func (s *scrape) render(f int32, v *shown, runs []run) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.evicted {
		return
	}
	name := s.families[f].name
	if runs[0].from == runs[0].to {
		runs = runs[1:]
		if f == s.info {
			all := shown{node: v.node, cluster: v.cluster}
			s.resource(&all, v.names.attributes(v.attrs), nil)
			s.series(&all, name, &entry{value: 1, bits: s.tick})
		} else {
			s.series(v, name, &entry{value: v.beat / 1e9, bits: s.tick})
		}
	}
	s.each(f, v, runs, func(e *entry) {
		if f == s.beat && v.beat != 0 && len(v.names.set(e.attrs)) == 0 {
			return // from the tier before, and not newer
		}
		s.series(v, name, e)
	})
}

// series renders a line. Of labels with the same name the first counts: those of the
// node's names, then the point's, then the rest of the resource's.
func (s *scrape) series(v *shown, name string, e *entry) {
	l := line{from: len(s.buf), time: e.time}
	s.buf = append(s.buf, name...)
	open := len(s.buf)
	s.buf = append(s.buf, v.text[:v.named]...)
	s.has = append(s.has[:0], s.cluster.hash)
	for i := range v.labels[:v.rest] {
		s.has, l.hash = append(s.has, v.labels[i].name), l.hash+v.labels[i].hash
	}
	for refs := v.names.set(e.attrs); len(refs) > 0; refs = refs[2:] {
		key, kind, value := v.names.pair(refs)
		label := s.labelName(key)
		if len(value) == 0 || slices.Contains(s.has, label.hash) {
			continue
		}
		from := len(s.buf)
		if kind == AttrString {
			s.buf = promtext.AppendLabel(s.buf, label.name, value)
		} else {
			var digits [32]byte
			s.buf = promtext.AppendLabel(s.buf, label.name, appendNumber(digits[:0], kind, binary.LittleEndian.Uint64(value)))
		}
		s.has, l.hash = append(s.has, label.hash), l.hash+HashBytes(s.buf[from:])
	}
	start := v.named
	for i := v.rest; i < len(v.labels); i++ {
		label := &v.labels[i]
		if !slices.Contains(s.has, label.name) {
			s.buf = append(s.buf, v.text[start:label.end]...)
			l.hash += label.hash
		}
		start = label.end
	}
	if len(s.buf)-l.from > maxLine || len(s.buf)-s.group > maxGroupText {
		s.buf = s.buf[:l.from]
		s.hide(v.cluster, HiddenLong, 1)
		return
	}
	if len(s.buf) > open {
		s.buf[open] = '{'
		s.buf = append(s.buf, '}')
	}
	s.buf = append(s.buf, ' ')
	if e.kind() == KindInt {
		s.buf = strconv.AppendInt(s.buf, int64(e.value), 10)
	} else {
		s.buf = promtext.AppendFloat(s.buf, math.Float64frombits(e.value))
	}
	s.buf = append(s.buf, '\n')
	if l.to, l.age = len(s.buf), (s.tick-e.heard())&heardMask; l.age > heardMask/2 { // heard since the scrape began
		l.age = 0
	}
	s.enter(v, l)
}

// keepLines is how many lines of a group leave their room in the map for the next.
const keepLines = 1 << 8

// begin starts a group of nodes with the same labels, mostly one.
func (s *scrape) begin() {
	if len(s.lines) > keepLines {
		s.seen = map[uint64]int{}
	} else {
		clear(s.seen)
	}
	s.group, s.lines, s.dead = len(s.buf), s.lines[:0], 0
}

// enter takes note of a line. Of two with the same labels the one stays that was
// heard last. Hashes of labels add up, so that their order does not matter.
func (s *scrape) enter(v *shown, l line) {
	if i, twice := s.seen[l.hash]; twice {
		s.hide(v.cluster, HiddenDuplicate, 1)
		old := &s.lines[i]
		if l.age > old.age || (l.age == old.age && int32(l.time-old.time) <= 0) {
			s.buf = s.buf[:l.from]
			return
		}
		old.dead = true
		s.dead++
	}
	s.seen[l.hash] = len(s.lines)
	s.lines = append(s.lines, l)
}

// end ends the group, without the lines that others took the place of, and writes the text
// once it is long and the family that began with so many series has some.
func (s *scrape) end(before int) error {
	s.exposed.Series += len(s.lines) - s.dead
	if s.dead > 0 {
		to := s.group
		for i := range s.lines {
			if l := &s.lines[i]; !l.dead {
				to += copy(s.buf[to:], s.buf[l.from:l.to])
			}
		}
		s.buf = s.buf[:to]
	}
	var err error
	if s.exposed.Series > before {
		err = s.flush()
	}
	s.begin()
	return err
}
