// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// TestQuestionsTakeTurns: one reader has half of the queue, others find room, a few requests run
// at a time, and a client that does not read holds no turn.
func TestQuestionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(fairshare.Half)
		var now, most atomic.Int64
		release := make(chan struct{})
		work := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			most.Store(max(most.Load(), now.Add(1)))
			<-release
			now.Add(-1)
			w.WriteHeader(http.StatusTeapot)
			_, _ = w.Write([]byte("data"))
		})
		var all sync.WaitGroup
		ask := func(reader string, n int) (codes map[int]*atomic.Int64) {
			codes = map[int]*atomic.Int64{http.StatusTeapot: {}, http.StatusServiceUnavailable: {}}
			for range n {
				all.Go(func() {
					w := httptest.NewRecorder()
					turns.serve(w, httptest.NewRequest(http.MethodGet, "/", http.NoBody), reader, work)
					codes[w.Code].Add(1)
					assert.Equal(t, w.Code == http.StatusTeapot, w.Body.String() == "data")
					assert.Equal(t, w.Code != http.StatusTeapot, w.Header().Get("Retry-After") == "1")
				})
			}
			synctest.Wait()
			return codes
		}
		one := ask("one", 100)
		assert.EqualValues(t, 100-maxWaiting/2, one[http.StatusServiceUnavailable].Load())
		other := ask("other", 1)
		assert.Zero(t, other[http.StatusServiceUnavailable].Load())
		close(release)
		all.Wait()
		assert.EqualValues(t, maxWaiting/2, one[http.StatusTeapot].Load())
		assert.EqualValues(t, 1, other[http.StatusTeapot].Load())
		assert.LessOrEqual(t, most.Load(), int64(max(1, runtime.GOMAXPROCS(0)/2)))
		assert.Zero(t, turns.waiting.Taken())

		stuck := &stuckWriter{httptest.NewRecorder(), make(chan struct{})}
		all.Go(func() { turns.serve(stuck, httptest.NewRequest(http.MethodGet, "/", http.NoBody), "one", work) })
		synctest.Wait()
		assert.Empty(t, turns.running, "it does not read")
		assert.Zero(t, turns.waiting.Taken())
		close(stuck.read)
		all.Wait()
	})
}

// TestQuestionsAboutThePastHaveTheirOwnTurns, and health needs none: a busy server is healthy.
func TestQuestionsAboutThePastHaveTheirOwnTurns(t *testing.T) {
	a := newAPI(nil)
	fill := func(turns *turns) {
		for turns.waiting.TakeAll("192.0.2.1", 1) { // httptest's
		}
	}
	fill(a.past)
	for target, want := range map[string]int{"health": 200, "nodes": 200, "telemetry": 503, "nodes/n1/past": 503} {
		assert.Equal(t, want, ask(a, "/api/v1/"+target).Code, target)
	}
	fill(a.views)
	for target, want := range map[string]int{"health": 200, "nodes": 503} {
		assert.Equal(t, want, ask(a, "/api/v1/"+target).Code, target)
	}
}

type stuckWriter struct {
	*httptest.ResponseRecorder
	read chan struct{}
}

func (s *stuckWriter) Write(p []byte) (int, error) {
	<-s.read
	return s.ResponseRecorder.Write(p)
}
