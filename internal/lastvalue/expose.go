// SPDX-License-Identifier: Apache-2.0

package lastvalue // import "github.com/gpu-collector/gpu-collector/internal/lastvalue"

import (
	"bytes"
	"cmp"
	"io"
	"iter"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpu-collector/gpu-collector/internal/dcgmnames"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
)

// The bounds of a text, in bytes.
const (
	maxLine         = 4 << 10  // of one series
	maxResourceText = 2 << 10  // of a node's labels in each of its lines
	maxGroupText    = 16 << 20 // of a node's series of one name, which are held at once
	maxHelp         = 512      // of a name, before it is escaped
	flushText       = 64 << 10
)

// infoMetric has all attributes of a node where its other series have some of them.
const infoMetric = "gpu_node_info"

// Exposition says how a table is written as text for Prometheus.
type Exposition struct {
	OpenMetrics bool
	// Expiration is the silence after which a node's series are not written.
	Expiration time.Duration
	// Cluster names the only cluster that is written, nil for all.
	Cluster *string
	// Part of Parts is written, as the nodes' keys have it; 0 Parts for all.
	Part, Parts uint64
	// Attributes are the resource's that each series has as labels, besides the
	// cluster's name; all of them when it is empty.
	Attributes []string
	// Reserved is a beginning of names that no series may have.
	Reserved string
	// DCGM has the GPUs written under dcgm-exporter's names too.
	DCGM bool
}

// Hidden is why something of a table is not in the text.
type Hidden uint8

// The reasons.
const (
	// HiddenDuplicate is a series that shares name and labels with another series, of
	// its node or of a node with the same labels. The series heard last is written.
	HiddenDuplicate Hidden = iota
	// HiddenLong is a series whose line is longer than 4 kB.
	HiddenLong
	// HiddenOpaque is a histogram or summary. The table has no numbers of those.
	HiddenOpaque
	// HiddenUnnamed is a series without a name in the table.
	HiddenUnnamed
	// HiddenReserved is a series whose name nobody may have.
	HiddenReserved
	// HiddenLabel is an attribute of a node that did not fit: of more than 1 kB, beyond
	// the 32nd, or beyond 2 kB of labels.
	HiddenLabel
	hiddenReasons
)

func (h Hidden) String() string {
	return [hiddenReasons]string{"duplicate", "too_long", "histogram", "unnamed", "reserved_name", "resource_label"}[h]
}

// Exposed is what was written.
type Exposed struct {
	Nodes, Families, Series int
	// Conflicts are the families that have gauges and counters among their series.
	Conflicts int
	// Hidden is by cluster what was not written.
	Hidden map[string]*[hiddenReasons]int
}

// Each yields how much of each cluster was hidden for each reason, where some was.
func (x *Exposed) Each(yield func(cluster string, reason Hidden, count int)) {
	for cluster, counts := range x.Hidden {
		for reason, count := range counts {
			if count > 0 {
				yield(cluster, Hidden(reason), count)
			}
		}
	}
}

// Write writes the table as it is now, families by name, and in a family the nodes by
// cluster and name. A node's lock is held while its series of one family are
// rendered, and none while the text is written.
func (x *Exposition) Write(w io.Writer, t *Table, now time.Duration) (Exposed, error) {
	s := &scrape{
		Exposition: x, to: w, now: now, tick: uint16(t.ticks(now)) & heardMask,
		byName: map[string]int32{}, byMetric: map[*metric]int32{}, labelNames: map[string]labelName{}, seen: map[uint64]int{},
	}
	s.exposed.Hidden = map[string]*[hiddenReasons]int{}
	s.cluster = s.labelName([]byte(identity.Cluster))
	s.beat = s.add(family{name: promtext.MetricName(gpusemconv.MetricNodeHeartbeat, "s", promtext.KindGauge), help: "Time of the node's last report.", kind: promtext.Gauge, own: true})
	if s.info = noFamily; len(s.Attributes) > 0 {
		s.info = s.add(family{name: infoMetric, help: "What the node's resource says of it.", kind: promtext.Gauge, own: true})
	}
	for n := range t.all() {
		if s.Parts == 0 || n.key.Hi%s.Parts == s.Part {
			s.take(n)
		}
	}
	for _, f := range s.order() {
		if err := s.family(f); err != nil {
			return s.exposed, err
		}
	}
	if s.DCGM {
		if err := s.dcgm(); err != nil {
			return s.exposed, err
		}
	}
	_, err := w.Write(s.buf)
	return s.exposed, err
}

// scrape is one text in the making. It holds 8 bytes for each run of series of a
// metric, and for a node some 300 and its labels.
type scrape struct {
	*Exposition
	to      io.Writer
	now     time.Duration
	tick    uint16
	exposed Exposed

	families   []family
	byName     map[string]int32
	byMetric   map[*metric]int32
	beat, info int32 // the heartbeat's family, and infoMetric's or noFamily

	nodes  []shown
	found  []found // runs before they are ordered
	runs   []run
	starts []int // of each family in runs

	labelNames map[string]labelName // by an attribute's key
	cluster    labelName            // of the label that only a resource has

	buf   []byte
	group int // in buf, where the lines of one group of nodes begin
	lines []line
	dead  int            // of lines
	seen  map[uint64]int // of lines, by hash
	has   []uint64       // labels of the line at hand
}

// What a series has that is in no family.
const (
	noFamily       = -1
	opaqueFamily   = -2
	reservedFamily = -3
)

type family struct {
	name, help string
	kind       promtext.Type
	mixed      bool // there are gauges and counters
	own        bool // the text's own, which no sender describes
}

type found struct {
	family   int32
	from, to uint16
}

// run is series from..to of a node. It is empty for one that the text adds.
type run struct {
	node     int32
	from, to uint16
}

// take notes a node that is to be written, and where its series are.
func (s *scrape) take(n *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.evicted || s.now-n.heard > s.Expiration {
		return
	}
	attrs := n.names.attributes(n.attrs)
	names := Identify(attrs)
	v := shown{node: n, layout: n.layout, cluster: names.Cluster("", ""), name: names.Node(), runs: len(s.found)}
	if s.Cluster != nil && v.cluster != *s.Cluster {
		return
	}
	s.resource(&v, attrs, s.Attributes)
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
		f := s.familyOf(n, e)
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

// familyOf is the family of a node's series, or why it has none.
func (s *scrape) familyOf(n *node, e *entry) int32 {
	if e.metric == 0 {
		return noFamily
	}
	m := n.names.metrics[e.metric-1]
	if m.Type > TypeSum || e.kind() == KindHash {
		return opaqueFamily
	}
	f, known := s.byMetric[m]
	if !known {
		f = s.meet(&m.Metric)
		s.byMetric[m] = f
	}
	return f
}

// meet finds the family of a metric, or why it has none. Where metrics differ, gauges come
// before counters, and among either the first help by the alphabet.
func (s *scrape) meet(m *Metric) int32 {
	kind, otlp := promtext.Gauge, promtext.KindGauge
	switch {
	case m.Type == TypeSum && m.Monotonic:
		kind, otlp = promtext.Counter, promtext.KindCounter
	case m.Type == TypeSum:
		otlp = promtext.KindNonMonotonic
	}
	name := promtext.MetricName(m.Name, m.Unit, otlp)
	if s.Reserved != "" && strings.HasPrefix(name, s.Reserved) || s.DCGM && strings.HasPrefix(name, dcgmnames.Prefix) {
		return reservedFamily
	}
	help := helpOf(m)
	f, known := s.byName[name]
	if !known {
		return s.add(family{name: name, help: help, kind: kind})
	}
	at := &s.families[f]
	at.mixed = at.mixed || kind != at.kind
	if !at.own && cmp.Or(cmp.Compare(kind, at.kind), strings.Compare(help, at.help)) < 0 {
		at.kind, at.help = kind, help
	}
	return f
}

func (s *scrape) add(f family) int32 {
	at := int32(len(s.families))
	s.families, s.byName[f.name] = append(s.families, f), at
	return at
}

// helpOf is the explanation of a metric's series.
func helpOf(m *Metric) string {
	help := cmp.Or(m.Description, "The OpenTelemetry metric "+m.Name+".")
	if len(help) <= maxHelp {
		return help
	}
	end := maxHelp
	for end > maxHelp-utf8.UTFMax && !utf8.RuneStart(help[end]) {
		end--
	}
	return help[:end]
}

func (s *scrape) hide(cluster string, why Hidden, count int) {
	counts := s.exposed.Hidden[cluster]
	if counts == nil {
		counts = new([hiddenReasons]int)
		s.exposed.Hidden[cluster] = counts
	}
	counts[why] += count
}

// order sorts the nodes, and the runs by family. It returns the families by name.
func (s *scrape) order() []int32 {
	slices.SortFunc(s.nodes, func(a, b shown) int {
		return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.name, b.name), bytes.Compare(a.own(), b.own()),
			bytes.Compare(a.text, b.text), cmp.Compare(a.key.Hi, b.key.Hi), cmp.Compare(a.key.Lo, b.key.Lo))
	})
	s.starts = make([]int, len(s.families)+1)
	for i := range s.found {
		s.starts[s.found[i].family+1]++
	}
	sorted := make([]int32, len(s.families))
	for f := range sorted {
		sorted[f] = int32(f)
		s.starts[f+1] += s.starts[f]
	}
	slices.SortFunc(sorted, func(a, b int32) int { return strings.Compare(s.families[a].name, s.families[b].name) })
	next := slices.Clone(s.starts)
	s.runs = make([]run, len(s.found))
	for i := range s.nodes {
		v := &s.nodes[i]
		if i > 0 {
			before := &s.nodes[i-1]
			if v.group = before.group; !bytes.Equal(v.own(), before.own()) {
				v.group++
			}
		}
		for _, r := range s.found[v.runs:v.end] {
			s.runs[next[r.family]] = run{int32(i), r.from, r.to}
			next[r.family]++
		}
	}
	s.found = nil
	s.exposed.Nodes = len(s.nodes)
	return sorted
}

// family writes one family.
func (s *scrape) family(f int32) error {
	fam, header, before := &s.families[f], len(s.buf), s.exposed.Series
	base, _ := promtext.CounterBase(fam.name)
	_, taken := s.byName[base]
	s.buf = promtext.AppendFamily(s.buf, fam.name, fam.help, fam.kind, s.OpenMetrics, !taken)
	s.begin()
	group := int32(-1)
	for v, runs := range s.nodesOf(f) {
		if v.group != group {
			group = v.group
			if err := s.end(before); err != nil {
				return err
			}
		}
		s.render(f, v, runs)
	}
	if err := s.end(before); err != nil {
		return err
	}
	if s.endFamily(header, before); fam.mixed && s.exposed.Series > before {
		s.exposed.Conflicts++
	}
	return nil
}

// nodesOf yields the nodes that have a family, with their runs of it.
func (s *scrape) nodesOf(f int32) iter.Seq2[*shown, []run] {
	return func(yield func(*shown, []run) bool) {
		for runs := s.runs[s.starts[f]:s.starts[f+1]]; len(runs) > 0; {
			n := 1
			for n < len(runs) && runs[n].node == runs[0].node {
				n++
			}
			if !yield(&s.nodes[runs[0].node], runs[:n]) {
				return
			}
			runs = runs[n:]
		}
	}
}

// flush writes the text once it is long.
func (s *scrape) flush() error {
	if len(s.buf) < flushText {
		return nil
	}
	_, err := s.to.Write(s.buf)
	s.buf = s.buf[:0]
	return err
}

// endFamily takes the header back where no series followed.
func (s *scrape) endFamily(header, before int) {
	if s.exposed.Series == before {
		s.buf = s.buf[:header]
	} else {
		s.exposed.Families++
	}
}
