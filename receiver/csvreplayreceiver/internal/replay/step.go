// SPDX-License-Identifier: Apache-2.0

// Package replay turns a recording in CSV form into time steps. It knows
// nothing of collectors and has no clock: the caller asks for the next step
// and decides when it is due.
package replay // import "github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/replay"

import "time"

// Step is everything the recording holds for one time. It is valid until the
// next call of Reader.Next.
type Step struct {
	// Time is on the recording's own clock: since 1970 for a calendar time or
	// Unix time, else since whatever zero the column counts from.
	Time time.Duration
	// Rows is the number of rows the step was made of.
	Rows int
	// Nodes are in the order of their first row.
	Nodes []Node
}

// Node is one machine's share of a step.
type Node struct {
	// Attributes are the resource attributes. They are never empty.
	Attributes []Attribute
	// Rows is the number of rows the node had in this step.
	Rows int
	// Points are ordered so that the points of one metric are adjacent.
	Points []Point
}

// Point is one value.
type Point struct {
	Metric *Metric
	// Identity names what was measured, such as the GPU.
	Identity []Attribute
	// Attributes name the aspect, such as the sensor's location.
	Attributes []Attribute
	// Value is finite and in the metric's unit.
	Value float64
}

// Attribute is a key with a text value, or with Number where Text is empty.
type Attribute struct {
	Key    string
	Text   string
	Number int64
}

// Kind is the instrument of a metric.
type Kind uint8

const (
	// KindGauge is a value of the moment.
	KindGauge Kind = iota
	// KindSum is a monotonic cumulative sum.
	KindSum
	// KindUpDownCounter is a cumulative sum that may fall.
	KindUpDownCounter
)

// Metric describes the points that refer to it.
type Metric struct {
	Name        string
	Description string
	Unit        string
	Kind        Kind
	// Integer says that values are whole numbers.
	Integer bool
	// FromZero says that the sum was counted from the recording's beginning, so
	// its start time is known.
	FromZero bool
}
