// SPDX-License-Identifier: Apache-2.0

package pushes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	const gone, unanswered = -1, -2
	for name, tt := range map[string]struct {
		reports []int // tenths of a second; gone: the view does not have the node, after 16 s; unanswered: the view did not answer
		missed  int
	}{
		"none":                                {[]int{0, 50, 100, 150}, 0},
		"none, in whole seconds":              {[]int{0, 60, 100, 160}, 0},
		"a view that shows each report twice": {[]int{0, 0, 50, 50}, 0},
		"one":                                 {[]int{0, 50, 150, 200}, 1},
		"one, in whole seconds":               {[]int{0, 90, 150}, 1},
		"two in turn are not two in a row":    {[]int{0, 100, 150, 250}, 1},
		"two in a row":                        {[]int{0, 50, 200, 250}, 2},
		"two in a row, in whole seconds":      {[]int{0, 140}, 2},
		"no answer for a while":               {[]int{0, 50, unanswered, 300, 350}, 0},
		"and then a miss":                     {[]int{0, unanswered, 300, 400}, 1},
		"a view that is new":                  {[]int{0, 50, 100, 150, gone, gone, 200, 250}, 0},
		"a view that is new has a late push":  {[]int{0, 50, 100, 150, gone, 155, 200}, 0},
		"a view that is new, and a miss":      {[]int{0, 50, 100, 150, gone, 250, 300}, 1},
		"a node is lost for three pushes":     {[]int{0, 50, 100, 150, gone, gone, 350, 400}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			c, start, lost := Count{Interval: 5 * time.Second}, time.Unix(1_700_000_000, 0), 16*time.Second
			for _, at := range tt.reports {
				switch at {
				case gone:
					c.Lose("n", start.Add(lost))
					lost += 200 * time.Millisecond // the view is asked again
				case unanswered:
					c.Forget("n")
				default:
					c.See("n", start.Add(time.Duration(at)*100*time.Millisecond))
					c.See("another", start)
				}
			}
			assert.Equal(t, map[string]int{"n": tt.missed, "another": 0}, c.Missed)
		})
	}
}
