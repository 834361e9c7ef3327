// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"os"
	"sync"

	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
)

var errReleased = errors.New("NVML is released")

// session is NVML until an operator releases it. NVML keeps the devices open,
// which blocks unloading the driver and resetting a GPU; while the release
// file is there, NVML is shut down. A file works from within and from outside
// of a container, and survives a restart of either.
type session struct {
	releaseFile string
	log         *zap.Logger
	open        func() *nvml.Poller

	mu       sync.Mutex
	poller   *nvml.Poller
	closed   bool
	released bool
	// before are the generations of the pollers that were released.
	before, last uint64
}

// poll polls NVML, unless it is released. The generations go on counting.
func (s *session) poll(ctx context.Context) nvml.Report {
	release := s.wanted()
	s.mu.Lock()
	poller, closed := s.poller, s.closed
	switch {
	case closed:
	case release:
		s.poller, s.before = nil, s.last
	case poller == nil:
		poller = s.open()
		s.poller = poller
	}
	s.mu.Unlock()
	if closed {
		return nvml.Report{Err: nvml.ErrClosed}
	}
	s.logChange(release)
	if release {
		if poller != nil {
			if err := poller.Close(closeTimeout); err != nil {
				s.log.Warn("the driver cannot be unloaded yet: a call of NVML has not returned", zap.Error(err))
			}
		}
		return nvml.Report{Err: errReleased}
	}
	report := poller.Poll(ctx)
	report.Generation += s.before
	s.last = report.Generation
	return report
}

// wanted reports whether an operator asks for the driver. A file that cannot be
// looked at counts as absent.
func (s *session) wanted() bool {
	if s.releaseFile == "" {
		return false
	}
	_, err := os.Stat(s.releaseFile)
	return err == nil
}

func (s *session) logChange(release bool) {
	if release == s.released {
		return
	}
	s.released = release
	if release {
		s.log.Info("NVML is released: no GPU metrics while the file is there", zap.String("release_file", s.releaseFile))
	} else {
		s.log.Info("NVML is in use again", zap.String("release_file", s.releaseFile))
	}
}

// interrupt makes a poll that is under way, and any later one, return at once.
func (s *session) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.poller != nil {
		s.poller.Interrupt()
	}
}

func (s *session) close() error {
	s.mu.Lock()
	poller := s.poller
	s.closed, s.poller = true, nil
	s.mu.Unlock()
	if poller == nil {
		return nil
	}
	return poller.Close(closeTimeout)
}
