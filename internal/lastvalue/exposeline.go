// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// shown is a node that is written.
type shown struct {
	*node
	cluster, name    string
	reported         uint64  // its heartbeat when the scrape began
	found            uint32  // its layout when its runs were found
	group            int     // of nodes whose series may have the same labels
	labels           []label // as each of its lines has them, its names first
	named, apart     int     // of labels: its names, and those that set it apart from other nodes
	nameLabels, rest label   // its names and the other labels as one, with bits for the name's hash
}

// compare orders nodes by what sets them apart. It is 0 where their series may have the
// same labels.
func (v *shown) compare(other *shown) int {
	return slices.CompareFunc(v.labels[:v.apart], other.labels[:other.apart], func(a, b label) int { return strings.Compare(a.text, b.text) })
}

// labelName is the name of an attribute's label and the hash of it.
type labelName struct {
	key, name string
	hash      uint64
}

// label is a node's.
type label struct {
	name, hash uint64 // of its name, and of text
	text       string // as promtext.AppendLabel has it
}

// line is a rendered series of the current nodes.
type line struct {
	hash       uint64 // of its labels, in any order
	from, to   int    // in Scrape.text
	time       uint32
	age        uint16
	superseded bool
}

// show takes a node that is to be written.
func (s *Scrape) show(n *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.evicted || s.now-n.lastSeen > s.Expiration {
		return
	}
	attrs := n.names.attributes(n.attrs)
	names := Identify(attrs)
	v := shown{node: n, cluster: names.Cluster("", ""), name: names.Node(), reported: n.heartbeat}
	if s.Cluster == nil || v.cluster == *s.Cluster {
		s.label(&v, attrs)
		s.nodes = append(s.nodes, v)
		if n.droppedAttrs > 0 {
			s.Hide(v.cluster, HiddenLabel, int(n.droppedAttrs))
		}
	}
}

// isLabel reports whether an attribute of a node is a label of each of its series.
func (s *Scrape) isLabel(key string) bool {
	return len(s.Attributes) == 0 || key == identity.Cluster || slices.Contains(s.Attributes, key)
}

// label makes the node's labels: of its attributes those that are asked for, and `job` and
// `instance` as OpenTelemetry's rules for Prometheus make them. Its names come first: a
// point cannot claim others: a client's credentials are for one cluster.
func (s *Scrape) label(v *shown, attrs []Attr) {
	for _, key := range identity.Attributes {
		if s.isLabel(key) {
			s.addLabel(v, key, v.names.text(v.attrs, key))
		}
	}
	v.named, v.nameLabels, v.rest = len(v.labels), v.rest, label{}
	job := v.names.text(v.attrs, "service.name")
	if space := v.names.text(v.attrs, "service.namespace"); space != "" && job != "" {
		job = space + "/" + job
	}
	s.addLabel(v, "job", job)
	s.addLabel(v, "instance", v.names.text(v.attrs, "service.instance.id"))
	for i := range attrs {
		if s.isLabel(attrs[i].Key) {
			s.addLabel(v, attrs[i].Key, attrs[i].text())
		}
	}
	if v.apart = v.named; !slices.ContainsFunc(identity.Attributes[1:], s.isLabel) {
		v.apart = len(v.labels) // the names are not asked for
	}
}

// addLabel adds a label to a node's, unless it has one of that name, or has no room.
func (s *Scrape) addLabel(v *shown, key, value string) {
	name := newLabelName(key)
	same := func(l label) bool { return l.name == name.hash }
	if value == "" || name.hash == s.cluster.hash && key != identity.Cluster || slices.ContainsFunc(v.labels, same) {
		return
	}
	text := string(promtext.AppendLabel(nil, name.name, value))
	if len(v.nameLabels.text)+len(v.rest.text)+len(text) > maxResourceText {
		s.Hide(v.cluster, HiddenLabel, 1)
		return
	}
	l := label{name.hash, HashString(text), text}
	v.labels = append(v.labels, l)
	v.rest = label{v.rest.name | bit(l.name), v.rest.hash + l.hash, v.rest.text + text}
}

// bit is one of 64, which distinguishes most names of labels.
func bit(name uint64) uint64 { return 1 << (name >> 58) }

// keepLines is how many lines leave their room in the map for the next nodes: all of it is
// cleared for each.
const keepLines = 1 << 8

func newLabelName(key string) labelName {
	name := promtext.LabelName(key)
	return labelName{key, name, HashString(name)}
}

// render renders a node's series of a family, or that which the text adds.
func (s *Scrape) render(f *family, v *shown, e *entry) {
	switch {
	case e == nil && f == s.info:
		all, attrs := *v, v.names.attributes(v.attrs)
		all.labels = slices.Clip(v.labels)
		for i := range attrs {
			if !s.isLabel(attrs[i].Key) {
				s.addLabel(&all, attrs[i].Key, attrs[i].text())
			}
		}
		s.series(&all, f.name, &entry{value: 1, bits: s.tick})
	case e == nil:
		s.series(v, f.name, &entry{value: v.reported / 1e9, bits: s.tick})
	case f == s.heartbeat && v.reported != 0 && len(v.names.at(e.attrs)) == 0:
		// The heartbeat is from the upstream tier, and not newer.
	default:
		s.series(v, f.name, e)
	}
}

// series renders a line. Of labels with the same name the first counts: those of the
// node's names, then the point's, then the rest of the resource's.
func (s *Scrape) series(v *shown, name string, e *entry) {
	l := line{from: len(s.text), time: e.time, age: uint16(e.age(uint64(s.tick)))}
	if l.age > ageMask/2 { // reported since the scrape began
		l.age = 0
	}
	s.text = append(s.text, name...)
	open := len(s.text)
	s.text, l.hash = append(s.text, v.nameLabels.text...), v.nameLabels.hash
	s.has = append(s.has[:0], s.cluster.hash)
	for i := range v.labels[:v.named] {
		s.has = append(s.has, v.labels[i].name)
	}
	bits := uint64(0) // of the point's labels
	refs := v.names.at(e.attrs)
	for i := range len(refs) / 2 {
		key, kind, value := v.names.pair(refs[2*i:])
		name := &s.recent[i]
		if name.name == "" || name.key != string(key) {
			*name = newLabelName(string(key))
		}
		if len(value) == 0 || slices.Contains(s.has, name.hash) {
			continue
		}
		var digits [32]byte
		from := len(s.text)
		s.text = promtext.AppendLabel(s.text, name.name, textOf(digits[:0], kind, value))
		s.has, l.hash = append(s.has, name.hash), l.hash+HashBytes(s.text[from:])
		bits |= bit(name.hash)
	}
	if bits&v.rest.name == 0 {
		s.text, l.hash = append(s.text, v.rest.text...), l.hash+v.rest.hash
	}
	for i := v.named; i < len(v.labels) && bits&v.rest.name != 0; i++ {
		if label := &v.labels[i]; !slices.Contains(s.has, label.name) {
			s.text, l.hash = append(s.text, label.text...), l.hash+label.hash
		}
	}
	if len(s.text)-l.from > MaxLine || len(s.text) > maxGroupText {
		s.text = s.text[:l.from]
		s.Hide(v.cluster, HiddenLong, 1)
		return
	}
	if len(s.text) > open {
		s.text[open] = '{'
		s.text = append(s.text, '}')
	}
	s.text = append(s.text, ' ')
	if e.kind() == KindInt {
		s.text = strconv.AppendInt(s.text, int64(e.value), 10)
	} else {
		s.text = promtext.AppendFloat(s.text, math.Float64frombits(e.value))
	}
	s.text = append(s.text, '\n')
	l.to = len(s.text)
	s.addLine(v, l)
}

// addLine adds a line. Of two with the same labels the one stays that was reported
// last. Hashes of labels add up, so that their order does not matter.
func (s *Scrape) addLine(v *shown, l line) {
	if i, twice := s.seen[l.hash]; twice {
		s.Hide(v.cluster, HiddenDuplicate, 1)
		old := &s.lines[i]
		if l.age > old.age || l.age == old.age && int32(l.time-old.time) <= 0 {
			s.text = s.text[:l.from]
			return
		}
		old.superseded = true
	}
	s.seen[l.hash] = len(s.lines)
	s.lines = append(s.lines, l)
}

// end writes the lines of nodes with the same labels, mostly of one node, without those
// that others replace.
func (s *Scrape) end(f *family) {
	size, lines := 0, 0
	for i := range s.lines {
		if l := &s.lines[i]; !l.superseded {
			size += copy(s.text[size:], s.text[l.from:l.to])
			lines++
		}
	}
	s.write(f, s.text[:size], lines)
	if len(s.lines) > keepLines {
		s.seen = map[uint64]int{}
	}
	clear(s.seen)
	s.text, s.lines = s.text[:0], s.lines[:0]
}
