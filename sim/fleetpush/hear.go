// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// Answer is what came back of a push.
type Answer struct {
	// Accepted is true when the report was taken, Answered when anybody said
	// anything about it.
	Accepted, Answered bool
	// Headers gives the values of a header of the answer, nil without an answer.
	Headers func(string) []string
}

// Heard is what an answer taught a node.
type Heard struct {
	// Threshold is true when the answer had one for the node's group, New when
	// the node had not heard it before.
	Threshold, New bool
	// Err is what was not valid in the headers.
	Err error
}

// Hear takes the answer to a node's push, as an agent's threshold extension does.
func (f *Fleet) Hear(i int, a Answer, now time.Time) (h Heard) {
	n := &f.nodes[i]
	g := &f.groups[n.group]
	var values []threshold.Value
	if a.Answered && a.Headers != nil {
		values, h.Err = g.parse(a.Headers(gpusemconv.HeaderParams), a.Headers(gpusemconv.HeaderVerdict))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reachable = a.Answered
	for j := range values {
		if values[j].Group == g.name {
			h.Threshold = true
			h.New = n.received.Hear(values[j], now) || h.New
		}
	}
	return h
}

// parse reads the headers of an answer. Most answers to a group repeat the answer before.
func (g *group) parse(params, verdicts []string) ([]threshold.Value, error) {
	if len(params) == 0 {
		return nil, nil
	}
	text := strings.Join(params, ",") + "\n" + strings.Join(verdicts, ",")
	if known := g.heard.Load(); known != nil && known.text == text {
		return known.values, known.err
	}
	values, err := threshold.ParseAnswer(params, verdicts, "")
	g.heard.Store(&heard{text, values, err})
	return values, err
}
