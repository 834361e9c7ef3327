// SPDX-License-Identifier: Apache-2.0

// Package sharedinstance lets what the service makes of one component, one
// part per pipeline, be one instance.
package sharedinstance // import "github.com/gpu-collector/gpu-collector/internal/platform/sharedinstance"

import "sync"

// Instances are those of one factory. The service gives all parts of one
// component the same configuration, which is the key K. The zero value is empty.
type Instances[K comparable, T any] struct {
	mu  sync.Mutex
	all map[K]*instance[T]
}

type instance[T any] struct {
	value    T
	handles  int // guarded by Instances.mu
	start    sync.Once
	startErr error
}

// Acquire returns a new handle on the key's instance, which create makes when
// there is none.
func (s *Instances[K, T]) Acquire(key K, create func() (T, error)) (*Handle[T], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.all[key]
	if !ok {
		v, err := create()
		if err != nil {
			return nil, err
		}
		in = &instance[T]{value: v}
		if s.all == nil {
			s.all = map[K]*instance[T]{}
		}
		s.all[key] = in
	}
	in.handles++
	return &Handle[T]{instance: in, drop: func() bool { return s.drop(key, in) }}, nil
}

// drop gives a handle back and reports whether it was the last.
func (s *Instances[K, T]) drop(key K, in *instance[T]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in.handles--; in.handles > 0 {
		return false
	}
	delete(s.all, key)
	return true
}

// Handle is one pipeline's on an instance.
type Handle[T any] struct {
	instance *instance[T]
	drop     func() bool
	once     sync.Once
}

// Get returns the instance.
func (h *Handle[T]) Get() T { return h.instance.value }

// Start calls start when the handle is the first of the instance to start. All
// of them return its error.
func (h *Handle[T]) Start(start func() error) error {
	h.instance.start.Do(func() { h.instance.startErr = start() })
	return h.instance.startErr
}

// Shutdown calls stop when the handle is the last of the instance. Only the
// first call counts.
func (h *Handle[T]) Shutdown(stop func() error) error {
	var err error
	h.once.Do(func() {
		if h.drop() {
			err = stop()
		}
	})
	return err
}
