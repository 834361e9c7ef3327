// SPDX-License-Identifier: Apache-2.0

package replay

// Reason says why a row was left out.
type Reason uint8

const (
	reasonNone Reason = iota
	// BadNumber is a value that is no decimal number.
	BadNumber
	// BadQuote is a quote inside a bare field or one that the line does not close.
	BadQuote
	// BadTime is a time in none of the accepted forms, or out of range.
	BadTime
	// Blank is a value by which DCGM says that it has none.
	Blank
	// Duplicate is a row that a later row of the same step and series replaced.
	Duplicate
	// Empty is a row without any value.
	Empty
	// FieldCount is a row with more or fewer fields than the header.
	FieldCount
	// LineTooLong is a line over Options.MaxLineBytes.
	LineTooLong
	// NoGPU is a row of the DCGM form without a uuid.
	NoGPU
	// NoNode is a row without the name of its node.
	NoNode
	// NotFinite is NaN or an infinity.
	NotFinite
	// OutOfOrder is a row older than the step that is open.
	OutOfOrder
	// OutOfRange is a value that the quantity cannot have.
	OutOfRange
	// StepTooLarge is a row over Options.MaxStepRows.
	StepTooLarge
	// TooManyGPUs is a row of a GPU over Options.MaxGPUs.
	TooManyGPUs
	// UnknownMetric is a row of the DCGM form whose metric has no place in our names.
	UnknownMetric

	reasonCount
)

var reasonNames = [reasonCount]string{
	"", "bad_number", "bad_quote", "bad_time", "blank", "duplicate", "empty", "field_count",
	"line_too_long", "no_gpu", "no_node", "not_finite", "out_of_order", "out_of_range",
	"step_too_large", "too_many_gpus", "unknown_metric",
}

// String is the reason as the telemetry attribute shows it.
func (r Reason) String() string {
	if r >= reasonCount {
		return "unknown"
	}
	return reasonNames[r]
}

// Reasons lists every reason, for telemetry and tests.
func Reasons() []Reason {
	all := make([]Reason, 0, reasonCount-1)
	for r := BadNumber; r < reasonCount; r++ {
		all = append(all, r)
	}
	return all
}
