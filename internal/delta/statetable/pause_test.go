// SPDX-License-Identifier: Apache-2.0

package statetable

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestOnlyAPauseIsAPause(t *testing.T) {
	seconds := func(s ...float64) (out []time.Duration) {
		for _, v := range s {
			out = append(out, time.Duration(v*float64(time.Second)))
		}
		return out
	}
	for _, tt := range []struct {
		name    string
		between []time.Duration
		resyncs int64
	}{
		{"regular", seconds(10, 10, 10, 10), 0},
		{"late, and then in time", seconds(10, 17, 3, 10), 0},
		{"one is missing", seconds(10, 10, 20, 10), 1},
		{"and with some jitter", seconds(10, 10, 19, 10.5, 9.5), 1},
		{"the first of all is late", seconds(3, 10, 10), 0},
		{"one of the first is missing", seconds(10, 20, 10), 0}, // nobody knows the pace
		{"the second report of all, at whatever distance", seconds(100, 10, 10), 0},
		{"two pushes a round", seconds(0.01, 9.99, 0.01, 9.99, 0.01, 9.99, 0.01, 9.99), 0},
		{"a hundred a second, some late", seconds(0.01, 0.01, 0.4, 0.01, 0.4), 0},
		{"a slower pace is learned", seconds(10, 10, 60, 60, 60, 60, 60, 60), 2},
		{"one silence is no pace", seconds(10, 10, 3600, 10, 30), 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tb := newTable(nil)
			var now time.Duration
			push(tb, now, nodeA, double(1, 1))
			for _, d := range tt.between {
				now += d
				push(tb, now, nodeA, double(1, 1))
			}
			assert.Equal(t, tt.resyncs, tb.Stats().Resyncs)
		})
	}
	t.Run("a burst each round", func(t *testing.T) {
		tb := newTable(nil)
		var now time.Duration
		for range 20 {
			now += 10 * time.Second
			for i := range 20 {
				push(tb, now+time.Duration(i)*time.Millisecond, nodeA, double(1, 1))
			}
		}
		assert.EqualValues(t, 2, tb.Stats().Resyncs, "when the pace is learned")
	})
}

func TestReportingIsWithinAFewIntervals(t *testing.T) {
	for _, tt := range []struct {
		name    string
		reports int
		every   time.Duration
		silence time.Duration
		want    int64
	}{
		{"just now", 3, 10 * time.Second, 0, 1},
		{"three intervals ago", 3, 10 * time.Second, 30 * time.Second, 1},
		{"a little late", 3, 10 * time.Second, 30*time.Second + pauseSlack, 1},
		{"longer ago", 3, 10 * time.Second, 31 * time.Second, 0},
		{"slow", 3, time.Minute, 3 * time.Minute, 1},
		{"slow and longer ago", 3, time.Minute, 4 * time.Minute, 0},
		{"once", 1, 0, time.Minute, 1},
		{"once, longer ago", 1, 0, 61 * time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tb := newTable(nil)
			now := time.Hour
			push(tb, now, nodeB, double(1, 1))
			now += time.Hour
			for i := range tt.reports {
				if i > 0 {
					now += tt.every
				}
				push(tb, now, nodeA, double(1, 1))
			}
			assert.Equal(t, tt.want, tb.Reporting(now+tt.silence))
			assert.EqualValues(t, 2, tb.Stats().Nodes)
		})
	}
}

func TestForgottenIsNotReporting(t *testing.T) {
	tb := newTable(func(s *Settings) { s.TTL = time.Second })
	push(tb, 0, nodeA, double(1, 1))
	assert.EqualValues(t, 1, tb.Reporting(2*time.Second))
	tb.Sweep(2 * time.Second)
	assert.Zero(t, tb.Reporting(2*time.Second))
}
