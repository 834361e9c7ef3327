// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"math"
	"strconv"
	"time"
)

// maxTime keeps the difference of any two times within a time.Duration; as
// Unix time it ends in 2116.
const maxTime = time.Duration(1) << 62

// calendarLayouts are tried in this order; Go accepts a fraction after the
// seconds in all of them. A time without a zone is UTC.
var calendarLayouts = []string{
	time.RFC3339,
	"2006-01-02 15:04:05",
	"2006-01-02T15:04:05",
	"2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05 Z07:00",
	"2006-01-02 15:04:05 MST",
}

// parseNumber reads a decimal number; hexadecimal and underscores, which
// strconv knows, are no numbers in a CSV file.
func parseNumber(b []byte) (float64, Reason) {
	for _, c := range b {
		if c == '_' || c == 'x' || c == 'X' || c == 'p' || c == 'P' {
			return 0, BadNumber
		}
	}
	v, err := strconv.ParseFloat(string(b), 64)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return 0, NotFinite
	case err != nil:
		return 0, BadNumber
	}
	return v, reasonNone
}

// TimeSpec says how to read the time column.
type TimeSpec struct {
	// Column is the name of the column.
	Column string
	// Unit is what a number in the column counts: a power of ten of
	// nanoseconds. Zero with an empty Layout: told from the form and size.
	Unit time.Duration
	// Layout is a layout of Go's time package; a time without a zone is UTC.
	Layout string
}

// timeParser parses times and remembers the last one, as the rows of a step
// mostly repeat it.
type timeParser struct {
	spec    TimeSpec
	last    []byte
	lastAt  time.Duration
	hasLast bool
}

func (p *timeParser) parse(b []byte) (time.Duration, bool) {
	if p.hasLast && bytes.Equal(b, p.last) {
		return p.lastAt, true
	}
	at, ok := p.spec.parse(bytes.TrimSpace(b))
	if !ok || at >= maxTime || at <= -maxTime {
		return 0, false
	}
	p.last, p.lastAt, p.hasLast = append(p.last[:0], b...), at, true
	return at, true
}

func (s *TimeSpec) parse(b []byte) (time.Duration, bool) {
	switch {
	case len(b) == 0:
		return 0, false
	case s.Layout != "":
		return parseCalendar(string(b), s.Layout)
	case s.Unit > 0:
		return parseDecimal(b, s.Unit)
	}
	if isDecimal(b) {
		return parseDecimal(b, unitBySize(b))
	}
	for _, layout := range calendarLayouts {
		if at, ok := parseCalendar(string(b), layout); ok {
			return at, true
		}
	}
	return 0, false
}

func parseCalendar(s, layout string) (time.Duration, bool) {
	t, err := time.Parse(layout, s)
	// Outside these years UnixNano has no defined result.
	if err != nil || t.Year() < 1830 || t.Year() > 2110 {
		return 0, false
	}
	return time.Duration(t.UnixNano()), true
}

func isDecimal(b []byte) bool {
	if b[0] == '-' || b[0] == '+' {
		b = b[1:]
	}
	digits := 0
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9':
			digits++
		case c == '.':
		case (c == 'e' || c == 'E') && digits > 0:
			_, err := strconv.ParseInt(string(b[i+1:]), 10, 16)
			return err == nil
		default:
			return false
		}
	}
	return digits > 0
}

// unitBySize tells seconds, milliseconds, microseconds and nanoseconds apart
// by size: 1e11 s is the year 5138, 1e11 ms is 1973.
func unitBySize(b []byte) time.Duration {
	v, _ := strconv.ParseFloat(string(b), 64)
	switch v = math.Abs(v); {
	case v < 1e11:
		return time.Second
	case v < 1e14:
		return time.Millisecond
	case v < 1e17:
		return time.Microsecond
	default:
		return time.Nanosecond
	}
}

// parseDecimal reads a decimal number of units exactly: a float64 holds Unix
// time only to about 0.2 us, and equal times must stay equal.
func parseDecimal(b []byte, unit time.Duration) (time.Duration, bool) {
	text := b
	negative := false
	if b[0] == '-' || b[0] == '+' {
		negative = b[0] == '-'
		b = b[1:]
	}
	var at time.Duration
	digits := 0
	for ; len(b) > 0 && b[0] >= '0' && b[0] <= '9'; b = b[1:] {
		if at > maxTime/10 {
			return 0, false
		}
		at = at*10 + time.Duration(b[0]-'0')
		digits++
	}
	if at > maxTime/unit {
		return 0, false
	}
	at *= unit
	if len(b) > 0 && b[0] == '.' {
		scale := unit
		for b = b[1:]; len(b) > 0 && b[0] >= '0' && b[0] <= '9'; b = b[1:] {
			scale /= 10
			at += time.Duration(b[0]-'0') * scale
			digits++
		}
	}
	if len(b) > 0 && digits > 0 && (b[0] == 'e' || b[0] == 'E') {
		v, reason := parseNumber(text)
		v *= float64(unit)
		if reason != reasonNone || math.Abs(v) >= float64(maxTime) {
			return 0, false
		}
		return time.Duration(v), true
	}
	if len(b) > 0 || digits == 0 {
		return 0, false
	}
	if negative {
		at = -at
	}
	return at, true
}
