// SPDX-License-Identifier: Apache-2.0

package statetable // import "github.com/gpu-collector/gpu-collector/internal/delta/statetable"

import (
	"bytes"
	"cmp"
	"io"
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

// Exposition says how tables are written as text for Prometheus.
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

// TableAt is a table and its time.
type TableAt struct {
	Table *Table
	Now   time.Duration
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

var hiddenNames = [hiddenReasons]string{"duplicate", "too_long", "histogram", "unnamed", "reserved_name", "resource_label"}

func (h Hidden) String() string { return hiddenNames[h] }

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

// Write writes the tables as one text, families by name, and in a family the nodes by
// cluster and name. A node's lock is held while its series of one family are
// rendered, and none while the text is written.
func (x *Exposition) Write(w io.Writer, tables ...TableAt) (Exposed, error) {
	s := &scrape{Exposition: x, to: w, names: map[string]labelName{}}
	s.cluster = s.labelName([]byte(identity.Cluster))
	s.exposed.Hidden = map[string]*[hiddenReasons]int{}
	s.name(tables)
	for i := range s.sources {
		s.collect(i)
	}
	s.order()
	for f := range s.families {
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
// metric, and some 300 for a node.
type scrape struct {
	*Exposition
	to       io.Writer
	exposed  Exposed
	sources  []source
	families []family
	beat     int32 // the heartbeat's family
	info     int32 // infoMetric's, or noFamily
	nodes    []shown
	runs     []run16
	starts   []int // of each family in runs

	text   []byte  // of the nodes' labels
	labels []label // likewise; its text is in text
	found  []found // runs before they are ordered
	attrs  []Attr
	names  map[string]labelName

	buf   []byte
	group int // in buf, where the lines of one group of nodes begin
	lines []line
	dead  int            // of lines
	seen  map[uint64]int // of lines, by hash
	own   []string

	cluster labelName // of the label that only a resource has
}

// source is one of the tables. Its metrics, pairs and sets are by number-1.
type source struct {
	*Table
	now      time.Duration
	tick     uint16
	releases uint32 // of the dictionary, when what follows was true
	metrics  []Metric
	families []int32
	pairs    []pairText
	sets     []string
}

// The values of source.families for metrics without a family.
const (
	noFamily       = -1
	opaqueFamily   = -2
	reservedFamily = -3
)

type family struct {
	name string
	// kind is Unknown where its metrics are gauges and counters, and help is disputed where
	// they explain it differently: no cluster says what the series of others mean.
	kind promtext.Type
	help string
}

// disputed is the explanation of a name that not all metrics explain alike.
const disputed = "Its senders describe this metric differently."

// shown is a node that is written.
type shown struct {
	*node
	source        int
	layout        uint32
	cluster, name string
	beat          uint64
	group         int32  // of nodes whose series may have the same labels
	from, to      int    // in scrape.text
	named, apart  int    // where its names end in scrape.text, and what sets its group apart
	first, last   int    // in scrape.labels
	rest          int    // there, after its names
	runs, end     int    // in scrape.found
	bits, hash    uint64 // of its names
	more, sum     uint64 // likewise of the rest
}

type found struct {
	family   int32
	from, to uint16
}

// run16 is series from..to of a node. It is empty for series that the table adds.
type run16 struct {
	node     int32
	from, to uint16
}

// labelName is a label's name, and one of 64 bits that tells most names apart.
type labelName struct {
	name string
	bit  uint64
}

// pairText is a shared attribute as text.
type pairText struct {
	labelName
	text string
	hash uint64
}

type label struct {
	labelName
	end  int // in scrape.text
	hash uint64
}

// line is a rendered series of the group at hand.
type line struct {
	hash     uint64
	from, to int
	age      time.Duration
	time     uint32
	dead     bool
}

// name finds the families of all metrics that the tables have.
func (s *scrape) name(tables []TableAt) {
	type member struct {
		name, help     string
		source, metric int
		kind           promtext.Type
	}
	heartbeat := promtext.MetricName(gpusemconv.MetricNodeHeartbeat, "s", promtext.KindGauge)
	all := []member{{name: heartbeat, help: "Time of the node's last report.", source: -1, kind: promtext.Gauge}}
	if len(s.Attributes) > 0 {
		all = append(all, member{name: infoMetric, help: "What the node's resource says of it.", source: -1, kind: promtext.Gauge})
	}
	for i, t := range tables {
		src := source{Table: t.Table, now: t.Now, tick: uint16(t.Table.ticks(t.Now)) & heardMask}
		src.metrics, src.releases = t.Table.dict.snapshot()
		src.families = make([]int32, len(src.metrics))
		for id := range src.metrics {
			m := &src.metrics[id]
			src.families[id] = noFamily
			kind, otlp := promtext.Gauge, promtext.KindGauge
			switch {
			case m.Type > TypeSum:
				src.families[id] = opaqueFamily
				continue
			case m.Type == TypeSum && m.Monotonic:
				kind, otlp = promtext.Counter, promtext.KindCounter
			case m.Type == TypeSum:
				otlp = promtext.KindNonMonotonic
			}
			name := promtext.MetricName(m.Name, m.Unit, otlp)
			if s.Reserved != "" && strings.HasPrefix(name, s.Reserved) || s.DCGM && strings.HasPrefix(name, dcgmnames.Prefix) {
				src.families[id] = reservedFamily
				continue
			}
			all = append(all, member{name, helpOf(m), i, id, kind})
		}
		s.sources = append(s.sources, src)
	}
	slices.SortFunc(all, func(a, b member) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(min(a.source, 0), min(b.source, 0)))
	})
	s.info = noFamily
	own := false // the family at hand is the table's, whose explanation stands
	for i := range all {
		m := &all[i]
		if i == 0 || m.name != all[i-1].name {
			s.families, own = append(s.families, family{m.name, m.kind, m.help}), m.source < 0
		}
		f := int32(len(s.families) - 1)
		at := &s.families[f]
		if m.kind != at.kind {
			at.kind = promtext.Unknown
		}
		if m.help != at.help && !own {
			at.help = disputed
		}
		switch {
		case m.source >= 0:
			s.sources[m.source].families[m.metric] = f
		case m.name == infoMetric:
			s.info = f
		default:
			s.beat = f
		}
	}
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

// snapshot copies the metrics by number-1.
func (d *dictionary) snapshot() ([]Metric, uint32) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	out := make([]Metric, len(d.metrics.slots))
	for i := range out {
		out[i] = d.metrics.slots[i].name
	}
	return out, d.releases.Load()
}

// order sorts the nodes, and the runs by family.
func (s *scrape) order() {
	text := func(v *shown) []byte { return s.text[v.from:v.to] }
	own := func(v *shown) []byte { return s.text[v.from:v.apart] }
	slices.SortFunc(s.nodes, func(a, b shown) int {
		return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.name, b.name), bytes.Compare(own(&a), own(&b)), bytes.Compare(text(&a), text(&b)),
			cmp.Compare(a.source, b.source), cmp.Compare(a.key.Hi, b.key.Hi), cmp.Compare(a.key.Lo, b.key.Lo))
	})
	s.starts = make([]int, len(s.families)+1)
	for i := range s.found {
		s.starts[s.found[i].family]++
	}
	for f, sum := 0, 0; f < len(s.starts); f++ {
		s.starts[f], sum = sum, sum+s.starts[f]
	}
	next := slices.Clone(s.starts)
	s.runs = make([]run16, len(s.found))
	for i := range s.nodes {
		v := &s.nodes[i]
		if i > 0 {
			before := &s.nodes[i-1]
			if v.group = before.group; !bytes.Equal(own(v), own(before)) {
				v.group++
			}
		}
		for _, r := range s.found[v.runs:v.end] {
			s.runs[next[r.family]] = run16{int32(i), r.from, r.to}
			next[r.family]++
		}
	}
	s.found = nil
	s.exposed.Nodes = len(s.nodes)
}

// family writes one family.
func (s *scrape) family(f int) error {
	runs := s.runs[s.starts[f]:s.starts[f+1]]
	if len(runs) == 0 {
		return nil
	}
	fam, header, before := &s.families[f], len(s.buf), s.exposed.Series
	base, _ := promtext.CounterBase(fam.name)
	_, taken := slices.BinarySearchFunc(s.families, base, func(g family, name string) int { return strings.Compare(g.name, name) })
	if fam.kind == promtext.Unknown {
		s.exposed.Conflicts++
	}
	s.buf = promtext.AppendFamily(s.buf, fam.name, fam.help, fam.kind, s.OpenMetrics, !taken)
	for len(runs) > 0 {
		s.begin()
		for group := s.nodes[runs[0].node].group; len(runs) > 0 && s.nodes[runs[0].node].group == group; {
			n := 1
			for n < len(runs) && runs[n].node == runs[0].node {
				n++
			}
			s.render(int32(f), &s.nodes[runs[0].node], runs[:n])
			runs = runs[n:]
		}
		s.end()
		if s.exposed.Series > before {
			if err := s.flush(); err != nil {
				return err
			}
		}
	}
	s.endFamily(header, before)
	return nil
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
