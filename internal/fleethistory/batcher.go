// SPDX-License-Identifier: Apache-2.0

package fleethistory

import (
	"context"
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
