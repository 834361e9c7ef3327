// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPacer(t *testing.T) {
	zero := time.Unix(1000, 0)
	type step struct {
		at, now time.Duration // recording, and wall since zero
		due     time.Duration
	}
	for _, tt := range []struct {
		name  string
		pacer pacer
		steps []step
	}{
		{"real time", pacer{speed: 1}, []step{
			{at: 5 * time.Second, due: 0},
			{at: 7 * time.Second, due: 2 * time.Second},
			{at: 8 * time.Second, now: 2 * time.Second, due: 3 * time.Second},
		}},
		{"four times as fast", pacer{speed: 4}, []step{
			{at: 0, due: 0},
			{at: 2 * time.Second, due: 500 * time.Millisecond},
		}},
		{"a small delay does not add up", pacer{speed: 1}, []step{
			{at: 0, due: 0},
			{at: time.Second, due: time.Second},
			{at: 2 * time.Second, now: 2500 * time.Millisecond, due: 2 * time.Second},
			{at: 3 * time.Second, now: 2600 * time.Millisecond, due: 3 * time.Second},
		}},
		{"a long delay moves the schedule", pacer{speed: 1}, []step{
			{at: 0, due: 0},
			{at: time.Second, now: time.Minute, due: time.Minute},
			{at: 2 * time.Second, now: time.Minute, due: time.Minute + time.Second},
		}},
		{"a loop keeps the pace", pacer{speed: 1}, []step{
			{at: 0, due: 0},
			{at: 3 * time.Second, due: 3 * time.Second},
			{at: 0, now: 3 * time.Second, due: 6 * time.Second},
			{at: 3 * time.Second, now: 6 * time.Second, due: 9 * time.Second},
		}},
		{"a loop over one step does not spin", pacer{speed: 2}, []step{
			{at: 9 * time.Second, due: 0},
			{at: 9 * time.Second, due: 500 * time.Millisecond},
		}},
		{"very slow does not overflow", pacer{speed: 1e-300}, []step{
			{at: 0, due: 0},
			{at: time.Second, due: 1 << 62},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := tt.pacer
			for i, s := range tt.steps {
				assert.Equal(t, s.due, p.next(s.at, zero.Add(s.now)).Sub(zero), "step %d", i)
			}
		})
	}
}
