// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lock is how the processes agree who is active.
type lock interface {
	// acquire waits until the lock is held. Its error is the error of ctx, or an error that
	// waiting does not heal.
	acquire(ctx context.Context) error
	// holds reports whether nobody else can hold it now.
	holds() bool
	// lost is closed when this process loses the lock.
	lost() <-chan struct{}
	// release lets go of it, for the next one not to wait.
	release(ctx context.Context)
}

const (
	fileRetry = 100 * time.Millisecond
	fileLook  = time.Second
)

// fileLock is a lock of flock(2), which ends with the process that holds it.
type fileLock struct {
	path, name string
	gone       chan struct{}

	mu   sync.Mutex
	file *os.File // nil: not held
	stop chan struct{}
}

func newFileLock(path, name string) *fileLock {
	return &fileLock{path: path, name: name, gone: make(chan struct{})}
}

func (l *fileLock) acquire(ctx context.Context) error {
	for {
		held, err := l.try()
		if held || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(fileRetry):
		}
	}
}

func (l *fileLock) try() (held bool, err error) {
	f, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, fmt.Errorf("`lock::file`: %w", err)
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return false, f.Close()
	case err != nil:
		return false, errors.Join(fmt.Errorf("`lock::file` %s cannot be locked: %w", l.path, err), f.Close())
	}
	// For people. That it cannot be written changes nothing.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(l.name+"\n"), 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.file, l.stop = f, make(chan struct{})
	go l.watch(f, l.stop)
	return true, nil
}

// watch looks whether the name is still that of the locked file. Another process can make
// and lock a new file where the old one was removed.
func (l *fileLock) watch(f *os.File, stop chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(fileLook):
		}
		mine, err := f.Stat()
		now, gone := os.Stat(l.path)
		if err != nil || errors.Is(gone, os.ErrNotExist) || gone == nil && !os.SameFile(mine, now) {
			l.mu.Lock()
			l.file = nil
			l.mu.Unlock()
			close(l.gone)
			_ = f.Close()
			return
		}
	}
}

func (l *fileLock) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file != nil
}

func (l *fileLock) lost() <-chan struct{} { return l.gone }

func (l *fileLock) release(context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		close(l.stop)
		_ = l.file.Close() // which lets go of the lock
		l.file = nil
	}
}
