// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestAWrongClockIsReportedOnce, by how much at least, and once more when it is right again.
func TestAWrongClockIsReportedOnce(t *testing.T) {
	const s = time.Second
	clocks := func(behind time.Duration, right bool) []Clock {
		return []Clock{{Cluster: "east", Node: "a", Behind: behind, Right: right}}
	}
	for name, tt := range map[string]struct {
		every  time.Duration
		behind []time.Duration
		want   []Clock
	}{
		"right":                       {10 * s, []time.Duration{0, s, -s, 29 * s, 0}, nil},
		"behind":                      {10 * s, []time.Duration{152 * s, 150 * s, 151 * s, 150 * s, 153 * s}, clocks(150*s, false)},
		"ahead by years":              {10 * s, []time.Duration{-87_600 * time.Hour, -87_600 * time.Hour, -87_600 * time.Hour}, clocks(-87_600*time.Hour, false)},
		"one that waited":             {10 * s, []time.Duration{0, 90 * s, 0, 90 * s, 80 * s, 0}, nil},
		"a queue that is sent":        {s, []time.Duration{0, 90 * s, 80 * s, 70 * s, 60 * s, 50 * s, 40 * s, 30 * s, 0}, nil},
		"each second":                 {s, []time.Duration{70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s, 70 * s}, clocks(70*s, false)},
		"right again":                 {10 * s, []time.Duration{40 * s, 40 * s, 40 * s, 20 * s, s, 0}, append(clocks(40*s, false), clocks(40*s, true)...)},
		"off by about the limit":      {10 * s, []time.Duration{31 * s, 31 * s, 31 * s, 20 * s, 31 * s, 31 * s, 31 * s}, clocks(31*s, false)},
		"ahead, then behind, at once": {10 * s, []time.Duration{-40 * s, -40 * s, 40 * s, 40 * s}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Clock
			var tb *Table
			tb = newTable(func(set *Settings) {
				set.OnClock = func(c *Clock) {
					tb.Counts(0) // takes the node's lock
					got = append(got, *c)
				}
			})
			for i, behind := range tt.behind {
				p := push{Table: tb, at: time.Duration(i) * tt.every, cluster: "east"}
				r := p.Begin(p.at)
				r.Open(p.key(), func() ([]Attr, bool) { return p.attrs(), true })
				r.Close(Facts{Alive: true, Behind: behind, Timed: true})
				r.Close(Facts{Alive: true}) // a part without a time changes nothing
				r.Done()
				r.Refused() // the clock is what it is
			}
			assert.Equal(t, tt.want, got)
		})
	}
}
