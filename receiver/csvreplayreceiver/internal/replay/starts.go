// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"encoding/binary"
	"time"
)

// Starts keeps the start time of each monotonic sum. The true start lies before
// the recording and is unknown, so by the OpenTelemetry data model ("Cumulative
// streams: handling unknown start time") the first point's own time stands for
// it; a value that falls is a reset and starts anew.
type Starts struct {
	max    int
	series map[string]*sumState
	key    []byte
}

type sumState struct {
	start time.Time
	last  float64
}

// NewStarts keeps at most maxSeries series.
func NewStarts(maxSeries int) *Starts {
	return &Starts{max: maxSeries, series: make(map[string]*sumState)}
}

// At returns the start time of a point that is sent at now; ok is false if the
// table is full and the series is not in it.
func (s *Starts) At(node []Attribute, p *Point, now time.Time) (start time.Time, ok bool) {
	s.key = appendAttributes(s.key[:0], node)
	s.key = append(s.key, p.Metric.Name...)
	s.key = append(s.key, 0)
	s.key = appendAttributes(s.key, p.Identity)
	s.key = appendAttributes(s.key, p.Attributes)
	state, found := s.series[string(s.key)]
	switch {
	case !found && len(s.series) >= s.max:
		return time.Time{}, false
	case !found:
		state = &sumState{start: now}
		s.series[string(s.key)] = state
	case p.Value < state.last:
		state.start = now
	}
	state.last = p.Value
	return state.start, true
}

// Reset forgets all series: a loop of the recording starts over.
func (s *Starts) Reset() { clear(s.series) }

func appendAttributes(dst []byte, attrs []Attribute) []byte {
	for i := range attrs {
		a := &attrs[i]
		dst = binary.AppendUvarint(dst, uint64(len(a.Key)))
		dst = append(dst, a.Key...)
		dst = binary.AppendUvarint(dst, uint64(len(a.Text)))
		dst = append(dst, a.Text...)
		dst = binary.AppendVarint(dst, a.Number)
	}
	return append(dst, 0xff)
}
