// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestTraceOfTheGarbageCollector(t *testing.T) {
	trace := readTrace([]string{
		"gc settings were read",
		"gc 1 @0.010s 2%: 0.018+1.3+0.076 ms clock, 0.054+0.35/1.0/3.0+0.23 ms cpu, 4->4->2 MB, 4 MB goal, 0 MB stacks, 0 MB globals, 2 P",
		"gc 2 @0.510s 2%: 0.5+1.3+0.076 ms clock, 1000+0/0/3.0+0 ms cpu, 4->5->3 MB, 4 MB goal, 0 MB stacks, 0 MB globals, 2 P (forced)",
	})
	assert.Equal(t, 2, trace.cycles)
	assert.InDelta(t, 1.001634, trace.cpu, 1e-9)
	assert.InDelta(t, 3<<20, trace.live, 0)
	assert.Equal(t, 500*time.Microsecond, trace.longest(0))
	assert.Equal(t, 500*time.Microsecond, trace.longest(2))
	assert.Equal(t, 76*time.Microsecond, trace.longest(3))
}
