// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"maps"
	"net/http"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// Labels of a Prometheus series.
type Labels map[string]string

// And returns the labels with more.
func (l Labels) And(more Labels) Labels {
	l = maps.Clone(l)
	maps.Copy(l, more)
	return l
}

// Sample is a series and its value.
type Sample struct {
	Labels Labels
	Value  float64
}

// Scraped holds the samples of a Prometheus endpoint by metric name.
type Scraped map[string][]Sample

// Scrape reads /metrics at an address; it is nil while no server answers.
func Scrape(t testing.TB, addr string) Scraped {
	t.Helper()
	resp, err := Send(t.Context(), nil, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil || resp.Status != http.StatusOK {
		return nil
	}
	return ParseScrape(t, resp.Body)
}

// ParseScrape reads the Prometheus text format.
func ParseScrape(t testing.TB, text []byte) Scraped {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	require.NoError(t, err, "not the Prometheus format")
	s := Scraped{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			l := Labels{}
			for _, pair := range m.GetLabel() {
				l[pair.GetName()] = pair.GetValue()
			}
			s[name] = append(s[name], Sample{l, number(m)})
		}
	}
	return s
}

func number(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Histogram != nil:
		return float64(m.Histogram.GetSampleCount())
	default:
		return m.Untyped.GetValue()
	}
}

// With returns the samples of a metric that have all the labels; an empty value stands
// for an absent label.
func (s Scraped) With(name string, want Labels) (found []Sample) {
	for _, x := range s[name] {
		match := true
		for k, v := range want {
			match = match && x.Labels[k] == v
		}
		if match {
			found = append(found, x)
		}
	}
	return found
}

// Value returns the one sample with the labels, or false.
func (s Scraped) Value(name string, want Labels) (float64, bool) {
	found := s.With(name, want)
	if len(found) != 1 {
		return 0, false
	}
	return found[0].Value, true
}

// Is reports whether the one sample with the labels has the value.
func (s Scraped) Is(want float64, name string, l Labels) bool {
	v, ok := s.Value(name, l)
	return ok && v == want
}

// Sum adds up the samples of a metric.
func (s Scraped) Sum(name string) (sum float64) {
	for _, x := range s[name] {
		sum += x.Value
	}
	return sum
}

// By returns the values of the samples with the labels by one label more.
func (s Scraped) By(name, label string, want Labels) map[string]float64 {
	values := map[string]float64{}
	for _, x := range s.With(name, want) {
		values[x.Labels[label]] = x.Value
	}
	return values
}
