// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
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
	// ClusterShare in (0,1] is the part of both that the other clusters leave which one
	// cluster may have; 0 is all of it.
	ClusterShare float64
}

// ErrBehind says that the storage is slower than what comes.
var ErrBehind = errors.New("samples come faster than they are written, so that some are left out: keep fewer, or use a faster disk")

// ErrStuck says that the storage has not answered for a while.
var ErrStuck = errors.New("a write has not ended for half a minute, so that all that comes waits in memory: look at the disk")

const (
	// behindFor is how long ErrBehind lasts after the last item that was left out.
	behindFor = time.Minute
	// stuckAfter is how long a write may take. A batch of 20,000 samples takes some
	// 0.2 s, and a storage that refuses answers within a second.
	stuckAfter = 30 * time.Second
)

// Retries of a storage that refuses, and the pause between pieces of maintenance.
const (
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 10 * time.Second
	maintainIdle = 10 * time.Second
	// A piece of maintenance takes tens of milliseconds; the pause leaves most
	// of the writer's time to writing.
	maintainBusy = 100 * time.Millisecond
)

// Bounds of the episodes that wait. They have room of their own, which no sample takes.
const (
	maxWaitingEpisodes     = 10_000
	maxWaitingEpisodeBytes = 32 << 20
)

// Batcher stands between ingest and a storage: Write returns at once, one
// goroutine writes. While the storage refuses, the oldest batch is tried again
// and newer samples wait, up to QueueSize and QueueBytes. Episodes go first.
type Batcher struct {
	cfg     BatchConfig
	storage Storage
	onError func(error)
	wake    chan struct{}
	stop    chan struct{}
	done    chan struct{}
	// Samples, and episodes, that there was no room for or that the storage left out.
	dropped, droppedEpisodes atomic.Int64
	refused                  atomic.Int64
	lost                     atomic.Int64 // when there was no room last, Unix nanoseconds
	began                    atomic.Int64 // when the write under way began, Unix nanoseconds; 0 for none
	err                      atomic.Pointer[error]

	more     bool           // there is more to maintain; the writer's alone
	watching sync.WaitGroup // on watch

	telling sync.Mutex // one at a time tells, so that the last word is the newest
	told    string     // the error that was told last; telling is held

	mu      sync.Mutex
	closed  bool
	started bool
	samples []Sample
	// By cluster, the samples in the queue and in the writer's hands, and their bytes.
	places, bytes *fairshare.Ledger[string]
	episodes      map[string]Episode
	// By cluster, the episodes that wait, and their bytes.
	episodePlaces, episodeBytes *fairshare.Ledger[string]
	spare                       []Sample
}

// NewBatcher returns a batcher that is not yet started. It calls onError when Err
// changes, with nil when all is well again; one call at a time, and none once Shutdown
// has returned. onError may be nil.
func NewBatcher(cfg BatchConfig, storage Storage, onError func(error)) *Batcher {
	if onError == nil {
		onError = func(error) {}
	}
	return &Batcher{
		cfg: cfg, storage: storage, onError: onError, episodes: map[string]Episode{},
		places: fairshare.New[string](cfg.QueueSize, cfg.ClusterShare), bytes: fairshare.New[string](int(cfg.QueueBytes), cfg.ClusterShare),
		episodePlaces: fairshare.New[string](maxWaitingEpisodes, cfg.ClusterShare), episodeBytes: fairshare.New[string](maxWaitingEpisodeBytes, cfg.ClusterShare),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// Write takes copies of the samples, as many as there is room for.
func (b *Batcher) Write(batch []Sample) {
	full := false
	for len(batch) > 0 {
		// As a rule, one turn takes all: nothing is counted with the lock held.
		n, bytes := 0, 0
		for n < len(batch) && batch[n].Cluster == batch[0].Cluster && batch[n].storable() {
			bytes += batch[n].size()
			n++
		}
		full = b.put(batch[:n], bytes) || full
		if n < len(batch) && !batch[n].storable() {
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

// put takes samples of one cluster and so many bytes, as many as there is room for, and
// reports whether a transaction is full.
func (b *Batcher) put(list []Sample, bytes int) bool {
	if len(list) == 0 {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	cluster, n := list[0].Cluster, 0
	if !b.closed {
		n = min(len(list), max(b.places.Room(cluster), 0))
	}
	room := b.bytes.Room(cluster)
	for i := len(list) - 1; i >= 0 && (i >= n || bytes > room); i-- {
		bytes -= list[i].size()
		n = min(n, i)
	}
	if n > 0 {
		b.samples = append(b.samples, list[:n]...)
		b.places.Hold(cluster, n)
		b.bytes.Hold(cluster, bytes)
	}
	if n < len(list) {
		b.dropped.Add(int64(len(list) - n))
		b.lose()
	}
	return len(b.samples) >= b.cfg.MaxSamples
}

// size is how many bytes an episode takes.
func (e *Episode) size() int {
	return int(unsafe.Sizeof(*e)) + len(e.Cluster) + len(e.ID) + len(e.Record)
}

// WriteEpisode takes a record in the place of an earlier one of the same id. One that
// there is no room for leaves the earlier one.
func (b *Batcher) WriteEpisode(e Episode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.holdEpisode(&e) {
		b.droppedEpisodes.Add(1)
		b.lose()
	}
}

// lose notes that there is no room. While the storage refuses, that is why.
func (b *Batcher) lose() {
	if b.err.Load() == nil {
		b.lost.Store(time.Now().UnixNano())
	}
}

// holdEpisode takes an episode if its cluster has room for it. mu is held.
func (b *Batcher) holdEpisode(e *Episode) bool {
	before, known := b.episodes[e.ID]
	if known {
		b.letGo(&before)
	}
	if !b.episodePlaces.TakeAll(e.Cluster, 1) {
		if known {
			b.keep(&before)
		}
		return false
	}
	if !b.episodeBytes.TakeAll(e.Cluster, e.size()) {
		b.episodePlaces.Give(e.Cluster, 1)
		if known {
			b.keep(&before)
		}
		return false
	}
	b.episodes[e.ID] = *e
	return true
}

// keep holds the room of an episode that had it before. mu is held.
func (b *Batcher) keep(e *Episode) {
	b.episodePlaces.Hold(e.Cluster, 1)
	b.episodeBytes.Hold(e.Cluster, e.size())
}

// letGo gives the room of an episode back. mu is held.
func (b *Batcher) letGo(e *Episode) {
	b.episodePlaces.Give(e.Cluster, 1)
	b.episodeBytes.Give(e.Cluster, e.size())
}

// Drop counts samples that the storage leaves out of a batch.
func (b *Batcher) Drop(n int64) { b.dropped.Add(n) }

// Dropped returns how many samples and episodes were not kept.
func (b *Batcher) Dropped() int64 { return b.dropped.Load() + b.droppedEpisodes.Load() }

// DroppedEpisodes returns how many of these were episodes.
func (b *Batcher) DroppedEpisodes() int64 { return b.droppedEpisodes.Load() }

// Refused returns how many samples were not kept for what they are called, which
// is no fault of the storage.
func (b *Batcher) Refused() int64 { return b.refused.Load() }

// Err returns why the storage does not take all that comes, nil while it does.
func (b *Batcher) Err() error { return b.errAt(time.Now()) }

func (b *Batcher) errAt(now time.Time) error {
	if err := b.err.Load(); err != nil {
		return *err
	}
	if began := b.began.Load(); began != 0 && now.Sub(time.Unix(0, began)) >= stuckAfter {
		return ErrStuck
	}
	if lost := b.lost.Load(); lost != 0 && now.Sub(time.Unix(0, lost)) < behindFor {
		return ErrBehind
	}
	return nil
}

// tell tells of a change of Err.
func (b *Batcher) tell(now time.Time) {
	b.telling.Lock()
	defer b.telling.Unlock()
	err, text := b.errAt(now), ""
	if err != nil {
		text = err.Error()
	}
	if text != b.told {
		b.told = text
		b.onError(err)
	}
}

// Start starts the writer.
func (b *Batcher) Start() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.started = true
	go b.run()
	b.watching.Go(b.watch)
}

// watch tells of what the writer cannot tell of: it may be in the middle of a write.
func (b *Batcher) watch() {
	age := time.NewTicker(b.cfg.MaxAge)
	defer age.Stop()
	for {
		select {
		case <-b.stop:
			return
		case now := <-age.C:
			b.tell(now)
		}
	}
}

// shutdownTimeout bounds the last writes where the Collector does not: its context
// for shutdown has no deadline. Kubernetes kills after 30 s.
const shutdownTimeout = 10 * time.Second

// Shutdown writes the queue, episodes first, as far as the storage takes it before ctx
// ends or 10 s are over, and ends the writer. It counts the rest as dropped.
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
		b.watching.Wait()
	}
	limited, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	err := b.appendEpisodes(limited)
	if err != nil {
		b.droppedEpisodes.Add(int64(len(b.takeEpisodes())))
	}
	samples := b.take()
	for i := 0; i < len(samples); i += b.cfg.MaxSamples {
		if err == nil {
			err = limited.Err()
		}
		if err == nil {
			err = b.storage.Append(limited, samples[i:min(i+b.cfg.MaxSamples, len(samples))], nil)
		}
		if err != nil {
			b.dropped.Add(int64(len(samples) - i))
			break
		}
	}
	b.finish(samples)
	if limited.Err() != nil && ctx.Err() == nil {
		return nil // there was more than fits into the time, which is counted
	}
	return err
}

// take returns the samples that wait. Another queue takes its place.
func (b *Batcher) take() []Sample {
	b.mu.Lock()
	defer b.mu.Unlock()
	samples := b.samples
	b.samples, b.spare = b.spare[:0], nil
	return samples
}

// takeEpisodes returns the episodes that wait.
func (b *Batcher) takeEpisodes() (list []Episode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.episodes {
		e := b.episodes[id]
		b.letGo(&e)
		list = append(list, e)
	}
	clear(b.episodes)
	return list
}

// appendEpisodes writes the episodes that wait, in a transaction of their own. Episodes
// that the storage refuses wait on, unless a newer record has replaced them.
func (b *Batcher) appendEpisodes(ctx context.Context) error {
	list := b.takeEpisodes()
	if len(list) == 0 {
		return nil
	}
	err := b.append(ctx, nil, list)
	if err == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range list {
		if _, newer := b.episodes[list[i].ID]; !newer {
			b.episodes[list[i].ID] = list[i]
			b.keep(&list[i])
		}
	}
	return err
}

// append has the storage write, and takes note of how long that takes.
func (b *Batcher) append(ctx context.Context, samples []Sample, episodes []Episode) error {
	b.began.Store(time.Now().UnixNano())
	defer b.began.Store(0)
	return b.storage.Append(ctx, samples, episodes)
}

// finish makes room for as many samples as were taken, and keeps their slice
// for the next turn.
func (b *Batcher) finish(samples []Sample) {
	b.release(samples)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reuse(samples)
}

// reuse keeps the slice of samples that were written for the next ones. Few samples
// let go of the room that many took. mu is held.
func (b *Batcher) reuse(samples []Sample) {
	if cap(samples) <= max(b.cfg.MaxSamples, 4*len(samples)) {
		b.spare = samples[:0]
	}
}

// release drops the texts of samples that wait no longer, and gives their room back.
func (b *Batcher) release(samples []Sample) {
	for rest := samples; len(rest) > 0; {
		n, bytes := 0, 0
		for n < len(rest) && rest[n].Cluster == rest[0].Cluster {
			bytes += rest[n].size()
			n++
		}
		b.places.Give(rest[0].Cluster, n)
		b.bytes.Give(rest[0].Cluster, bytes)
		rest = rest[n:]
	}
	clear(samples)
}

// giveBack puts what could not be written in front of what came since.
func (b *Batcher) giveBack(samples []Sample) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.samples = append(samples, b.samples...)
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
		if !b.writeAll(ctx) {
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

// writeAll writes what waits and reports false when the batcher was stopped.
func (b *Batcher) writeAll(ctx context.Context) bool {
	samples := b.take()
	for i := 0; i == 0 || i < len(samples); i += b.cfg.MaxSamples {
		batch := samples[i:min(i+b.cfg.MaxSamples, len(samples))]
		if b.stopped() || !b.write(ctx, batch) {
			b.giveBack(samples[i:])
			return false
		}
		b.release(batch)
		if b.more && len(samples) > 0 {
			// A piece for each batch, or a flood would grow the file beyond its bound.
			b.maintain(ctx)
		}
	}
	b.mu.Lock()
	b.reuse(samples)
	b.mu.Unlock()
	return true
}

func (b *Batcher) stopped() bool {
	select {
	case <-b.stop:
		return true
	default:
		return false
	}
}

// write stores a batch, however often that takes. Before each try come the episodes
// that wait: they are few, and matter more.
func (b *Batcher) write(ctx context.Context, samples []Sample) bool {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := b.appendEpisodes(ctx)
		if err == nil && len(samples) > 0 {
			err = b.append(ctx, samples, nil)
		}
		b.report(err)
		if err == nil {
			return true
		}
		select {
		case <-b.stop:
			return false
		case <-time.After(pause):
		}
		// Perhaps there is room again once something old has gone.
		if _, err := b.storage.Maintain(ctx); err != nil && !errors.Is(err, b.Err()) {
			b.report(err)
		}
	}
}

// report remembers how the last write went and tells of a change.
func (b *Batcher) report(err error) {
	if err == nil {
		b.err.Store(nil)
	} else {
		b.err.Store(&err)
	}
	b.tell(time.Now())
}
