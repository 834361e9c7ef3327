// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// Storage is what a Writer writes to, from one goroutine. Each call stores all or nothing, and
// what it returned nil for outlives the process.
type Storage interface {
	// WriteEpisodes stores changed episodes in place of those with their keys, or anew in place
	// of all, and removes those that are gone.
	WriteEpisodes(ctx context.Context, changed []*episode.Episode, gone []episode.Key, anew bool) error
	// WriteRound stores the rows of one time.
	WriteRound(ctx context.Context, at time.Time, rows iter.Seq[*Row]) error
}

// Writer writes what the views have to a storage, once in an interval. It holds up nobody: where
// the storage is slow, the next round is later.
type Writer struct {
	storage  Storage
	state    *fleetstate.Store
	interval time.Duration
	onError  func(error)

	written map[episode.Key]*episode.Episode // the storage's, the goroutine's alone; nil if unknown
	dropped atomic.Int64
	err     atomic.Pointer[error]
	stop    context.CancelFunc // nil before the start
	done    sync.WaitGroup
}

// NewWriter returns a writer that is not yet started. It calls onError when the storage begins to
// refuse, and with nil when it takes again.
func NewWriter(storage Storage, state *fleetstate.Store, interval time.Duration, onError func(error)) *Writer {
	return &Writer{storage: storage, state: state, interval: interval, onError: onError}
}

// Start starts the writer. With keep, episodes of the storage stay that the views do not have:
// they could not be read.
func (w *Writer) Start(keep bool) {
	if keep {
		w.written = map[episode.Key]*episode.Episode{}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.stop = cancel
	w.done.Go(func() {
		for tick := time.Tick(w.interval); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
				if rows, err := w.round(ctx); ctx.Err() == nil { // or the last round has it all
					w.report(rows, err)
				}
			}
		}
	})
}

// shutdownTimeout bounds the last round where the Collector does not: its context for shutdown
// has no deadline. Kubernetes kills after 30 s.
const shutdownTimeout = 10 * time.Second

// Shutdown ends the writer with a last round, where it was started.
func (w *Writer) Shutdown(ctx context.Context) error {
	if w.stop == nil {
		return nil
	}
	w.stop()
	w.done.Wait()
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	w.report(w.round(ctx))
	return w.Err()
}

// Dropped returns how many samples were not kept.
func (w *Writer) Dropped() int64 { return w.dropped.Load() }

// Err returns why the storage did not take the last round, nil when it did.
func (w *Writer) Err() error {
	if err := w.err.Load(); err != nil {
		return *err
	}
	return nil
}

// round writes the episodes first: they are few, and say what the samples mean.
func (w *Writer) round(ctx context.Context) (iter.Seq[*Row], error) {
	now := time.Now()
	rows := Rows(w.state, now)
	err := w.writeEpisodes(ctx)
	if err == nil {
		err = w.storage.WriteRound(ctx, now, rows)
	}
	if err != nil {
		w.written = nil // the storage may have begun a new file
	}
	return rows, err
}

// writeEpisodes makes the storage's episodes those of the views, which bound them.
func (w *Writer) writeEpisodes(ctx context.Context) error {
	var changed []*episode.Episode
	var gone []episode.Key
	now := map[episode.Key]*episode.Episode{}
	for _, e := range w.state.Episodes(&fleetstate.EpisodeFilter{}) {
		now[e.Key()] = e
		if w.written[e.Key()] != e {
			changed = append(changed, e)
		}
	}
	for key := range w.written {
		if now[key] == nil {
			gone = append(gone, key)
		}
	}
	anew := w.written == nil
	w.written = now
	if len(changed)+len(gone) == 0 && !anew {
		return nil
	}
	return w.storage.WriteEpisodes(ctx, changed, gone, anew)
}

// report stores the result of a round, and reports a change. It counts the rows of one that failed.
func (w *Writer) report(rows iter.Seq[*Row], err error) {
	before := w.Err()
	w.err.Store(&err)
	if err != nil {
		for r := range rows {
			w.dropped.Add(int64(r.Count()))
		}
	}
	if (before == nil) != (err == nil) || err != nil && before.Error() != err.Error() {
		w.onError(err)
	}
}
