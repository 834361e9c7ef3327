// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"io"
	"maps"
	"net/http"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// httpClient keeps no connection, so that no test holds up the shutdown of
// its collector.
var httpClient = &http.Client{
	Timeout:   patience,
	Transport: &http.Transport{DisableKeepAlives: true},
}

// labels of a Prometheus series.
type labels map[string]string

type sample struct {
	labels labels
	value  float64
}

// scraped holds the samples of a Prometheus endpoint by metric name.
type scraped map[string][]sample

// scrape reads a Prometheus endpoint; it is empty while nobody listens.
func scrape(t *testing.T, addr string) scraped {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	require.NoError(t, err)
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	return parseScrape(t, resp.Body)
}

func parseScrape(t *testing.T, body io.Reader) scraped {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	require.NoError(t, err, "not the Prometheus format")
	s := scraped{}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			l := labels{}
			for _, pair := range m.GetLabel() {
				l[pair.GetName()] = pair.GetValue()
			}
			s[name] = append(s[name], sample{l, valueOf(m)})
		}
	}
	return s
}

func valueOf(m *dto.Metric) float64 {
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

// with returns the samples of a metric that have all the labels; an empty
// value stands for an absent label.
func (s scraped) with(name string, want labels) []sample {
	var found []sample
	for _, x := range s[name] {
		match := true
		for k, v := range want {
			match = match && x.labels[k] == v
		}
		if match {
			found = append(found, x)
		}
	}
	return found
}

// value returns the one sample with the labels, or false.
func (s scraped) value(name string, want labels) (float64, bool) {
	found := s.with(name, want)
	if len(found) != 1 {
		return 0, false
	}
	return found[0].value, true
}

// is reports whether the one sample with the labels has the value.
func (s scraped) is(want float64, name string, l labels) bool {
	v, ok := s.value(name, l)
	return ok && v == want
}

// by returns the values of a metric by one label.
func (s scraped) by(name, label string, want labels) map[string]float64 {
	values := map[string]float64{}
	for _, x := range s.with(name, want) {
		values[x.labels[label]] = x.value
	}
	return values
}

// and returns l with more labels.
func (l labels) and(more labels) labels {
	l = maps.Clone(l)
	maps.Copy(l, more)
	return l
}
