// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"regexp"
	"strconv"
	"time"
)

// gcTrace is what a process's garbage collector said with GODEBUG=gctrace=1
// (https://pkg.go.dev/runtime#hdr-Environment_Variables).
type gcTrace struct {
	cycles int
	cpu    float64         // seconds, without what idle cores gave
	live   float64         // bytes, after the last cycle
	pauses []time.Duration // two of each cycle
}

// gc 7 @0.5s 2%: 0.018+1.3+0.076 ms clock, 0.054+0.35/1.0/3.0+0.23 ms cpu, 4->4->2 MB, ...
var gcLine = regexp.MustCompile(`^gc \d+ @.*: ([\d.]+)\+[\d.]+\+([\d.]+) ms clock, ([\d.]+)\+([\d.]+)/([\d.]+)/[\d.]+\+([\d.]+) ms cpu, \d+->\d+->(\d+) MB`)

// readTrace reads a trace among the lines of a log.
func readTrace(lines []string) (t gcTrace) {
	for _, line := range lines {
		if m := gcLine.FindStringSubmatch(line); m != nil {
			t.add(m)
		}
	}
	return t
}

func (t *gcTrace) add(m []string) {
	n := make([]float64, len(m))
	for i := 1; i < len(m); i++ {
		n[i], _ = strconv.ParseFloat(m[i], 64) // the expression lets nothing else pass
	}
	t.cycles++
	for _, ms := range n[1:3] {
		t.pauses = append(t.pauses, time.Duration(ms*float64(time.Millisecond)))
	}
	for _, ms := range n[3:7] {
		t.cpu += ms / 1e3
	}
	t.live = n[7] * (1 << 20)
}

// longest is the longest pause after the first so many.
func (t *gcTrace) longest(from int) (longest time.Duration) {
	for _, p := range t.pauses[from:] {
		longest = max(longest, p)
	}
	return longest
}
