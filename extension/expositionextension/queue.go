// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"context"
	"net/http"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

// places are those of scrapes. An address has half of them, so its further scrapes wait
// for its own. An idle reader keeps a place until the server's `write_timeout`.
type places struct {
	all     chan struct{}
	mu      sync.Mutex
	readers map[string]*reader // by address
}

type reader struct {
	places chan struct{}
	here   int
}

// inTurn answers a scrape once there is a place, or refuses it.
func (p *places) inTurn(next http.Handler, refuse http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), maxWait)
		defer cancel()
		address := webguard.Address(r)
		defer p.count(address, -1)
		for _, place := range []chan struct{}{p.count(address, 1), p.all} {
			select {
			case place <- struct{}{}:
				defer func() { <-place }()
			case <-ctx.Done():
				refuse(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// count counts who is here of an address, and returns its places.
func (p *places) count(address string, more int) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.readers[address]
	if own == nil {
		own = &reader{places: make(chan struct{}, (cap(p.all)+1)/2)}
		p.readers[address] = own
	}
	if own.here += more; own.here == 0 {
		delete(p.readers, address)
	}
	return own.places
}
