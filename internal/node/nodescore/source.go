// SPDX-License-Identifier: Apache-2.0

package nodescore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// How a reading is used, Ratio.Use.
const (
	UseValue    = "value"     // as it is
	UseInverse  = "inverse"   // 1/x: a duration as a rate
	UseOneMinus = "one_minus" // 1-x: a lost share as the share that is left
	// UseRate is for counters: 1 up to Ratio.Allowed per second, the less the
	// more there are beyond, down to a tenth.
	UseRate = "rate"
)

// How the ranks or GPUs of a node are put together, Source.Across.
const (
	// AcrossMin is for what all wait for. In a synchronous job one slow rank of
	// eight holds the whole node. A mean would show an eighth of the loss.
	AcrossMin  = "min"
	AcrossMean = "mean"
	AcrossSum  = "sum" // unknown while one of the GPUs does not report it
)

// When a reading counts, Source.When.
const (
	WhenAlways = "always"
	// WhenBusy is while the GPUs of the node do something.
	WhenBusy = "busy"
	// WhenLoad takes only the GPUs that are under load: one with nothing to do
	// lowers its clock and its PCIe link on purpose.
	WhenLoad = "load"
)

// How the sources of a signal are put together, Measure.Combine.
const (
	// CombineFirst takes the first source that has data. Sources may differ in unit: one
	// that stops reporting is not replaced by one behind it.
	CombineFirst = "first"
	CombineMin   = "min" // the worst of all that have data
)

// Ratio is one reading of each GPU, or of the node.
type Ratio struct {
	// A gauge or sum.
	Metric string `mapstructure:"metric"`
	// Attributes of the points that count. Of a metric that the catalogue does not know so,
	// points that lack one of them count too.
	Attributes map[string]string `mapstructure:"attributes"`
	// The metric that the reading is a fraction of.
	Limit string `mapstructure:"limit"`
	// Attributes of the limit's points; by default those of the metric.
	LimitAttributes map[string]string `mapstructure:"limit_attributes"`
	// Where no limit is reported, the most that a GPU of the node has shown is the limit.
	BestLimit bool `mapstructure:"best_limit"`
	// `value`, `inverse`, `one_minus` or `rate`.
	Use string `mapstructure:"use"`
	// Allowed per second, for `rate`.
	Allowed float64 `mapstructure:"allowed"`
}

// Source is one way to measure a signal.
type Source struct {
	Ratio `mapstructure:",squash"`
	// Factors, GPU by GPU, from `metric` to `allowed`.
	Times []Ratio `mapstructure:"times"`
	// `mean`, `min` or `sum`; by default the catalogue's.
	Across string `mapstructure:"across"`
	// `always`, `busy` or `load`.
	When string `mapstructure:"when"`
}

// Measure is how a signal is measured.
type Measure struct {
	Combine string
	Sources []Source
}

// maxSources and maxTimes bound what is evaluated per signal.
const (
	maxSources = 16
	maxTimes   = 4
)

// ratio is what the catalogue has of a field.
func ratio(f reading.Field) Ratio {
	m, _ := reading.Of(f)
	return Ratio{Metric: m.Name, Attributes: reading.Attributes(f)}
}

// of makes r a fraction of another field.
func (r Ratio) of(limit reading.Field) Ratio {
	m, _ := reading.Of(limit)
	r.Limit, r.LimitAttributes = m.Name, reading.Attributes(limit)
	return r
}

// best lets what a GPU of the node has shown stand for the limit.
func (r Ratio) best() Ratio {
	r.BestLimit = true
	return r
}

func (r Ratio) use(how string) Ratio {
	r.Use = how
	return r
}

func clockFraction() Ratio { return ratio(reading.SMClock).of(reading.SMClockLimit) }

// linkErrors is the worst GPU's rate of a counter, against what is allowed per second.
func linkErrors(f reading.Field, allowed float64) Source {
	r := ratio(f).use(UseRate)
	r.Allowed = allowed
	return Source{Ratio: r}
}

// DefaultMeasures returns how the signals are measured from what the nvml receiver and
// applications report.
func DefaultMeasures() [nodesignal.Count]Measure {
	// The rates are those from which NVIDIA's DCGM warns (dcgm_fields.h and its
	// health checks): 8 PCIe replays a minute, any NVLink replay or recovery,
	// 100 CRC errors a second.
	const perMinute = 1.0 / 60
	return [nodesignal.Count]Measure{
		nodesignal.Throughput: {CombineFirst, []Source{
			{Ratio: ratio(reading.StepOwnDuration).use(UseInverse)},
			{Ratio: ratio(reading.StepDuration).use(UseInverse)},
			{Ratio: ratio(reading.StepRate)},
			// The share of the peak that the tensor cores give, at the clock they
			// have: within 2 points of the model's own FLOPS (OFU, arXiv 2605.20799).
			{Ratio: ratio(reading.TensorActivity), Times: []Ratio{clockFraction()}, When: WhenBusy},
			{Ratio: ratio(reading.Utilization), Times: []Ratio{clockFraction()}, When: WhenBusy},
		}},
		nodesignal.Compute: {CombineFirst, []Source{{Ratio: clockFraction(), When: WhenLoad}}},
		nodesignal.Interconnect: {CombineMin, []Source{
			{
				Ratio: ratio(reading.PCIeWidth).of(reading.PCIeWidthLimit),
				// A lane carries twice the bytes with each generation. To the peers
				// it is the same whether a step counts as half or as a third.
				Times: []Ratio{ratio(reading.PCIeGeneration).of(reading.PCIeGenerationLimit).best()},
				When:  WhenLoad,
			},
			{Ratio: ratio(reading.NVLinksUp).best()},
			linkErrors(reading.PCIeReplays, 8*perMinute),
			linkErrors(reading.NVLinkReplay, perMinute), linkErrors(reading.NVLinkRecovery, perMinute),
			linkErrors(reading.NVLinkCRC, 100), linkErrors(reading.NVLinkCRCFlit, 100), linkErrors(reading.NVLinkCRCData, 100),
		}},
		nodesignal.CPU:    {CombineFirst, []Source{{Ratio: ratio(reading.CPUPressure).use(UseOneMinus)}}},
		nodesignal.Power:  {CombineFirst, []Source{{Ratio: ratio(reading.Power), When: WhenBusy}}},
		nodesignal.Memory: {CombineFirst, []Source{{Ratio: ratio(reading.MemoryUsed).of(reading.MemoryLimit).use(UseOneMinus)}}},
	}
}

// Validate returns all mistakes of m, section before each key.
func (m *Measure) Validate(section string) error {
	errs := []error{
		oneOf(section+"combine", m.Combine, CombineFirst, CombineMin),
		mistake.If(len(m.Sources) > maxSources, "`%ssources` are %d, must be at most %d", section, len(m.Sources), maxSources),
	}
	for i := range m.Sources {
		s := &m.Sources[i]
		key := fmt.Sprintf("%ssources::%d::", section, i)
		errs = append(errs, s.validate(key),
			oneOf(key+"across", s.Across, AcrossMean, AcrossMin, AcrossSum),
			oneOf(key+"when", s.When, WhenAlways, WhenBusy, WhenLoad),
			mistake.If(len(s.Times) > maxTimes, "`%stimes` are %d, must be at most %d", key, len(s.Times), maxTimes))
		for j := range s.Times {
			errs = append(errs, s.Times[j].validate(fmt.Sprintf("%stimes::%d::", key, j)))
		}
	}
	return errors.Join(errs...)
}

func (r *Ratio) validate(section string) error {
	rate := r.Use == UseRate
	return errors.Join(
		oneOf(section+"use", r.Use, UseValue, UseInverse, UseOneMinus, UseRate),
		mistake.If(r.Metric == "", "`%smetric` is empty, must name a metric", section),
		mistake.If(rate && !(r.Allowed > 0), "`%sallowed` is %v, must be a number per second above 0 for `use: rate`", section, r.Allowed),
		mistake.If(rate && (r.Limit != "" || r.BestLimit), "`%slimit` does not go with `use: rate`, whose limit is `allowed`", section),
		mistake.If(!rate && r.Allowed != 0, "`%sallowed` is for `use: rate` only", section),
		mistake.If(r.Limit == "" && len(r.LimitAttributes) > 0, "`%slimit_attributes` are of no `limit`", section))
}

// oneOf checks an enumeration; empty stands for the first.
func oneOf(key, value string, known ...string) error {
	return mistake.If(value != "" && !slices.Contains(known, value), "`%s` is %q, must be one of %v", key, value, known)
}
