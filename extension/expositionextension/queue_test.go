// SPDX-License-Identifier: Apache-2.0

package expositionextension

import (
	"context"
	"fmt"
	"net"
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

// A reader that reads nothing keeps its place until `write_timeout`.
func TestIdleReaderIsCutOff(t *testing.T) {
	ended := make(chan error, 1)
	p := &places{all: make(chan struct{}, 1), readers: map[string]*reader{}}
	s := httptest.NewUnstartedServer(p.inTurn(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for piece := make([]byte, 1<<15); ; {
			if _, err := w.Write(piece); err != nil {
				ended <- err
				return
			}
		}
	}), unavailable))
	s.Config.WriteTimeout = 100 * time.Millisecond
	s.Start()
	defer s.Close()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	var timeout net.Error
	require.ErrorAs(t, <-ended, &timeout)
	assert.True(t, timeout.Timeout())
}
