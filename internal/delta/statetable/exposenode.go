// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/gpu-collector/gpu-collector/internal/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// collect takes the nodes of a table that are to be written.
func (s *scrape) collect(i int) {
	src := &s.sources[i]
	var cluster uint64
	if s.Cluster != nil && *s.Cluster != "" {
		cluster = HashString(*s.Cluster)
	}
	for n := range src.all() {
		if s.Parts > 0 && n.key.Hi%s.Parts != s.Part {
			continue
		}
		func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			if !n.evicted && n.kept && src.now-n.heard <= s.Expiration && (s.Cluster == nil || n.cluster == cluster) {
				s.take(i, n)
			}
		}()
	}
}

// take notes a node and where its series are. The node's lock is held.
func (s *scrape) take(i int, n *node) {
	src := &s.sources[i]
	src.refresh()
	v := shown{node: n, source: i, layout: n.layout, runs: len(s.found)}
	s.resource(&v, s.Attributes)
	if n.beat != 0 && v.name != "" {
		v.beat = n.beat
		s.found = append(s.found, found{family: s.beat})
	}
	if s.info >= 0 {
		s.found = append(s.found, found{family: s.info})
	}
	for at := range n.entries {
		e := &n.entries[at]
		if e.is(gone) {
			continue
		}
		f := src.family(e)
		if f < 0 {
			s.hide(v.cluster, [...]Hidden{HiddenUnnamed, HiddenOpaque, HiddenReserved}[-1-f], 1)
			continue
		}
		if last := len(s.found) - 1; last >= v.runs && s.found[last].family == f && int(s.found[last].to) == at && at > 0 {
			s.found[last].to++
			continue
		}
		s.found = append(s.found, found{f, uint16(at), uint16(at + 1)})
	}
	v.end = len(s.found)
	s.nodes = append(s.nodes, v)
}

// family is that of an entry, or why it has none.
func (src *source) family(e *entry) int32 {
	switch {
	case e.metric == 0 || int(e.metric) > len(src.families) || e.attrs == 0:
		return noFamily
	case e.kind() == KindHash:
		return opaqueFamily
	}
	return src.families[e.metric-1]
}

// refresh forgets what is not true any more of the numbers of metrics and pairs. With
// the lock of a node held, it is true for all that this node has.
func (src *source) refresh() {
	d := src.dict
	if d.releases.Load() == src.releases {
		return
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	src.releases = d.releases.Load()
	clear(src.pairs)
	clear(src.sets)
	for i := range src.metrics {
		if d.metrics.slots[i].name != src.metrics[i] {
			src.families[i] = noFamily
		}
	}
}

func (s *scrape) hide(cluster string, why Hidden, count int) {
	counts := s.exposed.Hidden[cluster]
	if counts == nil {
		counts = new([hiddenReasons]int)
		s.exposed.Hidden[cluster] = counts
	}
	counts[why] += count
}

// first are the names of a node, which keep their room in a line. A point cannot claim
// others: whoever may speak for a cluster may not speak for another.
var first = identity.Attributes

// The labels that Prometheus makes of what names a service.
const (
	jobLabel      = "job"
	instanceLabel = "instance"
)

// resource renders the node's labels: of its attributes those that are asked for, and
// `job` and `instance` as OpenTelemetry's rules for Prometheus make them.
func (s *scrape) resource(v *shown, only []string) {
	s.attrs = s.sources[v.source].dict.attributes(s.attrs[:0], &v.names, v.attrs)
	v.more, v.sum = 0, 0
	names := Identify(s.attrs)
	v.cluster, v.name = names.Cluster("", ""), names.Node()
	v.from, v.first = len(s.text), len(s.labels)
	// Where all are asked for besides some, each that does not fit is counted once.
	rest := len(only) == 0 && len(s.Attributes) > 0
	counted := func(key string) bool {
		return rest && (key == identity.Cluster || key == jobLabel || key == instanceLabel || slices.Contains(s.Attributes, key))
	}
	add := func(key, value string) {
		l := label{labelName: s.labelName([]byte(key))}
		if value == "" || (l.name == s.cluster.name && key != identity.Cluster) ||
			slices.ContainsFunc(s.labels[v.first:], func(have label) bool { return have.name == l.name }) {
			return
		}
		from := len(s.text)
		s.text = promtext.AppendLabel(s.text, l.name, value)
		if len(s.text)-v.from > maxResourceText {
			if s.text = s.text[:from]; !counted(key) {
				s.hide(v.cluster, HiddenLabel, 1)
			}
			return
		}
		l.end, l.hash = len(s.text), HashBytes(s.text[from:])
		v.more, v.sum = v.more|l.bit, v.sum+l.hash
		s.labels = append(s.labels, l)
	}
	wanted := func(key string) bool {
		return len(only) == 0 || key == identity.Cluster || slices.Contains(only, key)
	}
	for _, key := range first {
		if wanted(key) {
			add(key, textOf(s.attrs, key))
		}
	}
	v.named, v.rest, v.bits, v.hash, v.more, v.sum = len(s.text), len(s.labels), v.more, v.sum, 0, 0
	job := textOf(s.attrs, "service.name")
	if space := textOf(s.attrs, "service.namespace"); space != "" && job != "" {
		job = space + "/" + job
	}
	add(jobLabel, job)
	add(instanceLabel, textOf(s.attrs, "service.instance.id"))
	for i := range s.attrs {
		if a := &s.attrs[i]; wanted(a.Key) {
			add(a.Key, a.text())
		}
	}
	if v.attrs == 0 {
		add("gpu_node_key", fmt.Sprintf("%016x%016x", v.key.Hi, v.key.Lo))
	}
	v.to, v.last = len(s.text), len(s.labels)
	if v.apart = v.named; !slices.ContainsFunc(first[1:], wanted) {
		v.apart = v.to // no name is among them
	}
	if v.without > 0 && len(only) == 0 {
		s.hide(v.cluster, HiddenLabel, int(v.without))
	}
}

// encodeNode encodes the attributes of a node that there is room for, first what it is
// called, and how many there is none for.
func encodeNode(attrs []Attr) (text []byte, without int) {
	count := 0
	for _, named := range [...]bool{true, false} {
		for i := range attrs {
			if slices.Contains(first[:], attrs[i].Key) != named || count == maxPairsPerSet {
				continue
			}
			var ok bool
			if text, ok = encodePairs(text, attrs[i:i+1]); ok {
				count++
			}
		}
	}
	return text, len(attrs) - count
}

// keepNames bounds the names that a scrape remembers.
const keepNames = 1 << 12

func (s *scrape) labelName(key []byte) labelName {
	l, ok := s.names[string(key)]
	if !ok {
		if len(s.names) == keepNames {
			clear(s.names)
		}
		name := promtext.LabelName(string(key))
		l = labelName{name, 1 << (HashString(name) >> 58)}
		s.names[string(key)] = l
	}
	return l
}

// textOf is the value of a key, "" for none.
func textOf(attrs []Attr, key string) string {
	if i := slices.IndexFunc(attrs, func(a Attr) bool { return a.Key == key }); i >= 0 {
		return attrs[i].text()
	}
	return ""
}

func (a *Attr) text() string {
	if a.Type == AttrString {
		return a.Text
	}
	return string(appendNumber(nil, a.Type, a.Num))
}

func appendNumber(to []byte, t AttrType, num uint64) []byte {
	switch t {
	case AttrInt:
		return strconv.AppendInt(to, int64(num), 10)
	case AttrBool:
		return strconv.AppendBool(to, num != 0)
	case AttrDouble, AttrString:
	}
	return promtext.AppendDouble(to, math.Float64frombits(num))
}
