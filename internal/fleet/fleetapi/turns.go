// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"bytes"
	"net/http"
	"runtime"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

// maxWaiting bounds the waiting requests. A page sends six at once.
const maxWaiting = 64

// turns serves a few requests at a time, so that pushes keep their CPU time. One reader has a
// share of the waiting requests.
type turns struct {
	running chan struct{}
	waiting *fairshare.Ledger[string]
}

func newTurns(readerShare float64) *turns {
	return &turns{make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)), fairshare.New[string](maxWaiting, readerShare)}
}

// serve answers a request in its turn. A client that does not read its answer holds no turn.
func (t *turns) serve(w http.ResponseWriter, r *http.Request, reader string, next http.Handler) {
	if !t.waiting.TakeAll(reader, 1) {
		w.Header().Set("Retry-After", "1")
		webguard.Problem(w, http.StatusServiceUnavailable, "as many questions wait for an answer as one reader may have")
		return
	}
	answer := &answer{ResponseWriter: w, code: http.StatusOK}
	func() {
		defer t.waiting.Give(reader, 1)
		select {
		case t.running <- struct{}{}:
			defer func() { <-t.running }()
			next.ServeHTTP(answer, r)
		case <-r.Context().Done():
		}
	}()
	if r.Context().Err() == nil {
		w.WriteHeader(answer.code)
		_, _ = w.Write(answer.body.Bytes()) // fails when the client is gone
	}
}

// answer buffers a whole answer.
type answer struct {
	http.ResponseWriter
	code int
	body bytes.Buffer
}

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) { a.code = code }

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }
