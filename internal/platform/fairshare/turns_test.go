// SPDX-License-Identifier: Apache-2.0

package fairshare

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// Whatever one owner wants, the work of another is done. Work beyond the slots waits its
// turn, as long as its context lasts.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, end, order := NewTurns(3), make(chan struct{}), []string{}
		var all sync.WaitGroup
		var mu sync.Mutex
		within, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		do := func(ctx context.Context, owner string, long, want bool) {
			all.Go(func() {
				assert.Equal(t, want, turns.Do(ctx, owner, func() {
					mu.Lock()
					order = append(order, owner)
					mu.Unlock()
					if long {
						<-end
					}
				}), owner)
			})
			synctest.Wait()
		}
		for range 2 {
			do(t.Context(), "a", true, true)
		}
		for range 10 {
			do(within, "a", true, false)
		}
		do(within, "b", false, true)
		assert.Equal(t, []string{"a", "a", "b"}, order, "beside ten that wait")
		<-within.Done()
		synctest.Wait()
		assert.Len(t, turns.owners, 1)

		do(t.Context(), "c", true, true)
		for i := range 3 {
			do(t.Context(), fmt.Sprint("d", i), false, true)
		}
		do(within, "e", false, false)
		end <- struct{}{}
		synctest.Wait()
		assert.Equal(t, []string{"c", "d0", "d1", "d2"}, order[3:])
		close(end)
		all.Wait()
		assert.Panics(t, func() { turns.Do(t.Context(), "a", func() { panic("a mistake") }) })
		assert.Empty(t, turns.owners)
		assert.Empty(t, turns.all)
	})
}
