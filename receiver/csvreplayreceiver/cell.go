// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// decoded decodes UTF-16, which Windows' shells write, and takes a byte order mark off. The
// header of a recording begins with a letter: its zero byte tells UTF-16 without a mark.
func decoded(in io.Reader) io.Reader {
	buffered := bufio.NewReader(in)
	var other transform.Transformer = encoding.Nop.NewDecoder()
	if start, _ := buffered.Peek(2); len(start) == 2 && start[0] == 0 {
		other = unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM).NewDecoder()
	} else if len(start) == 2 && start[1] == 0 {
		other = unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM).NewDecoder()
	}
	return transform.NewReader(buffered, unicode.BOMOverride(other))
}

// absent are the words of nvidia-smi, dcgmi and shells for a value that is not there, beside
// those in brackets and DCGM's in angle brackets.
var absent = map[string]bool{
	"-": true, "n/a": true, "err!": true, "not supported": true, "unknown error": true,
	"insufficient permissions": true, "gpu requires reset": true,
}

// clean is a cell's text, empty where it says that there is no value.
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

func ucum(unit string) string {
	if u, ok := units[unit]; ok {
		return u
	}
	return unit
}

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

// bind fits a source to its measure. A unit says all that a scale could.
func (m *measure) bind(at int, header string) (source, error) {
	s := source{at: at, column: header, scale: m.Scale}
	if _, s.unit = bare(header); s.unit == "" || m.Value != nil {
		return s, nil
	}
	if m.known == nil && m.Unit == "" && m.Scale == 1 {
		m.Unit = s.unit
	}
	factor, ok := m.convert(s.unit)
	switch {
	case !ok && m.known == nil && (m.Unit == "" || m.Scale != 1):
		return s, nil // only the scale knows
	case !ok:
		return s, fmt.Errorf("column %q is in %s, which cannot be converted to %s of metric %s", header, s.unit, m.Unit, m.Name)
	case m.Scale != 1 && !alike(factor, m.Scale):
		return s, fmt.Errorf("column %q needs a `scale` of %v by its unit, and has %v: leave `scale` out", header, factor, m.Scale)
	}
	s.scale = factor
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

func alike(x, y float64) bool { return math.Abs(x-y) <= 1e-6*math.Abs(y) }

// parse reads a cell: a number, with its unit or without, or a flag's word. It is NaN where
// there is a reason, and without one for a vendor's blank.
func (m *measure) parse(text string, from *source) (float64, reason, string) {
	if m.Value != nil {
		return *m.Value, "", ""
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
			factor, ok := m.convert(unit)
			if !ok || from.unit == "" && m.Scale != 1 && !alike(factor, m.Scale) {
				return math.NaN(), otherUnit, fmt.Sprintf("column %q is %s: it must be in %s, or in a unit that can be converted to that", from.column, quote(text), cmp.Or(m.Unit, "the metric's `unit`"))
			}
			scale = factor
		}
	}
	var why reason
	switch v := sent * scale; {
	case reading.Blank(sent):
		return math.NaN(), "", ""
	case math.IsNaN(v) || math.IsInf(v, 0):
		why = notFinite
	case err != nil:
		why = badNumber
	case v < 0 && m.kind == reading.Counter, m.known != nil && m.known.Judge(sent, scale*m.factor) != reading.Accepted:
		why = outOfRange
	default:
		return v, "", ""
	}
	return math.NaN(), why, fmt.Sprintf("column %q is %s", from.column, quote(text))
}
