// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/fabric"
)

// changes finds what two readings of a port say together: that the port is gone, or that a
// counter cannot be trusted.
type changes struct {
	ports map[string]counts // by id
}

// counts are a port's counters, as they were read last.
type counts map[*fabric.Kind]fabric.Counter

// apply returns the failures that a report shows beside the report before. A device that was
// silent keeps its ports.
func (c *changes) apply(report *fabric.Report) (failures []fabric.Failure) {
	now := make(map[string]counts, len(report.Ports))
	for i := range report.Ports {
		p := &report.Ports[i]
		last, next := c.ports[p.ID], make(counts, len(p.Counters))
		for _, counter := range p.Counters {
			next[counter.Kind] = counter
			before, known := last[counter.Kind]
			failed := fabric.Failure{Device: deviceOf(p.ID), File: counter.File}
			switch {
			case counter.Full() && (!known || !before.Full()):
				failed.Cause, failed.Err = fabric.Full, fmt.Errorf("it stands at %d, and counts no further", counter.Value)
			case known && counter.Value < before.Value:
				failed.Cause, failed.Err = fabric.Fell, fmt.Errorf("it was %d and is %d: it wrapped, or was reset", before.Value, counter.Value)
			default:
				continue
			}
			failures = append(failures, failed)
		}
		now[p.ID] = next
	}
	for id, last := range c.ports {
		if _, there := now[id]; there {
			continue
		}
		if slices.Contains(report.Silent, deviceOf(id)) {
			now[id] = last
			continue
		}
		failures = append(failures, fabric.Failure{Device: deviceOf(id), Cause: fabric.Gone, Err: fmt.Errorf("port %s was there at the last reading", id)})
	}
	c.ports = now
	return failures
}

// deviceOf is the device of a port or of a series, by its id.
func deviceOf(id string) string {
	device, _, _ := strings.Cut(id, "/")
	return device
}
