// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"

	semconv "github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/replay"
)

const (
	formatDCGM  = "dcgm"
	formatTable = "table"
)

var timeUnits = map[string]time.Duration{
	"s":  time.Second,
	"ms": time.Millisecond,
	"us": time.Microsecond,
	"ns": time.Nanosecond,
}

var metricKinds = map[string]replay.Kind{
	"":              replay.KindGauge,
	"gauge":         replay.KindGauge,
	"sum":           replay.KindSum,
	"updowncounter": replay.KindUpDownCounter,
}

// Config says what to replay and how fast.
type Config struct {
	// Path is the CSV file.
	Path string `mapstructure:"path"`
	// Format is dcgm or table.
	Format string `mapstructure:"format"`
	// Speed is seconds of recording per second of replay.
	Speed float64 `mapstructure:"speed"`
	// Loop starts over at the end.
	Loop bool `mapstructure:"loop"`
	// StartOffset is how much of the beginning to leave out, in recording time.
	StartOffset time.Duration `mapstructure:"start_offset"`
	// StepWindow is how far from a step's first row a row may be and still
	// belong to the step, in recording time.
	StepWindow time.Duration `mapstructure:"step_window"`
	// MaxGap is the longest pause between two steps, in recording time; 0 is no limit.
	MaxGap time.Duration `mapstructure:"max_gap"`
	// BatchSize is the most rows of one call to the next consumer, 0 for a
	// whole step; a node is never split, so a larger node makes a larger batch.
	BatchSize int `mapstructure:"batch_size"`
	// MaxStepRows is the most rows of a step; the rest is skipped and counted.
	MaxStepRows int `mapstructure:"max_step_rows"`
	// MaxLineBytes is the longest line; longer ones are skipped and counted.
	MaxLineBytes int `mapstructure:"max_line_bytes"`
	// Cluster is put on each resource as k8s.cluster.name, unless empty.
	Cluster string `mapstructure:"cluster"`
	// Timeout is how long the next consumer may take for one batch.
	Timeout time.Duration `mapstructure:"timeout"`
	// ProgressInterval is the time between progress lines, 0 for none.
	ProgressInterval time.Duration `mapstructure:"progress_interval"`
	// Table maps the columns of the table format.
	Table configoptional.Optional[TableConfig] `mapstructure:"table"`

	_ struct{}
}

// TableConfig maps the columns of a wide table.
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
	// Layout is a layout of Go's time package for a calendar time.
	Layout string `mapstructure:"layout"`

	_ struct{}
}

// MetricConfig makes a point of a column.
type MetricConfig struct {
	// Column is the name of the value's column.
	Column string `mapstructure:"column"`
	// Name, Description and Unit are the metric's.
	Name        string `mapstructure:"name"`
	Description string `mapstructure:"description"`
	Unit        string `mapstructure:"unit"`
	// Type is gauge, sum (monotonic, cumulative) or updowncounter.
	Type string `mapstructure:"type"`
	// Scale is a factor on the column's value; 0, as unset, means 1.
	Scale float64 `mapstructure:"scale"`
	// Attributes holds templates over the columns by attribute key.
	Attributes map[string]string `mapstructure:"attributes"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		Format:           formatDCGM,
		Speed:            1,
		MaxGap:           time.Hour,
		MaxStepRows:      1_000_000,
		MaxLineBytes:     64 << 10,
		Timeout:          10 * time.Second,
		ProgressInterval: 5 * time.Second,
	}
}

// Validate reports all mistakes at once.
func (c *Config) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if c.Path == "" {
		fail("`path` is empty: it must name a CSV file")
	}
	if !(c.Speed > 0) || math.IsInf(c.Speed, 0) {
		fail("`speed` is %v: it must be a number above 0, such as 1 for real time", c.Speed)
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{
		{"start_offset", c.StartOffset},
		{"step_window", c.StepWindow},
		{"max_gap", c.MaxGap},
		{"progress_interval", c.ProgressInterval},
	} {
		if d.value < 0 {
			fail("`%s` is %v: it must not be negative", d.key, d.value)
		}
	}
	if c.Timeout <= 0 {
		fail("`timeout` is %v: it must be above 0, as the replay must not wait forever", c.Timeout)
	}
	if c.BatchSize < 0 {
		fail("`batch_size` is %d: it must be 0, for a whole step, or above", c.BatchSize)
	}
	if c.MaxStepRows < 1 {
		fail("`max_step_rows` is %d: it must be at least 1", c.MaxStepRows)
	}
	if c.MaxLineBytes < 1 {
		fail("`max_line_bytes` is %d: it must be at least 1", c.MaxLineBytes)
	}
	switch c.Format {
	case formatDCGM:
		if c.Table.HasValue() {
			fail("`table` has no effect with `format` %s: remove it, or set `format: table`", formatDCGM)
		}
	case formatTable:
		if !c.Table.HasValue() {
			fail("`table` is missing: `format: table` needs to know the columns")
			break
		}
		errs = append(errs, c.Table.Get().validate(c.Cluster != "")...)
	default:
		fail("`format` is %q: it must be %s or %s", c.Format, formatDCGM, formatTable)
	}
	return errors.Join(errs...)
}

func (t *TableConfig) validate(hasCluster bool) []error {
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
	if _, ok := t.Resource[semconv.AttrClusterName]; ok && hasCluster {
		fail("`cluster` and `table::resource` both set %s: one of them must go", semconv.AttrClusterName)
	}
	checkTemplates := func(key string, templates map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(templates)) {
			if err := replay.CheckTemplate(templates[k]); err != nil {
				fail("`%s::%s`: %w", key, k, err)
			}
		}
	}
	checkTemplates("table::resource", t.Resource)
	if len(t.Metrics) == 0 {
		fail("`table::metrics` is empty: it must list at least one column")
	}
	first := make(map[string]MetricConfig)
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
		if math.IsNaN(m.Scale) || math.IsInf(m.Scale, 0) {
			fail("`%s::scale` is %v: it must be a finite number", key, m.Scale)
		}
		checkTemplates(key+"::attributes", m.Attributes)
		f, ok := first[m.Name]
		switch {
		case !ok:
			first[m.Name] = m
		case f.Unit != m.Unit || metricKinds[f.Type] != metricKinds[m.Type]:
			fail("`%s`: %q occurs before with another unit or type: one metric has one of each", key, m.Name)
		case maps.Equal(f.Attributes, m.Attributes):
			fail("`%s`: %q occurs before with the same attributes: two columns cannot be one series", key, m.Name)
		}
	}
	return errs
}

// spec is the table as the engine takes it.
func (t *TableConfig) spec() replay.TableSpec {
	spec := replay.TableSpec{
		Time:     replay.TimeSpec{Column: t.Time.Column, Unit: timeUnits[t.Time.Unit], Layout: t.Time.Layout},
		Resource: t.Resource,
	}
	for _, m := range t.Metrics {
		scale := m.Scale
		if scale == 0 {
			scale = 1
		}
		spec.Metrics = append(spec.Metrics, replay.MetricSpec{
			Column:     m.Column,
			Scale:      scale,
			Attributes: m.Attributes,
			Metric: replay.Metric{
				Name:        m.Name,
				Description: strings.TrimSpace(m.Description),
				Unit:        m.Unit,
				Kind:        metricKinds[m.Type],
			},
		})
	}
	return spec
}
