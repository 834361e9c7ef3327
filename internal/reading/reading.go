// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Subject is what a point is about.
type Subject uint8

// The subjects. A MIG slice is a GPU with a parent: no entry asks for one alone.
const (
	Node Subject = iota
	GPU
	Slice
	Network
	// Rank is a process of a training job. It may name its GPU by hw.id.
	Rank
	// Group is a peer group or a cluster.
	Group
	// Other is hardware that is not read, such as a power supply.
	Other
)

// hardware are the values of hw.type by subject, empty where there is none.
var hardware = [...]string{GPU: "gpu", Slice: "gpu", Network: "network", Rank: "gpu", Other: ""}

// Kind is the instrument that a metric is written by.
type Kind uint8

// The instruments.
const (
	Gauge Kind = iota
	Counter
	UpDownCounter
)

// String names the instrument as docs do.
func (k Kind) String() string { return [...]string{"gauge", "counter", "up-down counter"}[k] }

// Fold is how several values become one.
type Fold uint8

// The folds. FoldNone is for what is never folded.
const (
	FoldNone Fold = iota
	FoldLast
	FoldMean
	FoldSum
	// FoldWorst takes the highest value, or the lowest of a metric that is Low.
	FoldWorst
)

// Folding is how values of a metric become one, and why so.
type Folding struct {
	// Subjects folds those of a node: its GPUs, its ranks.
	Subjects Fold
	// Points folds those of one subject between two evaluations.
	Points Fold
	Why    string
}

// Purpose is a set of readers.
type Purpose uint8

// The readers.
const (
	Score   Purpose = 1 << iota // the node score, on the agent
	View                        // the fleet view, and why a node is slow
	Verdict                     // the gateway's comparison of nodes
	Ingero                      // the same of Ingero's agents, where the configuration asks for it
	Ranks                       // the gateway's comparison of ranks
)

// String lists the readers.
func (p Purpose) String() string {
	var names []string
	for i, name := range [...]string{"score", "view", "verdict", "verdict on Ingero's agents", "ranks"} {
		if p&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// Range is from the least to the greatest value that can be true.
type Range struct{ Min, Max float64 }

// String is the range as text.
func (r Range) String() string { return number(r.Min) + " to " + number(r.Max) }

// Holds is false for NaN.
func (r Range) Holds(v float64) bool { return v >= r.Min && v <= r.Max }

// Key is an attribute that selects the field of a point.
type Key struct {
	Name string
	// Alias is an older name of the attribute.
	Alias string
	// Absent is the value that a point without the attribute stands for.
	Absent string
}

// maxKeys bounds Metric.Keys.
const maxKeys = 3

// Any as a value of an Entry stands for all others.
const Any = "*"

// Entry is one field of a metric, by the values of its keys.
type Entry struct {
	Field   Field
	Subject Subject
	Values  [maxKeys]string
	// Full: the nvml receiver records it with `detail: full` alone.
	Full bool
}

// Metric is one metric of the catalogue.
type Metric struct {
	Name, Unit string
	Kind       Kind
	Integer    bool
	About      string // its description where the product writes it, of GPUs without nvml
	Range      Range
	Low        bool // the lower, the worse
	// Shared metrics are those of the hardware conventions for all sorts of
	// hardware: points of another hw.type are not ours, and no mistake.
	Shared bool
	// Typed metrics have hw.type in each point, as the conventions require: without
	// it a power supply would pass for a GPU.
	Typed bool
	// Gateway metrics are of nodes, and a gateway writes them. They are no sign of
	// life of the node itself.
	Gateway bool
	Keys    []Key
	Entries []Entry
	Fold    Folding
	For     Purpose
	// Unread is what a metric is for that no reader of ours asks for.
	Unread string

	index int
	main  Subject
	// hardware metrics are of those that the vendors' blanks come from.
	hardware bool
	// hwType is that of the main subject.
	hwType string
	// mixed is set where the entries are about several subjects.
	mixed bool
	// needs is set where a point of the main subject means nothing without the first key.
	needs bool
	// values are those of a lone key, absent is its own, and rest is the field of any other.
	values []string
	absent string
	rest   Field
}

// Subject is what points without an entry of their own are about.
func (m *Metric) Subject() Subject { return m.main }

// Texts are the values of a metric's keys in a point, empty where there is none.
type Texts [maxKeys]string

// Select returns the field of a point, None where the catalogue has no entry for
// it. Hardware without an entry of its own is Other.
func (m *Metric) Select(hwType string, texts *Texts) (Field, Subject) {
	main := m.main
	if hwType != "" && hwType != m.hwType && m.hwType != "" {
		main = Other
		if !m.mixed {
			return None, Other
		}
	}
	if len(m.Keys) <= 1 {
		got := texts[0]
		if got == "" {
			got = m.absent
		}
		if i := slices.Index(m.values, got); i >= 0 {
			return m.Entries[i].Field, main
		}
		return m.rest, main
	}
	for i := range m.Entries {
		if e := &m.Entries[i]; (!m.mixed || hardware[e.Subject] == hwType) && m.matches(e, texts) {
			return e.Field, e.Subject
		}
	}
	return None, main
}

func (m *Metric) matches(e *Entry, texts *Texts) bool {
	for k := range m.Keys {
		want := e.Values[k]
		if want == Any || want == texts[k] {
			continue
		}
		if texts[k] != "" || want != m.Keys[k].Absent {
			return false
		}
	}
	return true
}

// ByName returns a metric of the catalogue, nil for a foreign one.
func ByName(name string) *Metric { return names[name] }

// OfGateway reports whether a name, text or bytes of a message, is that of a Gateway metric.
func OfGateway[T string | []byte](name T) bool {
	m := names[string(name)]
	return m != nil && m.Gateway
}

// Of returns the metric of a field, and its entry for the field.
func Of(f Field) (*Metric, *Entry) {
	at := byField[f]
	return at.metric, at.entry
}

// Attributes returns what selects the points of a field.
func Attributes(f Field) map[string]string {
	m, e := Of(f)
	attrs := make(map[string]string, len(m.Keys))
	for k := range m.Keys {
		if v := e.Values[k]; v != "" && v != Any {
			attrs[m.Keys[k].Name] = v
		}
	}
	return attrs
}

// Find returns the field of a metric with exactly these attributes, None
// where there is none.
func Find(metric string, attrs map[string]string) Field {
	m := ByName(metric)
	if m == nil {
		return None
	}
	for i := range m.Entries {
		if m.selects(&m.Entries[i], attrs) {
			return m.Entries[i].Field
		}
	}
	return None
}

func (m *Metric) selects(e *Entry, attrs map[string]string) bool {
	left := len(attrs)
	if t, ok := attrs[gpusemconv.AttrHWType]; ok {
		if t != hardware[e.Subject] {
			return false
		}
		left--
	}
	for k := range m.Keys {
		v, ok := attrs[m.Keys[k].Name]
		if ok {
			left--
		}
		if want := e.Values[k]; want != Any && v != want && (ok || m.Keys[k].Absent != want) || want == Any && ok {
			return false
		}
	}
	return left == 0
}

// All returns the catalogue, sorted by name. It must not be changed.
func All() []Metric { return catalogue }

type metricEntry struct {
	metric *Metric
	entry  *Entry
}

var names, byField = index()

func index() (map[string]*Metric, [NumFields]metricEntry) {
	names := make(map[string]*Metric, len(catalogue))
	var fields [NumFields]metricEntry
	for i := range catalogue {
		m := &catalogue[i]
		m.index = i
		names[m.Name] = m
		m.hardware = strings.HasPrefix(m.Name, "hw.")
		if len(m.Entries) > 0 {
			m.main = m.Entries[0].Subject
			m.hwType = hardware[m.main]
		}
		if len(m.Keys) > 0 {
			m.absent = m.Keys[0].Absent
		}
		m.needs = m.Typed && m.For != 0 && len(m.Keys) > 0 && m.absent == ""
		for j := range m.Entries {
			m.mixed = m.mixed || m.Entries[j].Subject != m.main
			if v := m.Entries[j].Values[0]; v == Any || len(m.Keys) == 0 {
				m.rest = m.Entries[j].Field
			} else {
				m.values = append(m.values, v)
			}
			if at := &fields[m.Entries[j].Field]; m.Entries[j].Field != None && at.metric == nil {
				*at = metricEntry{m, &m.Entries[j]}
			}
		}
	}
	for f := None + 1; f < NumFields; f++ {
		if fields[f].metric == nil {
			panic(fmt.Sprintf("internal/reading/catalogue.go: constant %d of Field stands in no row: name it in the Entries of its metric", f))
		}
	}
	return names, fields
}
