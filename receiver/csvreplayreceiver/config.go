// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	semconv "github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

var timeUnits = map[string]time.Duration{"s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "ns": time.Nanosecond}

var metricTypes = map[string]reading.Kind{"": reading.Gauge, "gauge": reading.Gauge, "sum": reading.Counter, "updowncounter": reading.UpDownCounter}

// Config is what to replay and how fast.
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
	// Table maps the columns.
	Table TableConfig `mapstructure:"table"`

	_ struct{}
}

// TableConfig maps the columns of a table.
type TableConfig struct {
	Time TimeConfig `mapstructure:"time"`
	// Templates over the columns, by attribute.
	Resource map[string]string `mapstructure:"resource"`
	// The points that each row makes.
	Metrics []MetricConfig `mapstructure:"metrics"`

	_ struct{}
}

// TimeConfig is how to read the time column.
type TimeConfig struct {
	// The time's column.
	Column string `mapstructure:"column"`
	// `s`, `ms`, `us` or `ns` for a number.
	Unit string `mapstructure:"unit"`
	// Go's layout of a calendar time; RFC 3339 where unit and layout are unset.
	Layout string `mapstructure:"layout"`

	_ struct{}
}

// MetricConfig makes a point of a column.
type MetricConfig struct {
	// The value's column, without the header's unit; `a|b` takes the first that has a value.
	// A metric whose columns are missing in the file is left out.
	Column string `mapstructure:"column"`
	// The value in place of the cell's, for facts such as a model's name.
	Value *float64 `mapstructure:"value"`
	// What a row must have to make the point, by column.
	When map[string]string `mapstructure:"when"`
	// The metric's name.
	Name string `mapstructure:"name"`
	// The unit of numbers without one; known for metrics that the product reads.
	Unit string `mapstructure:"unit"`
	// `gauge`, `sum` (monotonic, cumulative) or `updowncounter`; known likewise.
	Type string `mapstructure:"type"`
	// A factor on the column's value; 0 means 1. A unit in header or cell needs none.
	Scale float64 `mapstructure:"scale"`
	// Templates over the columns, by attribute.
	Attributes map[string]string `mapstructure:"attributes"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{Speed: 1}
}

// Validate reports all mistakes at once.
func (c *Config) Validate() error {
	err := isRecording(c.Path)
	return errors.Join(append([]error{
		mistake.If(err != nil, "`path` is %q: it must name a CSV file: %w", c.Path, err),
		mistake.If(!(c.Speed > 0) || math.IsInf(c.Speed, 0), "`speed` is %v: it must be a number above 0, such as 1 for real time", c.Speed),
		mistake.If(c.StepWindow < 0, "`step_window` is %v: it must not be negative", c.StepWindow),
	}, c.Table.validate()...)...)
}

// isRecording checks what a replay can read. It does not open the file: to open a named pipe
// would block until someone writes.
func isRecording(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		return errors.New("it is no regular file")
	}
	return err
}

func (t *TableConfig) validate() []error {
	var errs []error
	check := func(wrong bool, format string, args ...any) { errs = append(errs, mistake.If(wrong, format, args...)) }
	templates := func(key string, all map[string]string) {
		for attribute, text := range all {
			check(strings.ContainsAny(inBraces.ReplaceAllString(text, ""), "{}"),
				"`%s::%s` is %q: a pair of braces must stand around the name of a column", key, attribute, text)
		}
	}
	check(t.Time.Column == "", "`table::time::column` is empty: it must name the column of the time")
	_, ok := timeUnits[t.Time.Unit]
	check(!ok && t.Time.Unit != "", "`table::time::unit` is %q: it must be s, ms, us or ns", t.Time.Unit)
	check(t.Time.Unit != "" && t.Time.Layout != "", "`table::time::unit` and `table::time::layout` are both set: a time is a number or a calendar time")
	check(t.Resource[semconv.AttrHostName] == "", "`table::resource` has no %s: it must say which node a row is about, such as \"{host}\"", semconv.AttrHostName)
	templates("table::resource", t.Resource)
	check(len(t.Metrics) == 0, "`table::metrics` is empty: it must list at least one column")
	for i, m := range t.Metrics {
		key := fmt.Sprintf("table::metrics[%d]", i)
		check(m.Column == "", "`%s::column` is empty: it must name a column", key)
		check(m.Name == "", "`%s::name` is empty: it must name a metric", key)
		_, ok := metricTypes[m.Type]
		check(!ok, "`%s::type` is %q: it must be gauge, sum or updowncounter", key, m.Type)
		if known := reading.ByName(m.Name); known != nil {
			_, certain := known.Factor(m.Unit)
			check(!certain, "`%s::unit`: %s", key, reading.Refused{Metric: known, Why: reading.WrongUnit, Unit: m.Unit})
		}
		check(math.IsNaN(m.Scale) || math.IsInf(m.Scale, 0), "`%s::scale` is %v: it must be a finite number", key, m.Scale)
		templates(key+"::attributes", m.Attributes)
	}
	return errs
}
