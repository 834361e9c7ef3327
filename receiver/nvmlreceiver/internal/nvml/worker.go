// SPDX-License-Identifier: Apache-2.0

package nvml

import "context"

// worker runs jobs one at a time on a goroutine of its own. A job that hangs
// costs that goroutine and its thread, and nothing else: no second job is
// started beside it. All methods belong to one caller.
type worker[T any] struct {
	jobs    chan func() T
	results chan T
	busy    bool
	done    chan struct{}
}

func newWorker[T any]() *worker[T] {
	w := &worker[T]{jobs: make(chan func() T, 1), results: make(chan T, 1), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for job := range w.jobs {
			w.results <- job()
		}
	}()
	return w
}

// start begins the job, or returns false while an earlier one is in flight or
// has a result that was not taken.
func (w *worker[T]) start(job func() T) bool {
	if w.busy {
		return false
	}
	w.busy = true
	w.jobs <- job
	return true
}

// wait returns the result of the job in flight, or false when there is none
// or ctx is done first.
func (w *worker[T]) wait(ctx context.Context) (T, bool) {
	var none T
	if !w.busy {
		return none, false
	}
	select {
	case v := <-w.results:
		w.busy = false
		return v, true
	case <-ctx.Done():
		return w.take() // a result that is there counts all the same
	}
}

// take returns the result of the job in flight if it is there.
func (w *worker[T]) take() (T, bool) {
	select {
	case v := <-w.results:
		w.busy = false
		return v, true
	default:
		var none T
		return none, false
	}
}

// close ends the goroutine, at once when it is idle, else when its job returns.
func (w *worker[T]) close() {
	close(w.jobs)
	if !w.busy {
		<-w.done
	}
}
