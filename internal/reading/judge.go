// SPDX-License-Identifier: Apache-2.0

package reading

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Refusal is why a point is not used. Accepted points have none.
type Refusal uint8

// The refusals.
const (
	Accepted Refusal = iota
	// ValueRange is a number that cannot be true.
	ValueRange
	NotFinite
	WrongUnit
	WrongType
	// BadSubject is a point without a subject, or about one that the metric is not for.
	BadSubject
	NumRefusals
)

// String names the refusal as the components' counters do.
func (r Refusal) String() string {
	return [...]string{"", "value_range", "not_finite", "wrong_unit", "wrong_type", "subject"}[r]
}

// Instrument is the type of a metric in OTLP.
type Instrument uint8

// The instruments of OTLP.
const (
	IsOther Instrument = iota // a histogram, a summary, nothing at all
	IsGauge
	IsCounter
	IsUpDownCounter
	IsDelta // a sum with delta temporality
)

// Takes reports whether the metric may be written by an instrument. Of a gauge
// and an up-down counter the last value is what counts, so either may stand for
// the other.
func (m *Metric) Takes(i Instrument) bool {
	if m.Kind == Counter {
		return i == IsCounter
	}
	return i == IsGauge || i == IsUpDownCounter
}

// Blank reports whether a number, as it was sent, is one of those that stand for none.
// DCGM has 16 each from 0x7ffffff0, 0x7ffffffffffffff0 and 2^47 on (dcgm_structs.h), NVML
// all bits (NVML_VALUE_NOT_AVAILABLE). A float64 holds no neighbours of 2^63 and 2^64.
func Blank(sent float64) bool {
	switch {
	case sent < 1<<31-16:
		return false
	case sent < 1<<31, sent >= 1<<47 && sent < 1<<47+16:
		return sent == math.Trunc(sent)
	default:
		return sent == 1<<32-1 || sent == 1<<63 || sent == 1<<64
	}
}

// Judge takes a number as it was sent, and its factor to the metric's unit.
func (m *Metric) Judge(sent, factor float64) Refusal {
	switch v := sent * factor; {
	case m.Range.Holds(v) && !(m.hardware && Blank(sent)):
		return Accepted
	case math.IsNaN(v) || math.IsInf(v, 0):
		return NotFinite
	default:
		return ValueRange
	}
}

// Vague metrics are of all sorts of hardware, and their points need no hw.type: the
// hardware conventions ask for none of a temperature.
func (m *Metric) Vague() bool { return m.Shared && !m.Typed }

// JudgeSubject judges the hw.id, the hw.type and the keys of a point, empty where it has
// none. A point about hardware that is not read is no mistake.
func (m *Metric) JudgeSubject(s Subject, id, hwType string, texts *Texts) Refusal {
	switch s {
	case GPU, Slice, Network:
		if id == "" || m.Typed && (hwType == "" || m.needs && s != Network && texts[0] == "") {
			return BadSubject
		}
	case Other:
		if !m.Shared {
			return BadSubject
		}
	case Node, Rank, Group:
	}
	return Accepted
}

// Refused is a point, or a metric, that was not used.
type Refused struct {
	Metric *Metric
	Why    Refusal
	// Unit, ID, HWType and Value are what it had; Instrument is what it was.
	Unit, ID, HWType string
	Value            float64
	Instrument       Instrument
}

// most is how much of a sender's text a complaint repeats.
const most = 64

// String is what is wrong and what would be right.
func (r Refused) String() string {
	m := r.Metric
	switch r.Why {
	case WrongUnit:
		also := m.alternatives()
		if also != "" {
			also = " (or " + also + ")"
		}
		return fmt.Sprintf("metric %s has unit %q: must be %s%s", m.Name, r.Unit[:min(len(r.Unit), most)], m.unit(), also)
	case WrongType:
		return fmt.Sprintf("metric %s is %s: must be a %s%s", m.Name,
			[...]string{"neither a gauge nor a sum", "a gauge", "a counter", "an up-down counter", "a sum with delta temporality"}[r.Instrument],
			m.Kind, map[Kind]string{Counter: " with cumulative temporality"}[m.Kind])
	case BadSubject:
		want := hardware[m.Subject()]
		switch {
		case r.HWType != "" && r.HWType != want && !m.Shared:
			return fmt.Sprintf("metric %s has hw.type %q: must be %s", m.Name, r.HWType[:min(len(r.HWType), most)], want)
		case r.HWType == "" && m.Typed:
			with := ""
			if m.needs {
				with = fmt.Sprintf(", with %s %s", m.Keys[0].Name, m.choice())
			}
			return fmt.Sprintf("metric %s has no hw.type: must be %s for that of a GPU%s", m.Name, want, with)
		case r.ID != "":
			return fmt.Sprintf("metric %s has no %s: must be %s for that of a GPU", m.Name, m.Keys[0].Name, m.choice())
		default:
			return fmt.Sprintf("metric %s has no hw.id: must be the UUID of the GPU, or the name of the network adapter", m.Name)
		}
	case ValueRange, NotFinite:
		if m.Range.Holds(r.Value) {
			return fmt.Sprintf("metric %s is %s, which NVML and DCGM write where they have no value: such a point must be left out", m.Name, strconv.FormatFloat(r.Value, 'f', -1, 64))
		}
		unit := " " + m.unit()
		if m.unit() == "1" {
			unit = ""
		}
		return fmt.Sprintf("metric %s is %v: must be from %s%s", m.Name, r.Value, m.Range, unit)
	default:
		return ""
	}
}

// choice is what the first key of a point may be.
func (m *Metric) choice() string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(m.values))), " or ")
}

func (m *Metric) unit() string {
	if m.Unit == "" {
		return "1"
	}
	return m.Unit
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
