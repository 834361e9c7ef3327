// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
)

// series are values by the text of their name and labels.
type series map[string]value

type value struct {
	metric string
	labels map[string]string
	v      float64
}

func (s series) add(metric string, labels map[string]string, v float64) {
	var b strings.Builder
	b.WriteString(metric)
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		fmt.Fprintf(&b, ",%s=%s", k, labels[k])
	}
	s[b.String()] = value{metric, labels, v}
}

// one returns the value of the only series of a metric that has all the labels.
func (s series) one(metric string, labels map[string]string) (float64, bool) {
	found, n := 0.0, 0
	for _, x := range s {
		if x.metric != metric {
			continue
		}
		match := true
		for k, v := range labels {
			match = match && x.labels[k] == v
		}
		if match {
			found = x.v
			n++
		}
	}
	return found, n == 1
}

// of returns how many series a metric has.
func (s series) of(metric string) (n int) {
	for _, x := range s {
		if x.metric == metric {
			n++
		}
	}
	return n
}

// sum returns the sum of all series of a metric.
func (s series) sum(metric string) (total float64) {
	for _, x := range s {
		if x.metric == metric {
			total += x.v
		}
	}
	return total
}

// scrape reads a Prometheus endpoint, nil while it does not answer.
func scrape(ctx context.Context, addr string) series {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return nil
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return nil
	}
	s := series{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			s.add(name, labels, number(m))
		}
	}
	return s
}

// mustScrape reads an endpoint that has to answer.
func mustScrape(t *testing.T, addr string) series {
	t.Helper()
	s := scrape(t.Context(), addr)
	require.NotNil(t, s, "%s answers", addr)
	return s
}

// httpClient keeps no connection, so that it holds up no shutdown.
var httpClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

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

// reported are what nodes say all the time. What an agent adds comes and goes with its
// threshold, and each endpoint keeps such a series for a time of its own.
var reported = regexp.MustCompile("^(hw|gpu_app)_")
