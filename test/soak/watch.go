// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// maxGrowth is what may grow from the middle third of the run to its last, per cent.
const maxGrowth = 2

// measure is one thing that is followed.
type measure struct {
	name, unit string
	values     []float64
}

// watched is a collector, and what was seen of it.
type watched struct {
	*collector

	cpu      float64 // seconds, up to the last look
	reports  int64   // of the fleet, up to then
	measures []measure
}

func (c *watched) look(ctx context.Context) error {
	cpu, values, err := c.seen(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	if c.measures == nil {
		c.measures = []measure{
			{name: "rss", unit: "MB"},
			{name: "heap", unit: "MB"},
			{name: "goroutines", unit: "goroutines"},
			{name: "fds", unit: "files"},
		}
	}
	c.cpu = cpu
	for i, v := range values {
		c.measures[i].values = append(c.measures[i].values, v)
	}
	return nil
}

func (c *watched) last() string {
	text := make([]string, 0, len(c.measures))
	for _, m := range c.measures {
		text = append(text, fmt.Sprintf("%s %.0f", m.name, m.values[len(m.values)-1]))
	}
	return strings.Join(text, " ")
}

func (c *watched) print(w io.Writer) {
	figure.FprintOnly(w, "soak_"+c.Name+"_cpu", c.cpu, "s")
	for _, m := range c.measures {
		middle, last := m.thirds()
		figure.FprintOnly(w, "soak_"+c.Name+"_"+m.name, last, m.unit)
		figure.Fprint(w, "soak_"+c.Name+"_"+m.name+"_growth", 100*(last/middle-1), "%", maxGrowth, true)
	}
}

// thirds are the first deciles of the middle third of the run and of the last: what
// is there whatever is on its way, such as what a tick tells. The first third is for
// what has to grow: tables that fill.
func (m *measure) thirds() (middle, last float64) {
	n := len(m.values)
	return firstDecile(m.values[n/3 : 2*n/3]), firstDecile(m.values[2*n/3:])
}

func firstDecile(v []float64) float64 { return slices.Sorted(slices.Values(v))[len(v)/10] }
