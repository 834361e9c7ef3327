// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"time"

	"go.opentelemetry.io/collector/component"

	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

var timeUnits = map[string]time.Duration{
	"s":  time.Second,
	"ms": time.Millisecond,
	"us": time.Microsecond,
	"ns": time.Nanosecond,
}

var metricKinds = map[string]reading.Kind{
	"":              reading.Gauge,
	"gauge":         reading.Gauge,
	"sum":           reading.Counter,
	"updowncounter": reading.UpDownCounter,
}

var instruments = map[reading.Kind]reading.Instrument{
	reading.Gauge: reading.IsGauge, reading.Counter: reading.IsCounter, reading.UpDownCounter: reading.IsUpDownCounter,
}

// Config says what to replay and how fast.
type Config struct {
	// Path is the CSV file.
	Path string `mapstructure:"path"`
	// Speed is seconds of recording per second of replay.
	Speed float64 `mapstructure:"speed"`
	// Loop starts over at the end.
	Loop bool `mapstructure:"loop"`
	// StepWindow is how far from a step's first row a row may be and still
	// belong to the step, in recording time.
	StepWindow time.Duration `mapstructure:"step_window"`
	// Cluster is put on each resource as k8s.cluster.name, unless empty.
	Cluster string `mapstructure:"cluster"`
	// Table maps the columns.
	Table TableConfig `mapstructure:"table"`

	_ struct{}
}

// TableConfig maps the columns of a table.
type TableConfig struct {
	Time TimeConfig `mapstructure:"time"`
	// Resource holds templates over the columns by attribute key.
	Resource map[string]string `mapstructure:"resource"`
	// Metrics are the points that each row makes.
	Metrics []MetricConfig `mapstructure:"metrics"`

	_ struct{}
}

// TimeConfig says how to read the time column.
type TimeConfig struct {
	// Column is the name of the time's column.
	Column string `mapstructure:"column"`
	// Unit is s, ms, us or ns for a number.
	Unit string `mapstructure:"unit"`
	// Layout is a layout of Go's time package for a calendar time; RFC 3339 if neither is set.
	Layout string `mapstructure:"layout"`

	_ struct{}
}

// MetricConfig makes a point of a column.
type MetricConfig struct {
	// Column is the name of the value's column.
	Column string `mapstructure:"column"`
	// When holds by column what a row must have there to make the point.
	When map[string]string `mapstructure:"when"`
	// Name is the metric's.
	Name string `mapstructure:"name"`
	// Description and Unit are the metric's; those of a metric that the product reads are known.
	Description string `mapstructure:"description"`
	Unit        string `mapstructure:"unit"`
	// Type is gauge, sum (monotonic, cumulative) or updowncounter; that of a metric that the product reads is known.
	Type string `mapstructure:"type"`
	// Scale is a factor on the column's value; 0, as unset, means 1.
	Scale float64 `mapstructure:"scale"`
	// Attributes holds templates over the columns by attribute key.
	Attributes map[string]string `mapstructure:"attributes"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{Speed: 1}
}

// Validate reports all mistakes at once.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.Path == "" {
		fail("`path` is empty: it must name a CSV file")
	} else if _, err := os.Stat(c.Path); err != nil {
		fail("`path` %s cannot be read (%w): it must name a CSV file", c.Path, errors.Unwrap(err))
	}
	if !(c.Speed > 0) || math.IsInf(c.Speed, 0) {
		fail("`speed` is %v: it must be a number above 0, such as 1 for real time", c.Speed)
	}
	if c.StepWindow < 0 {
		fail("`step_window` is %v: it must not be negative", c.StepWindow)
	}
	if _, ok := c.Table.Resource[semconv.AttrClusterName]; ok && c.Cluster != "" {
		fail("`cluster` and `table::resource` both set %s: one of them must go", semconv.AttrClusterName)
	}
	return errors.Join(append(errs, c.Table.validate()...)...)
}

func (t *TableConfig) validate() []error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if t.Time.Column == "" {
		fail("`table::time::column` is empty: it must name the column of the time")
	}
	if _, ok := timeUnits[t.Time.Unit]; !ok && t.Time.Unit != "" {
		fail("`table::time::unit` is %q: it must be s, ms, us or ns", t.Time.Unit)
	}
	if t.Time.Unit != "" && t.Time.Layout != "" {
		fail("`table::time::unit` and `table::time::layout` are both set: a time is a number or a calendar time")
	}
	if t.Resource[semconv.AttrHostName] == "" {
		fail("`table::resource` has no %s: it must say which node a row is about, such as \"{host}\"", semconv.AttrHostName)
	}
	if _, err := parseAttributes(t.Resource); err != nil {
		fail("`table::resource`: %w", err)
	}
	if len(t.Metrics) == 0 {
		fail("`table::metrics` is empty: it must list at least one column")
	}
	for i, m := range t.Metrics {
		key := fmt.Sprintf("table::metrics[%d]", i)
		if m.Column == "" {
			fail("`%s::column` is empty: it must name a column", key)
		}
		if m.Name == "" {
			fail("`%s::name` is empty: it must name a metric", key)
		}
		if _, ok := metricKinds[m.Type]; !ok {
			fail("`%s::type` is %q: it must be gauge, sum or updowncounter", key, m.Type)
		}
		if known := reading.ByName(m.Name); known != nil {
			if is := instruments[metricKinds[m.Type]]; m.Type != "" && !known.Takes(is) {
				fail("`%s::type`: %s", key, reading.Refused{Metric: known, Why: reading.WrongType, Instrument: is})
			}
			if _, certain := known.Factor(m.Unit); !certain {
				fail("`%s::unit`: %s", key, reading.Refused{Metric: known, Why: reading.WrongUnit, Unit: m.Unit})
			}
		}
		if math.IsNaN(m.Scale) || math.IsInf(m.Scale, 0) {
			fail("`%s::scale` is %v: it must be a finite number", key, m.Scale)
		}
		if _, err := parseAttributes(m.Attributes); err != nil {
			fail("`%s::attributes`: %w", key, err)
		}
		for _, before := range t.Metrics[:i] {
			switch {
			case before.Name != m.Name:
			case before.Unit != m.Unit || metricKinds[before.Type] != metricKinds[m.Type]:
				fail("`%s`: %q occurs before with another unit or type: one metric has one of each", key, m.Name)
			case maps.Equal(before.Attributes, m.Attributes) && maps.Equal(before.When, m.When):
				fail("`%s`: %q occurs before with the same attributes: two columns cannot be one series", key, m.Name)
			}
		}
	}
	return errs
}
