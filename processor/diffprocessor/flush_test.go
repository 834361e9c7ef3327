// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func eachSecond(c *Config) { c.FlushInterval = time.Second }

// waiting is how many nodes wait for a flush.
func (s *stage) waiting() int64 {
	_, nodes := s.engine.Table.Counts(s.engine.Time())
	return nodes
}

func TestFlushesOnceAnInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := started(t, eachSecond)
		for i := range 3 {
			s.push("a", time.Duration(i)*time.Second, 1, float64(i))
			s.push("b", time.Duration(i)*time.Second, 1, float64(i))
		}
		for _, want := range [][2]int{{0, 0}, {1, 2 * 3}, {0, 0}} { // nothing changed, nothing is sent
			calls, points := s.took()
			assert.Equal(t, want, [2]int{calls, points})
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
		}
		require.NoError(t, s.Shutdown(t.Context()))
	})
}

// The next component hangs and then refuses for long: no push waits for it, and then it has
// the last values.
func TestNextComponentAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := started(t, eachSecond)
		hang := make(chan struct{})
		s.answers(func(context.Context) error { <-hang; return errors.New("away") })
		for i := range 60 {
			if i == 20 {
				close(hang)
			}
			for _, node := range []string{"a", "b"} {
				began := time.Now()
				s.push(node, time.Duration(i)*10*time.Second, float64(i), 1)
				require.Zero(t, time.Since(began))
			}
			time.Sleep(10 * time.Second)
			synctest.Wait() // a flush is due at the same time
		}
		_, points := s.took()
		assert.Zero(t, points)
		s.answers(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		calls, points := s.took()
		assert.Equal(t, [2]int{1, 2 * 3}, [2]int{calls, points})
		assert.Zero(t, s.waiting())
		require.NoError(t, s.Shutdown(t.Context()))
	})
}

// A next component that answers only when its context ends holds up neither the
// Collector's end nor, with a deadline, longer than that.
func TestShutdownEndsInTime(t *testing.T) {
	hangs := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for name, tt := range map[string]struct {
		answer               func(context.Context) error
		wait, deadline, want time.Duration
		waiting              int64
	}{
		"delivers what is held":  {nil, 0, time.Hour, 0, 0},
		"has a bound of its own": {hangs, 0, time.Hour, shutdownTimeout, 1},
		"has a deadline":         {hangs, 0, 3 * time.Second, 3 * time.Second, 1},
		"a flush is under way":   {hangs, 2 * time.Second, 3 * time.Second, 3 * time.Second, 1},
		"and its context ends":   {hangs, 2 * time.Second, time.Hour, shutdownTimeout, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := started(t, eachSecond)
				s.answers(tt.answer)
				s.push("a", 0, 1)
				time.Sleep(tt.wait)
				ctx, done := context.WithTimeout(t.Context(), tt.deadline)
				defer done()
				began := time.Now()
				require.NoError(t, s.Shutdown(ctx))
				assert.Equal(t, tt.want, time.Since(began))
				assert.Equal(t, tt.waiting, s.waiting())
				assert.EqualValues(t, tt.waiting, s.logged.FilterMessageSnippet("did not take the last values").Len())
			})
		})
	}
}
