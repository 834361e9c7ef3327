// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Storage is what a Batcher writes to, from one goroutine.
type Storage interface {
	// Append stores all of it or nothing. A batch that it returned nil for outlives
	// the process. It may be called again with the same batch.
	Append(ctx context.Context, samples []Sample, episodes []Episode) error
	// Maintain does a bounded piece of the work that is not writing, such as
	// dropping what is too old, and reports whether there is more to do.
	Maintain(ctx context.Context) (more bool, err error)
}

// BatchConfig bounds what waits between ingest and storage.
type BatchConfig struct {
	// MaxSamples is the most samples of one transaction.
	MaxSamples int
	// MaxAge is how long a sample waits for others.
	MaxAge time.Duration
	// QueueSize is how many samples wait at most; more are dropped and counted.
	QueueSize int
	// QueueBytes is how many bytes they take at most, as size counts them.
	QueueBytes int64
}

// Retries of a storage that refuses, and the pause between pieces of maintenance.
const (
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 10 * time.Second
	maintainIdle = 10 * time.Second
	// A piece of maintenance takes tens of milliseconds; the pause leaves most
	// of the writer's time to writing.
	maintainBusy = 100 * time.Millisecond
	// maxWaitingEpisodes bounds the episodes that wait: each is up to a few kB.
	maxWaitingEpisodes = 10_000
)

// Batcher stands between ingest and a storage: Write returns at once, one
// goroutine writes. While the storage refuses, the oldest batch is tried again
// and newer samples wait, up to QueueSize and QueueBytes.
type Batcher struct {
	cfg     BatchConfig
	storage Storage
	onError func(error)
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
	dropped atomic.Int64
	refused atomic.Int64
	err     atomic.Pointer[error]
	more    bool // there is more to maintain; the writer's alone

	mu       sync.Mutex
	closed   bool
	started  bool
	samples  []Sample
	waiting  int   // samples in the queue and in the writer's hands
	bytes    int64 // of those
	episodes map[string]Episode
}

// NewBatcher returns a batcher that is not yet started. The writer calls onError
// when the storage begins to refuse, and with nil when it takes again. onError may
// be nil.
func NewBatcher(cfg BatchConfig, storage Storage, onError func(error)) *Batcher {
	if onError == nil {
		onError = func(error) {}
	}
	return &Batcher{
		cfg: cfg, storage: storage, onError: onError, episodes: map[string]Episode{},
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// Write takes copies of the samples, as many as there is room for.
func (b *Batcher) Write(batch []Sample) {
	full := false
	for len(batch) > 0 {
		// As a rule, one turn takes all: nothing is counted with the lock held.
		n, bytes := 0, int64(0)
		for n < len(batch) && batch[n].storable() {
			bytes += batch[n].size()
			n++
		}
		full = b.put(batch[:n], bytes)
		if n < len(batch) {
			b.refused.Add(1)
			n++
		}
		batch = batch[n:]
	}
	if full {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

// put takes samples of so many bytes, as many as there is room for, and reports
// whether a transaction is full.
func (b *Batcher) put(list []Sample, bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(list), max(b.cfg.QueueSize-b.waiting, 0))
	if b.closed {
		n = 0
	}
	for i := len(list) - 1; i >= 0 && (i >= n || b.bytes+bytes > b.cfg.QueueBytes); i-- {
		bytes -= list[i].size()
		n = min(n, i)
	}
	b.samples = append(b.samples, list[:n]...)
	b.waiting += n
	b.bytes += bytes
	b.dropped.Add(int64(len(list) - n))
	return len(b.samples) >= b.cfg.MaxSamples
}

// WriteEpisode takes a record, which replaces an earlier one of the same ID.
func (b *Batcher) WriteEpisode(e Episode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.episodes[e.ID]; b.closed || (!known && len(b.episodes) >= maxWaitingEpisodes) {
		b.dropped.Add(1)
		return
	}
	b.episodes[e.ID] = e
}

// Drop counts samples that the storage leaves out of a batch.
func (b *Batcher) Drop(n int64) { b.dropped.Add(n) }

// Dropped returns how many samples and episodes were not kept.
func (b *Batcher) Dropped() int64 { return b.dropped.Load() }

// Refused returns how many samples were not kept for what they are called, which
// is no fault of the storage.
func (b *Batcher) Refused() int64 { return b.refused.Load() }

// Err returns why the storage did not take the last batch, nil when it did.
func (b *Batcher) Err() error {
	if err := b.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Start starts the writer.
func (b *Batcher) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = true
	go b.run()
}

// shutdownTimeout bounds the last writes where the Collector does not: its context
// for shutdown has no deadline. Kubernetes kills after 30 s.
const shutdownTimeout = 10 * time.Second

// Shutdown writes the queue, as far as the storage takes it before ctx ends or
// 10 s are over, and ends the writer. It counts the rest as dropped.
func (b *Batcher) Shutdown(ctx context.Context) error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	started := b.started
	b.mu.Unlock()
	if first {
		close(b.stop)
	}
	if started {
		<-b.done
	}
	limited, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	b.more = false
	err := b.writeAll(limited, b.storage.Append)
	samples, episodes := b.take()
	b.dropped.Add(int64(len(samples) + len(episodes)))
	b.release(samples)
	if limited.Err() != nil && ctx.Err() == nil {
		return nil // there was more than fits into the time, which is counted
	}
	return err
}

// take returns what waits.
func (b *Batcher) take() ([]Sample, []Episode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	samples := b.samples
	b.samples = nil
	var episodes []Episode
	for _, e := range b.episodes {
		episodes = append(episodes, e)
	}
	clear(b.episodes)
	return samples, episodes
}

// release lets go of the texts of samples that wait no longer, and of their room.
func (b *Batcher) release(samples []Sample) {
	var bytes int64
	for i := range samples {
		bytes += samples[i].size()
	}
	clear(samples)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting -= len(samples)
	b.bytes -= bytes
}

// giveBack puts what could not be written in front of what came since.
func (b *Batcher) giveBack(samples []Sample, episodes []Episode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.samples = append(samples, b.samples...)
	for _, e := range episodes {
		if _, newer := b.episodes[e.ID]; !newer {
			b.episodes[e.ID] = e
		}
	}
}

func (b *Batcher) run() {
	defer close(b.done)
	// A write under way ends by itself after a stop: each piece is bounded, and
	// the storage's own waits are short.
	ctx := context.Background()
	age := time.NewTicker(b.cfg.MaxAge)
	defer age.Stop()
	maintain := time.NewTimer(maintainBusy)
	defer maintain.Stop()
	for {
		select {
		case <-b.stop:
			return
		case <-b.wake:
		case <-age.C:
		case <-maintain.C:
			b.maintain(ctx)
			maintain.Reset(maintainIdle)
			if b.more {
				maintain.Reset(maintainBusy)
			}
			continue
		}
		if b.writeAll(ctx, b.write) != nil {
			return
		}
	}
}

// maintain does a piece of what is not writing.
func (b *Batcher) maintain(ctx context.Context) {
	more, err := b.storage.Maintain(ctx)
	if b.more = more && err == nil; err != nil {
		b.report(err)
	}
}

// writeAll writes what waits, a transaction at a time. What is left when that fails waits again.
func (b *Batcher) writeAll(ctx context.Context, write func(context.Context, []Sample, []Episode) error) error {
	samples, episodes := b.take()
	for i := 0; i < len(samples) || len(episodes) > 0; i += b.cfg.MaxSamples {
		batch := samples[i:min(i+b.cfg.MaxSamples, len(samples))]
		err := ctx.Err()
		if err == nil {
			err = write(ctx, batch, episodes)
		}
		if err != nil {
			b.giveBack(samples[i:], episodes)
			return err
		}
		episodes = nil
		b.release(batch)
		if b.more {
			// A piece for each batch, or a flood would grow the file beyond its bound.
			b.maintain(ctx)
		}
	}
	return nil
}

var errStopped = errors.New("the batcher was stopped")

// write stores a batch, however often that takes, until the batcher is stopped.
func (b *Batcher) write(ctx context.Context, samples []Sample, episodes []Episode) error {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		select {
		case <-b.stop:
			return errStopped
		default:
		}
		err := b.storage.Append(ctx, samples, episodes)
		if b.report(err); err == nil {
			return nil
		}
		select {
		case <-b.stop:
			return errStopped
		case <-time.After(pause):
		}
		// Perhaps there is room again once something old has gone.
		if _, err := b.storage.Maintain(ctx); err != nil && !errors.Is(err, b.Err()) {
			b.report(err)
		}
	}
}

// report stores the result of the last write and reports a change.
func (b *Batcher) report(err error) {
	before := b.Err()
	if err == nil {
		b.err.Store(nil)
		if before != nil {
			b.onError(nil)
		}
		return
	}
	b.err.Store(&err)
	if before == nil || before.Error() != err.Error() {
		b.onError(err)
	}
}
