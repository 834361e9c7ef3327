// SPDX-License-Identifier: Apache-2.0

package heldbytes

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOf(t *testing.T) {
	type node struct {
		next *node
		text string
	}
	long := strings.Repeat("x", 100)
	loop := &node{text: long}
	loop.next = loop
	for name, c := range map[string]struct {
		want int
		root any
	}{
		"nothing":          {0, (*node)(nil)},
		"a loop":           {24 + 112, loop},
		"twice the same":   {24 + 24 + 24 + 112, &[1][]*node{{loop, loop, loop}}},
		"a part of a text": {32 + 112, &[2]string{long, long[50:]}},
		"room to spare":    {24 + 64, new(make([]int, 1, 8))},
		"into a list": {32 + 64, func() any {
			l := make([]int, 8)
			return &struct {
				l []int
				p *int
			}{l, &l[3]}
		}()},
		"a boxed number":        {16 + 8, new(any(1 << 20))},
		"a small map":           {8 + 48 + 144, new(map[int]int{1: 1})},
		"a map":                 {8 + 48 + 4864, new(numbers(200))},
		"a map with padding":    {8 + 48 + 144, new(map[uint32]uint64{1: 1})},
		"a map of large values": {8 + 48 + 144 + 2*208, new(map[int][25]int{1: {}, 2: {}})},
		"an atomic pointer":     {8 + 24 + 112, func() any { var p atomic.Pointer[node]; p.Store(loop); return &p }()},
	} {
		assert.Equal(t, c.want, Of(c.root), name)
	}
}

func numbers(n int) map[int]int {
	m := map[int]int{}
	for i := range n {
		m[i] = i
	}
	return m
}
