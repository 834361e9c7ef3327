// SPDX-License-Identifier: Apache-2.0

package pushes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestCount(t *testing.T) {
	const gone = -1
	for name, tt := range map[string]struct {
		reports []int // tenths of a second; gone: the view does not have the node
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
		"a view that is new":                  {[]int{0, 50, gone, 300, 350}, 0},
		"a gateway that is new and a miss":    {[]int{0, gone, 300, 400}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := Count{Interval: 5 * time.Second}
			for _, at := range tt.reports {
				if at == gone {
					c.Forget("n")
					continue
				}
				c.See("n", time.Unix(1_700_000_000, 0).Add(time.Duration(at)*100*time.Millisecond))
				c.See("another", time.Unix(1_700_000_000, 0))
			}
			assert.Equal(t, map[string]int{"n": tt.missed, "another": 0}, c.Missed)
		})
	}
}
