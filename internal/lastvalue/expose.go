// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"bufio"
	"cmp"
	"io"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// The bounds of a text, in bytes.
const (
	MaxLine         = 4 << 10  // of one series
	maxResourceText = 2 << 10  // of a node's labels in each of its lines
	maxGroupText    = 16 << 20 // of a node's series of one name, which are held at once
	maxHelp         = 512      // of a name, before it is escaped
	flushText       = 64 << 10
)

// Exposition is how a table is written as text for Prometheus.
type Exposition struct {
	OpenMetrics bool
	Expiration  time.Duration // the time without a report after which a node's series are not written
	Cluster     *string       // the only one that is written, nil for all
	Part, Parts uint64        // Part of Parts is written, as the nodes' keys have it; 0 Parts for all
	Attributes  []string      // the resource's that are labels of each series, with the cluster's name; all where it is empty
	Reserved    []string      // beginnings of names that no series may have
	More        func(*Scrape) // unless nil, writes families of its own after the table's
}

// Hidden is why something of a table is not in the text.
type Hidden uint8

// The reasons.
const (
	HiddenDuplicate Hidden = iota // a series with the name and labels of one reported later, here or at a node with the same labels
	HiddenLong                    // a series whose line is longer than 4 kB, or for which a text has no room
	HiddenOpaque                  // a histogram or summary: the table has no numbers of those
	HiddenUnnamed                 // a series without a name in the table
	HiddenReserved                // a series whose name is reserved
	HiddenLabel                   // an attribute of a node: of more than 1 kB, beyond the 32nd, or beyond 2 kB of labels
	hiddenReasons
)

func (h Hidden) String() string {
	return [hiddenReasons]string{"duplicate", "too_long", "histogram", "unnamed", "reserved_name", "resource_label"}[h]
}

// Exposed is what was written.
type Exposed struct {
	Nodes, Series int
	Bytes         int64                          // of the text
	Conflicts     int                            // families that have gauges and counters among their series
	Hidden        map[string]*[hiddenReasons]int // by cluster and reason, how much was not written
}

// Hide counts what is not written of a cluster.
func (x *Exposed) Hide(cluster string, why Hidden, count int) {
	if x.Hidden[cluster] == nil {
		x.Hidden[cluster] = new([hiddenReasons]int)
	}
	x.Hidden[cluster][why] += count
}

// Write writes the table as it is now, families by name, and in a family the nodes by
// their labels, first the cluster's. A node's lock is held while its series of one family
// are rendered, and none while the text is written.
func (x *Exposition) Write(w io.Writer, t *Table, now time.Duration) (Exposed, error) {
	s := &Scrape{
		Exposition: x, to: bufio.NewWriterSize(w, flushText), now: now, tick: uint16(t.ticks(now)) & ageMask,
		byName: map[string]*family{}, byMetric: map[*metric]*family{}, seen: map[uint64]int{},
	}
	s.Hidden = map[string]*[hiddenReasons]int{}
	s.cluster = newLabelName(identity.Cluster)
	name := promtext.MetricName(gpusemconv.MetricNodeHeartbeat, "s", promtext.KindGauge)
	s.heartbeat = &family{name: name, help: "Time of the node's last report."}
	s.byName[name] = s.heartbeat
	if len(s.Attributes) > 0 {
		s.info = &family{name: "gpu_node_info", help: "What the node's resource says of it."}
		s.byName[s.info.name] = s.info
	}
	for n := range t.all() {
		if s.Parts == 0 || n.key.Hi%s.Parts == s.Part {
			s.show(n)
		}
	}
	slices.SortFunc(s.nodes, func(a, b shown) int { return cmp.Or(a.compare(&b), cmp.Compare(a.key.Hi, b.key.Hi)) })
	s.Nodes = len(s.nodes)
	for i := range s.nodes {
		if s.nodes[i].group = i; i > 0 && s.nodes[i].compare(&s.nodes[i-1]) == 0 {
			s.nodes[i].group = s.nodes[i-1].group
		}
		s.find(int32(i))
	}
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		s.family(s.byName[name])
	}
	if s.More != nil {
		s.More(s)
	}
	return s.Exposed, s.to.Flush()
}

// Scrape is one text in the making. It holds 8 bytes for each run of series of a
// metric, and for a node some 200 and its labels.
type Scrape struct {
	*Exposition
	Exposed
	to   *bufio.Writer
	err  error // of to, which takes nothing more then
	now  time.Duration
	tick uint16

	nodes           []shown
	byName          map[string]*family
	byMetric        map[*metric]*family // nil for a reserved name
	heartbeat, info *family             // the heartbeat's, and of all attributes where others have some, or nil

	// The lines of the current nodes, which have the same labels, each text of labels once.
	text  []byte
	lines []line
	seen  map[uint64]int // of lines, by the labels' hash
	has   []uint64       // labels of the current line

	recent  [maxPairsPerSet]labelName // of the line before: a family's lines have the same ones
	cluster labelName                 // of the label that only a resource has
}

// family is the series of one name, of all nodes.
type family struct {
	name, help string
	counter    bool
	mixed      bool // there are gauges and counters
	begun      bool // its first line is written
	runs       []run
}

// run is series from..to of a node. It is empty for a series that the text adds, which
// comes before the node's own.
type run struct {
	node     int32 // in Scrape.nodes
	from, to uint16
}

// find notes which series of a node the families have.
func (s *Scrape) find(at int32) {
	v := &s.nodes[at]
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.evicted {
		return
	}
	v.found = v.layout
	if v.reported != 0 && v.name != "" {
		s.heartbeat.runs = append(s.heartbeat.runs, run{node: at})
	}
	if s.info != nil {
		s.info.runs = append(s.info.runs, run{node: at})
	}
	for i := range v.entries {
		e := &v.entries[i]
		if e.is(gone) {
			continue
		}
		f, why := s.familyOf(v.node, e)
		if f == nil {
			s.Hide(v.cluster, why, 1)
			continue
		}
		if last := len(f.runs) - 1; last >= 0 && f.runs[last].node == at && i > 0 && int(f.runs[last].to) == i {
			f.runs[last].to++
			continue
		}
		f.runs = append(f.runs, run{at, uint16(i), uint16(i + 1)})
	}
}

// familyOf is the family of a node's series, or nil and why it has none.
func (s *Scrape) familyOf(n *node, e *entry) (*family, Hidden) {
	if e.metric == 0 {
		return nil, HiddenUnnamed
	}
	m := n.names.metrics[e.metric-1]
	if m.Type > TypeSum || e.kind() == KindHash {
		return nil, HiddenOpaque
	}
	f, known := s.byMetric[m]
	if !known {
		f = s.familyFor(&m.Metric)
		s.byMetric[m] = f
	}
	return f, HiddenReserved
}

// familyFor finds the family of a metric, nil for a reserved name. Where metrics differ, gauges
// come before counters, and among either the first help by the alphabet.
func (s *Scrape) familyFor(m *Metric) *family {
	kind := promtext.KindGauge
	switch {
	case m.Type == TypeSum && m.Monotonic:
		kind = promtext.KindCounter
	case m.Type == TypeSum:
		kind = promtext.KindNonMonotonic
	}
	name, counter := promtext.MetricName(m.Name, m.Unit, kind), kind == promtext.KindCounter
	if slices.ContainsFunc(s.Reserved, func(reserved string) bool { return strings.HasPrefix(name, reserved) }) {
		return nil
	}
	help := cmp.Or(m.Description, "The OpenTelemetry metric "+m.Name+".")
	if len(help) > maxHelp {
		help = strings.ToValidUTF8(help[:maxHelp], "") // the last letter may be cut
	}
	f := s.byName[name]
	if f == nil {
		f = &family{name: name, help: help, counter: counter}
		s.byName[name] = f
		return f
	}
	differs := counter != f.counter
	f.mixed = f.mixed || differs
	// No sender describes the text's own series.
	if f != s.heartbeat && f != s.info && (differs && f.counter || !differs && help < f.help) {
		f.counter, f.help = counter, help
	}
	return f
}

// family writes one family.
func (s *Scrape) family(f *family) {
	group := 0
	for v, runs := range s.nodesOf(f) {
		if v.group != group {
			s.end(f)
		}
		group = v.group
		s.each(f, v, runs, func(e *entry) { s.render(f, v, e) })
	}
	s.end(f)
}

// write writes lines of a family, and before its first what the family begins with.
func (s *Scrape) write(f *family, text []byte, lines int) {
	if lines > 0 && !f.begun {
		f.begun = true
		if f.mixed {
			s.Conflicts++
		}
		base, _ := promtext.CounterBase(f.name)
		_, taken := s.byName[base]
		text = append(promtext.AppendFamily(nil, f.name, f.help, f.counter, s.OpenMetrics, !taken), text...)
	}
	s.Series += lines
	s.Bytes += int64(len(text))
	_, s.err = s.to.Write(text)
}

// nodesOf yields the nodes that have a family, with their runs of it, until the reader is gone.
func (s *Scrape) nodesOf(f *family) iter.Seq2[*shown, []run] {
	return func(yield func(*shown, []run) bool) {
		for runs := f.runs; len(runs) > 0 && s.err == nil; {
			node, count := runs[0].node, 1
			for count < len(runs) && runs[count].node == node {
				count++
			}
			if !yield(&s.nodes[node], runs[:count]) {
				return
			}
			runs = runs[count:]
		}
	}
}

// each yields a node's series of a family, and first nil for one that the text adds. The
// node's lock is held. Where a sweep has moved the series, they are looked for among all.
func (s *Scrape) each(f *family, v *shown, runs []run, yield func(*entry)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.evicted {
		return
	}
	if runs[0].from == runs[0].to {
		runs = runs[1:]
		yield(nil)
	}
	moved := v.layout != v.found
	if moved {
		runs = []run{{to: uint16(len(v.entries))}}
	}
	for _, r := range runs {
		for i := r.from; i < r.to; i++ {
			e := &v.entries[i]
			if e.is(gone) || e.opaque() || moved && s.byMetric[v.names.metrics[e.metric-1]] != f {
				continue
			}
			yield(e)
		}
	}
}

// Sample is the last value of a series that is written.
type Sample struct {
	Key           NodeKey
	Cluster, Node string
	Reported      uint64 // when the node reported last, in Unix nanoseconds, 0 where it did not itself
	Value         float64
	Attr          func(key string) string // the value of an attribute, "" for none
}

// Samples yields those of a family without series of the text's own, with the node's lock held.
func (s *Scrape) Samples(family string, yield func(*Sample)) {
	f := s.byName[family]
	if f == nil {
		return
	}
	for v, runs := range s.nodesOf(f) {
		p := &Sample{Key: v.key, Cluster: v.cluster, Node: v.name, Reported: v.reported}
		s.each(f, v, runs, func(e *entry) {
			p.Value, p.Attr = e.kind().float(e.value), func(key string) string { return v.names.text(e.attrs, key) }
			yield(p)
		})
	}
}

// Family begins a family of More's own, and returns what writes a line of it.
func (s *Scrape) Family(name, help string, counter bool) (write func(line []byte)) {
	f := &family{name: name, help: help, counter: counter}
	return func(line []byte) { s.write(f, line, 1) }
}
