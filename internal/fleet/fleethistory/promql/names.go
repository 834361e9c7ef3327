// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"strings"
	"sync"

	"github.com/prometheus/otlptranslator"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// kinds decide a metric's name in Prometheus besides its name and unit:
// https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
var kinds = map[reading.Kind]otlptranslator.MetricType{
	reading.Gauge:         otlptranslator.MetricTypeGauge,
	reading.Counter:       otlptranslator.MetricTypeMonotonicCounter,
	reading.UpDownCounter: otlptranslator.MetricTypeNonMonotonicCounter,
}

// names translates names of metrics and attributes to Prometheus and back.
type names struct {
	toProm, fromProm map[string]string
	attributes       map[string]string // by label
}

var translate = sync.OnceValue(func() *names {
	n := &names{toProm: map[string]string{}, fromProm: map[string]string{}, attributes: map[string]string{}}
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	for _, m := range reading.All() {
		// The catalogue has no name that cannot be translated, as a test shows.
		if text, err := namer.Build(otlptranslator.Metric{Name: m.Name, Unit: m.Unit, Type: kinds[m.Kind]}); err == nil {
			n.toProm[m.Name], n.fromProm[text] = text, m.Name
		}
		for _, key := range m.Keys {
			n.attributes[underscores(key.Name)] = key.Name
		}
	}
	for _, name := range gpusemconv.Descriptive {
		n.attributes[underscores(name)] = name
	}
	return n
})

// metric returns the name in Prometheus. A name that is not the product's is
// taken for what Prometheus calls it.
func (n *names) metric(name string) string {
	if text, ok := n.toProm[name]; ok {
		return text
	}
	return cmp.Or(underscores(name), "_") // so that it is a name
}

func (n *names) fromMetric(name string) string { return cmp.Or(n.fromProm[name], name) }

func (n *names) fromLabel(label string) string { return cmp.Or(n.attributes[label], label) }

// underscores replaces what a name in Prometheus may not have.
func underscores(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, name)
}

// noise are labels that are not of a point: a scrape's, and the resource's attributes, which
// resource_to_telemetry_conversion puts on each series.
func noise(label string) bool {
	switch label {
	case "__name__", "job", "instance", "exported_job", "exported_instance", "host_name", "host_id", "k8s_node_name", "k8s_cluster_name",
		"gpu_job_id", "gpu_job_role", "gpu_model", "hw_type", "hw_parent":
		return true
	}
	return strings.HasPrefix(label, "otel_scope_") || strings.HasPrefix(label, "service_") || strings.HasPrefix(label, "telemetry_")
}
