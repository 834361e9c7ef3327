// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"encoding/binary"
	"time"
)

// Starts keeps the start time of each monotonic sum. The true start lies before
// the recording and is unknown, so by the OpenTelemetry data model ("Cumulative
// streams: handling unknown start time") the first point's own time stands for
// it; a value that falls is a reset and starts anew. Sums with FromZero start
// where the pass did.
type Starts struct {
	max    int
	begin  time.Time
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
		if p.Metric.FromZero && s.begin.Before(now) {
			state.start = s.begin
		}
		s.series[string(s.key)] = state
	case p.Value < state.last:
		state.start = now
	}
	state.last = p.Value
	return state.start, true
}

// Begin forgets all series, for a pass over the recording that begins at now.
func (s *Starts) Begin(now time.Time) {
	clear(s.series)
	s.begin = now
}

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
