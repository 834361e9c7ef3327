// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/hostextension"
)

const (
	storageName = "health"
	healthKey   = "snapshot"
	rosterKey   = "gpus"
	// setAside is added to the key under which a value is left that is not used.
	setAside = ".set_aside"
	// A storm of Xids is not a storm of writes.
	keepInterval = 5 * time.Second
	storeTimeout = 5 * time.Second
	// A storage that hangs delays a shutdown by at most this.
	lastWriteTimeout = time.Second
)

// book is something that a restart should not forget. It may be called from
// several goroutines.
type book interface {
	Revision() uint64
	Snapshot() (data []byte, revision uint64, err error)
	Restore(data []byte, now time.Time) error
}

// kept is a book and the revision of it that was written last.
type kept struct {
	book  book
	key   string
	saved uint64
}

// keeper writes the books to the storage, when they changed, from a goroutine
// of its own: a disk may hang as a driver may.
type keeper struct {
	books []*kept
	log   *zap.Logger

	client storage.Client // nil: nothing is kept
	wake   chan struct{}
	stop   chan struct{}
	done   chan struct{}

	failing bool
}

func newKeeper(health, gpus book, log *zap.Logger) keeper {
	return keeper{books: []*kept{{book: health, key: healthKey}, {book: gpus, key: rosterKey}}, log: log}
}

// start restores what was kept, and keeps it from now on. Only a storage that
// the configuration should not name is an error; without what is in it the
// GPUs are still worth watching.
func (k *keeper) start(ctx context.Context, host component.Host, id *component.ID, owner component.ID, now time.Time) error {
	if id == nil {
		return nil
	}
	extension, err := hostextension.Find[storage.Extension](host, "storage", "storage", *id)
	if err != nil {
		return err
	}
	client, err := extension.GetClient(ctx, component.KindReceiver, owner, storageName)
	if err != nil {
		k.log.Warn("what is known of the GPUs will not survive a restart: the storage cannot be opened", zap.Error(err))
		return nil
	}
	k.restore(ctx, client, now)
	k.client = client
	k.wake, k.stop, k.done = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go k.run() //nolint:gosec // G118: it outlives the start, whose context ends with it
	return nil
}

func (k *keeper) restore(ctx context.Context, client storage.Client, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	for _, b := range k.books {
		data, err := client.Get(ctx, b.key)
		if err == nil && len(data) > 0 {
			if err = b.book.Restore(data, now); err != nil {
				err = errors.Join(err, client.Set(ctx, b.key+setAside, data))
			}
		}
		if err != nil {
			k.log.Warn("what was known of the GPUs before the restart is not used", zap.String("key", b.key), zap.Error(err))
		}
		b.saved = b.book.Revision()
	}
}

// changed tells that there may be something new to write. It never waits.
func (k *keeper) changed() {
	select {
	case k.wake <- struct{}{}:
	default: // nobody keeps anything, or is about to
	}
}

func (k *keeper) run() {
	defer close(k.done)
	ctx := context.Background()
	for {
		select {
		case <-k.wake:
			if !k.write(ctx) {
				continue
			}
			pause := time.NewTimer(keepInterval)
			select {
			case <-pause.C:
				continue
			case <-k.stop:
				pause.Stop()
			}
		case <-k.stop:
		}
		k.write(ctx)
		return
	}
}

// write reports whether there was something to write.
func (k *keeper) write(ctx context.Context) (wrote bool) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	var failure error
	for _, b := range k.books {
		if b.book.Revision() == b.saved {
			continue
		}
		wrote = true
		data, revision, err := b.book.Snapshot()
		if err == nil {
			err = k.client.Set(ctx, b.key, data)
		}
		if err == nil {
			b.saved = revision
		}
		failure = errors.Join(failure, err)
	}
	if failure != nil && !k.failing {
		k.log.Warn("what is known of the GPUs cannot be kept for a restart", zap.Error(failure))
	}
	k.failing = failure != nil
	return wrote
}

// shutdown writes what is left, and does not wait long for it.
func (k *keeper) shutdown(ctx context.Context) error {
	if k.client == nil {
		return nil
	}
	close(k.stop)
	late := time.NewTimer(lastWriteTimeout)
	defer late.Stop()
	select {
	case <-k.done:
		return k.client.Close(ctx)
	case <-late.C:
		k.log.Warn("what is known of the GPUs was not kept: the storage does not answer")
		return nil
	}
}
