// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// absent are the words of nvidia-smi, dcgmi and shells for a value that is not there, beside
// those in brackets and DCGM's in angle brackets.
var absent = map[string]bool{
	"-": true, "n/a": true, "err!": true, "not supported": true, "unknown error": true,
	"insufficient permissions": true, "gpu requires reset": true,
}

// clean is a cell's text, empty where the text stands for no value.
func clean(text string) string {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]") || strings.HasPrefix(text, "<<<") || absent[strings.ToLower(text)] {
		return ""
	}
	return text
}

// words are nvidia-smi's for flags.
var words = map[string]float64{"active": 1, "not active": 0, "yes": 1, "no": 0, "enabled": 1, "disabled": 0}

// units are texts for units by UCUM's, of those that differ. MB and its like may be of 1000
// or of 1024, and are not taken.
var units = map[string]string{"C": "Cel", "°C": "Cel", "F": "[degF]", "°F": "[degF]", "B": "By", "bytes": "By", "sec": "s"}

func ucum(unit string) string { return cmp.Or(units[unit], unit) }

// bare cuts the unit off that nvidia-smi puts in brackets behind a column's name.
func bare(header string) (name, unit string) {
	if i := strings.LastIndex(header, " ["); i > 0 && strings.HasSuffix(header, "]") {
		return strings.TrimSpace(header[:i]), ucum(header[i+2 : len(header)-1])
	}
	return header, ""
}

// source is a column that has values of a measure.
type source struct {
	at     int
	column string
	unit   string  // that its header names
	scale  float64 // of a number without a unit of its own
}

// bind fits a source to its measure. Where the header has a unit, the scale is not used.
func (m *measure) bind(at int, header string) (source, error) {
	s := source{at: at, column: header, scale: m.Scale}
	if _, s.unit = bare(header); s.unit == "" || m.Value != nil {
		return s, nil
	}
	if m.known == nil && m.Unit == "" && m.Scale == 1 {
		m.Unit = s.unit
	}
	if factor, ok := m.convert(s.unit); ok {
		s.scale = factor
	} else if m.known != nil || m.Unit != "" && m.Scale == 1 {
		return s, fmt.Errorf("column %q is in %s, which cannot be converted to %s of metric %s", header, s.unit, m.Unit, m.Name)
	}
	return s, nil
}

// convert returns what takes a number in a unit to the measure's.
func (m *measure) convert(unit string) (float64, bool) {
	if m.known == nil {
		return reading.Convert(unit, m.Unit)
	}
	factor, ok := m.known.Factor(unit)
	return factor / m.factor, ok
}

// parse reads a cell: a number, with its unit or without, or a flag's word. It is NaN where
// there is a reason, and without one for a vendor's blank.
func (m *measure) parse(text string, from *source) (float64, reason) {
	if m.Value != nil {
		return *m.Value, ""
	}
	sent, word := words[strings.ToLower(text)]
	scale, err := from.scale, error(nil)
	if !word {
		sent, err = strconv.ParseFloat(text, 64)
	}
	if err != nil && sent == 0 {
		number := strings.TrimRight(text, "°%/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
		unit := ucum(text[len(number):])
		if sent, err = strconv.ParseFloat(strings.TrimSpace(number), 64); err == nil && unit != from.unit {
			var known bool
			if scale, known = m.convert(unit); !known {
				return math.NaN(), otherUnit
			}
		}
	}
	switch v := sent * scale; {
	case reading.Blank(sent):
		return math.NaN(), ""
	case math.IsNaN(v) || math.IsInf(v, 0):
		return math.NaN(), notFinite
	case err != nil:
		return math.NaN(), badNumber
	case v < 0 && m.kind == reading.Counter, m.known != nil && m.known.Judge(sent, scale*m.factor) != reading.Accepted:
		return math.NaN(), outOfRange
	default:
		return v, ""
	}
}
