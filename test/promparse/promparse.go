// SPDX-License-Identifier: Apache-2.0

// Package promparse reads exposed metrics as Prometheus does: by its own parsers,
// those of its server and those of its libraries, which must agree.
package promparse

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// The content types of the formats.
const (
	Text        = "text/plain; version=0.0.4"
	OpenMetrics = "application/openmetrics-text; version=1.0.0"
)

// Exposed is a text, read: the value of each series by its name and labels in order,
// and the type of each family.
type Exposed struct {
	Series map[string]float64
	Types  map[string]string
}

// Parse reads a text of a content type. It fails where a parser does, where a series or
// a family comes twice, and where parsers do not agree.
func Parse(text []byte, contentType string) (*Exposed, error) {
	e := &Exposed{map[string]float64{}, map[string]string{}}
	symbols := labels.NewSymbolTable()
	parser, err := textparse.New(text, contentType, symbols, textparse.ParserOptions{})
	if err != nil {
		return nil, err
	}
	for {
		entry, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		switch entry {
		case textparse.EntryType:
			name, kind := parser.Type()
			if _, twice := e.Types[string(name)]; twice {
				return nil, fmt.Errorf("the family %s is there twice", name)
			}
			e.Types[string(name)] = string(kind)
		case textparse.EntrySeries:
			var l labels.Labels
			parser.Labels(&l)
			_, _, v := parser.Series()
			if name, twice := l.HasDuplicateLabelNames(); twice {
				return nil, fmt.Errorf("%s has the label %s twice", l, name)
			}
			l = labels.NewBuilder(l).Labels() // an empty label is none
			if _, twice := e.Series[l.String()]; twice {
				return nil, fmt.Errorf("%s is there twice", l)
			}
			e.Series[l.String()] = v
		}
	}
	if contentType != Text {
		return e, nil
	}
	return e, e.compare(text)
}

// compare reads the text as the libraries do.
func (e *Exposed) compare(text []byte) error {
	other := expfmt.NewTextParser(model.LegacyValidation)
	families, err := other.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return err
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, slices.Collect(maps.Values(families))...)
	if err != nil {
		return err
	}
	for _, sample := range samples {
		set := labels.NewBuilder(labels.EmptyLabels())
		for name, value := range sample.Metric {
			set.Set(string(name), string(value))
		}
		series := set.Labels().String()
		if have, ok := e.Series[series]; !ok || !sample.Value.Equal(model.SampleValue(have)) {
			return fmt.Errorf("%s is %v to one parser and %v to the other (%v)", series, sample.Value, have, ok)
		}
	}
	if len(samples) != len(e.Series) {
		return fmt.Errorf("one parser has %d series, the other %d: %v", len(samples), len(e.Series), slices.Sorted(maps.Keys(e.Series)))
	}
	return nil
}

// Readable is a text as a label can have it: without bytes that are not UTF-8, or zero.
func Readable(s string) string {
	return strings.Map(func(r rune) rune { // writes RuneError for each byte that is not UTF-8
		if r == 0 {
			return utf8.RuneError
		}
		return r
	}, s)
}
