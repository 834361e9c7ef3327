// SPDX-License-Identifier: Apache-2.0

package statefile

import (
	"crypto/sha256"
	"errors"
	"time"

	"go.uber.org/zap"
)

const (
	// diskTimeout is how long a start and a shutdown wait for a disk that hangs.
	diskTimeout = 5 * time.Second
	// A change is written at once. The pause after a write doubles while changes go on, up
	// to once a minute: a storm of changes is not a storm of writes.
	firstPause, lastPause = 2 * time.Second, time.Minute
)

// State is what a component knows and should not forget. Once started, the keeper asks for it
// from a goroutine of its own.
type State interface {
	// Snapshot is what Restore needs. One that is as the last is not written.
	Snapshot() ([]byte, error)
	// Restore takes up what an earlier process' Snapshot returned. What it cannot take up
	// is as in a new process.
	Restore(data []byte, now time.Time) error
}

// Keeper writes a state to its file from a goroutine of its own: a disk may hang. A nil
// Keeper keeps nothing.
type Keeper struct {
	state State
	file  file
	log   *zap.Logger
	saved [sha256.Size]byte // of the last snapshot

	wake chan struct{}
	stop chan struct{}
	done chan struct{}

	failing bool
}

// Start restores what the component with this id kept in the directory, and keeps it from
// now on. The form names content and version, without spaces. Whatever is wrong with the
// directory or file is logged, and no error. The keeper is nil where the directory
// is empty, or the file cannot be read: it is not replaced either.
func Start(directory, id, form string, state State, now time.Time, log *zap.Logger) *Keeper {
	if directory == "" {
		return nil
	}
	k := newKeeper(newFile(directory, id, form), state, log)
	return k.start(k.file.read, now)
}

func newKeeper(f file, state State, log *zap.Logger) *Keeper {
	return &Keeper{
		state: state, file: f, log: log.With(zap.String("file", f.path)),
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// start reads the file and begins to keep the state. Where the disk does not answer in time, the
// file is not restored, and the state is kept once the disk answers.
func (k *Keeper) start(read func() ([]byte, error), now time.Time) *Keeper {
	type content struct {
		data []byte
		err  error
	}
	got := make(chan content, 1)
	go func() {
		data, err := read()
		got <- content{data, err}
	}()
	late := time.NewTimer(diskTimeout)
	defer late.Stop()
	select {
	case c := <-got:
		if !k.restore(c.data, c.err, now) {
			return nil
		}
		_, k.saved, _ = k.snapshot()
		go k.run()
	case <-late.C:
		k.log.Warn("the state of before the restart is not used: the disk does not answer; state is kept for the next restart once it does")
		_, k.saved, _ = k.snapshot()
		go func() {
			select {
			case c := <-got:
				if k.restore(nil, c.err, now) {
					k.run()
					return
				}
			case <-k.stop:
			}
			close(k.done)
		}()
	}
	return k
}

// restore reports whether the file may be written: to write is to replace it.
func (k *Keeper) restore(data []byte, err error, now time.Time) bool {
	if err != nil && !errors.Is(err, errUnusable) {
		k.log.Warn("the state of before the restart is not used, and none is kept for the next: make the file readable or remove it, and restart", zap.Error(err))
		return false
	}
	if err == nil && data != nil {
		err = k.state.Restore(data, now)
	}
	if err == nil {
		return true
	}
	if aside, failure := k.file.setAside(); failure != nil {
		k.log.Warn("the state of before the restart is not used", zap.Error(err), zap.NamedError("not_set_aside", failure))
	} else {
		k.log.Warn("the state of before the restart is not used: the file is set aside", zap.Error(err), zap.String("set_aside", aside))
	}
	return true
}

// Changed notes that there may be something new to write. It never waits.
func (k *Keeper) Changed() {
	if k == nil {
		return
	}
	select {
	case k.wake <- struct{}{}:
	default: // it is about to be written
	}
}

func (k *Keeper) run() {
	defer close(k.done)
	defer k.write()
	pause, quiet := firstPause, time.Now()
	for {
		select {
		case <-k.wake:
		case <-k.stop:
			return
		}
		if !k.write() {
			continue
		}
		if time.Since(quiet) > lastPause {
			pause = firstPause
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-k.stop:
			timer.Stop()
			return
		}
		pause, quiet = min(2*pause, lastPause), time.Now()
	}
}

func (k *Keeper) snapshot() (data []byte, sum [sha256.Size]byte, err error) {
	data, err = k.state.Snapshot()
	return data, sha256.Sum256(data), err
}

// write reports whether there was something to write.
func (k *Keeper) write() bool {
	data, sum, err := k.snapshot()
	if err == nil && sum == k.saved {
		return false
	}
	if err == nil {
		err = k.file.write(data)
	}
	if err == nil {
		k.saved = sum
	} else if !k.failing {
		k.log.Warn("the state cannot be kept for a restart", zap.Error(err))
	}
	if err == nil && k.failing {
		k.log.Info("the state is kept for a restart again")
	}
	k.failing = err != nil
	return true
}

// Shutdown writes what is left, and does not wait long for it.
func (k *Keeper) Shutdown() {
	if k == nil {
		return
	}
	close(k.stop)
	late := time.NewTimer(diskTimeout)
	defer late.Stop()
	select {
	case <-k.done:
	case <-late.C:
		k.log.Warn("the state was not kept for the restart: the disk does not answer")
	}
}
