// SPDX-License-Identifier: Apache-2.0

package expositionextension

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func unavailable(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusServiceUnavailable)
}

// Whatever one address asks, the scrape of another address is answered. Scrapes beyond
// the places wait their turn, up to maxWait.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read := make(chan struct{})
		order := make(chan string, 10)
		p := &places{all: make(chan struct{}, 3), readers: map[string]*reader{}}
		h := p.inTurn(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			order <- r.URL.Path
			if r.Header.Get("idle") != "" {
				<-read
			}
		}), unavailable)
		var all sync.WaitGroup
		ask := func(ctx context.Context, address, idle string, want int) {
			all.Go(func() {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/"+address, http.NoBody)
				r.RemoteAddr = address + ":1"
				r.Header.Set("idle", idle)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				assert.Equal(t, want, w.Code, address)
			})
			synctest.Wait()
		}
		for range 2 {
			ask(t.Context(), "192.0.2.1", "yes", http.StatusOK)
		}
		for range 10 {
			ask(t.Context(), "192.0.2.1", "yes", http.StatusServiceUnavailable)
		}
		ask(t.Context(), "192.0.2.2", "", http.StatusOK)
		require.Equal(t, []string{"/192.0.2.1", "/192.0.2.1", "/192.0.2.2"}, []string{<-order, <-order, <-order}, "beside ten that wait")
		<-time.After(maxWait)
		synctest.Wait()
		assert.Len(t, p.readers, 1)

		ask(t.Context(), "192.0.2.3", "yes", http.StatusOK)
		for i := range 3 {
			ask(t.Context(), fmt.Sprint("192.0.2.", 4+i), "", http.StatusOK)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		ask(gone, "192.0.2.9", "", http.StatusServiceUnavailable)
		read <- struct{}{}
		synctest.Wait()
		assert.Equal(t, []string{"/192.0.2.3", "/192.0.2.4", "/192.0.2.5", "/192.0.2.6"}, []string{<-order, <-order, <-order, <-order})
		close(read)
		all.Wait()
		assert.Empty(t, p.readers)
		assert.Empty(t, p.all)
	})
}
