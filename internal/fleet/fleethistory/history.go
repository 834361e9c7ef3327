// SPDX-License-Identifier: Apache-2.0

// Package fleethistory is what the fleet view asks of a store of past telemetry, and the writer
// that takes samples of the views into one. The stores are packages below it.
package fleethistory // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Sample is one point of a series. Node may be empty for figures of a cluster,
// GPU for figures of a node.
type Sample struct {
	Cluster, Node, GPU string
	Metric             string
	// Attributes are the others of the point, as JoinAttributes puts them together.
	Attributes string
	At         int64 // Unix milliseconds
	Value      float64
}

// Query selects samples.
type Query struct {
	Clusters []string
	// Hosts, GPUs and Metrics select all where they are empty.
	Hosts, GPUs, Metrics []string
	// PeerGroup selects the series of a peer group, empty those of any or none.
	PeerGroup string
	// Start and End bound the time, both included.
	Start, End time.Time
	// Step, in whole milliseconds and if it is not 0, selects the latest sample of each series at
	// the end of each step, which is its time then. The last step ends at End.
	Step time.Duration
	// Offset and Limit select a page, the newest samples first. A backend does not look at them.
	Offset, Limit int
}

// Span is the time in whole Unix milliseconds, both included.
func (q *Query) Span() (from, to int64) {
	from = q.Start.UnixMilli()
	if q.Start.After(time.UnixMilli(from)) {
		from++
	}
	return from, q.End.UnixMilli()
}

// Ends returns the end of the step that a time, at most End, is in, both Unix milliseconds.
func (q *Query) Ends(at int64) int64 {
	end := q.End.UnixMilli()
	return end - (end-at)/q.Step.Milliseconds()*q.Step.Milliseconds()
}

// Back is how old a sample at the end of a step may be. Unchanged values are sent again every
// few minutes only; the bound keeps a query over days fast.
func (q *Query) Back() time.Duration { return min(max(q.Step, 5*time.Minute), 30*time.Minute) }

// Status is the state of the history.
type Status struct {
	// Storage is none, sqlite or prometheus.
	Storage string
	// Err is why it cannot be written or read now, nil while it can.
	Err error
	// Note is for an operator though all is well, such as that a damaged file was put aside.
	Note string
	// Dropped counts samples that were not kept, since the start.
	Dropped int64
	// Oldest is the time of the oldest sample, zero when unknown.
	Oldest time.Time
	// Bytes is the size of what is stored, 0 when unknown.
	Bytes int64
}

// History is a store of the past. Its methods may be called from any goroutine. The functions of
// this package answer from its samples.
type History interface {
	// Samples calls f for each selected sample, the newest first or with steps in any order,
	// until it returns false. The sample is f's until it returns.
	Samples(ctx context.Context, q *Query, f func(*Sample) bool) error
	// Status returns the state of the history.
	Status() Status
}

// Errors of the questions. Others are the server's fault or a timeout.
var (
	// ErrOff is returned by every question when there is no history.
	ErrOff = errors.New("no history is kept: set `history::storage` of the fleet_view extension")
	// ErrUnavailable is returned when the store cannot be read now.
	ErrUnavailable = errors.New("the history cannot be read now")
	// ErrTooMuch is returned by a question about more samples than one answer looks through.
	ErrTooMuch = errors.New("the question is about too many samples: ask for a shorter time, or for fewer hosts, gpus or metrics")
)

// None keeps nothing.
type None struct{}

var _ History = None{}

// Samples implements History.
func (None) Samples(context.Context, *Query, func(*Sample) bool) error { return ErrOff }

// Status implements History.
func (None) Status() Status { return Status{Storage: "none"} }

// JoinAttributes returns attributes as the one text that Sample has of them, a JSON object with
// sorted keys; nothing for none.
func JoinAttributes(attributes map[string]string) string {
	if len(attributes) == 0 {
		return ""
	}
	text, _ := json.Marshal(attributes) // texts can be marshalled
	return string(text)
}

// SplitAttributes returns the attributes that JoinAttributes put together.
func SplitAttributes(text string) (attributes map[string]string) {
	_ = json.Unmarshal([]byte(text), &attributes) // an empty text has none
	return attributes
}
