// SPDX-License-Identifier: Apache-2.0

// Package promtext writes series as Prometheus' text format and OpenMetrics have
// them, under the names that Prometheus gives to metrics and attributes of OTLP.
// Whatever the names and values are, the text stays well-formed.
package promtext // import "github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/otlptranslator"
)

// Kind is the kind of an OTLP metric.
type Kind = otlptranslator.MetricType

// The kinds that have one number a point.
const (
	KindGauge        Kind = otlptranslator.MetricTypeGauge
	KindCounter      Kind = otlptranslator.MetricTypeMonotonicCounter
	KindNonMonotonic Kind = otlptranslator.MetricTypeNonMonotonicCounter
)

const totalSuffix = "_total"

var (
	metricNamer = otlptranslator.MetricNamer{WithMetricSuffixes: true}
	// As the prometheus exporter of the Collector has it by default.
	labelNamer = otlptranslator.LabelNamer{PreserveMultipleUnderscores: true}
)

// MetricName is the name of a metric's series. It differs from other translators' in
// two things: a metric whose name has nothing that may stand in one still has a name,
// and no gauge's ends like a part of a histogram (promlint).
func MetricName(name, unit string, kind Kind) string {
	out, err := metricNamer.Build(otlptranslator.Metric{Name: name, Unit: unit, Type: kind})
	if err != nil {
		out = "metric_" + hexOf(name)
	}
	if kind != KindCounter {
		for _, part := range [...]string{"_count", "_sum", "_bucket"} {
			if strings.HasSuffix(out, part) {
				return out + "_value"
			}
		}
	}
	return out
}

// LabelName is the name of an attribute's label.
func LabelName(key string) string {
	name, err := labelNamer.Build(key)
	switch {
	case err != nil:
		return "key_" + hexOf(key)
	case strings.HasPrefix(name, "__"): // Prometheus' own
		return "key" + name
	}
	return name
}

func hexOf(s string) string { return fmt.Sprintf("%016x", xxhash.Sum64String(s)) }

// CounterBase is the name of a counter's family in OpenMetrics, and false for a name
// that no counter may have there.
func CounterBase(name string) (string, bool) {
	base, ok := strings.CutSuffix(name, totalSuffix)
	return base, ok && base != ""
}

// AppendFamily appends the lines before a family's series. In OpenMetrics a counter needs its
// name without the suffix, which free reports to be no other family's.
func AppendFamily(to []byte, name, help string, counter, openMetrics, free bool) []byte {
	kind := "gauge"
	if counter {
		kind = "counter"
	}
	if base, ok := CounterBase(name); counter && openMetrics {
		if kind = "unknown"; ok && free {
			kind, name = "counter", base
		}
	}
	if help != "" {
		to = append(append(append(to, "# HELP "...), name...), ' ')
		to = append(appendEscaped(to, help, openMetrics), '\n')
	}
	to = append(append(append(to, "# TYPE "...), name...), ' ')
	return append(append(to, kind...), '\n')
}

// AppendLabel appends `,name="value"`.
func AppendLabel[T string | []byte](to []byte, name string, value T) []byte {
	to = append(append(append(to, ','), name...), `="`...)
	return append(appendEscaped(to, value, true), '"')
}

// appendEscaped replaces what is not UTF-8, and bytes of zero, which parsers stop at.
func appendEscaped[T string | []byte](to []byte, text T, quotes bool) []byte {
	from := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c != '\\' && c != '\n' && c != '"' && c != 0 && c < utf8.RuneSelf {
			i++
			continue
		}
		size, instead := 1, ""
		switch {
		case c == '\\':
			instead = `\\`
		case c == '\n':
			instead = `\n`
		case c == '"' && quotes:
			instead = `\"`
		case c == 0:
			instead = string(utf8.RuneError)
		case c >= utf8.RuneSelf:
			var r rune
			if r, size = utf8.DecodeRuneInString(string(text[i:min(i+utf8.UTFMax, len(text))])); r == utf8.RuneError && size == 1 {
				instead = string(utf8.RuneError)
			}
		}
		if instead != "" {
			to = append(append(to, text[from:i]...), instead...)
			from = i + size
		}
		i += size
	}
	return append(to, text[from:]...)
}

// AppendFloat appends a value. Whole numbers are written as such, in a tenth of the time.
func AppendFloat(to []byte, v float64) []byte {
	const exact = 1 << 53
	switch {
	case v == math.Trunc(v) && math.Abs(v) < exact && (v != 0 || !math.Signbit(v)):
		return strconv.AppendInt(to, int64(v), 10)
	case math.IsInf(v, 1):
		return append(to, "+Inf"...)
	}
	return strconv.AppendFloat(to, v, 'g', -1, 64)
}

// AppendDouble appends the text of an attribute that is a number: as JSON has it, like
// OpenTelemetry's AsString.
func AppendDouble(to []byte, v float64) []byte {
	text, err := json.Marshal(v)
	if err != nil { // not a number of JSON's
		return AppendFloat(to, v)
	}
	return append(to, text...)
}
