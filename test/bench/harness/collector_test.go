// SPDX-License-Identifier: Apache-2.0

//go:build linux

package harness

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestWhatACollectionLeft(t *testing.T) {
	assert.InDelta(t, 3<<20, live("gc 2 @0.510s 2%: 0.5+1.3+0.076 ms clock, 1+0/0/3.0+0 ms cpu, 4->5->3 MB, 4 MB goal, 0 MB stacks, 0 MB globals, 2 P (forced)"), 0)
	assert.Zero(t, live("gc settings were read"))
}
