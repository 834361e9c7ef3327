// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
)

// History is a Store behind a Batcher.
type History struct {
	*Store
	batcher *fleethistory.Batcher
}

var (
	_ fleethistory.History = (*History)(nil)
	_ fleethistory.Storage = (*Store)(nil)
)

// NewHistory returns a history that is not yet started. onError is told when
// the file cannot be written any more, and with nil when it can again.
func NewHistory(cfg Config, batch fleethistory.BatchConfig, onError func(error)) *History {
	h := &History{}
	cfg.OnDrop = func(n int64) { h.batcher.Drop(n) }
	h.Store = New(cfg)
	h.batcher = fleethistory.NewBatcher(batch, h.Store, onError)
	return h
}

// Start starts the writer.
func (h *History) Start() { h.batcher.Start() }

// Shutdown writes what waits and closes the file.
func (h *History) Shutdown(ctx context.Context) error {
	return errors.Join(h.batcher.Shutdown(ctx), h.Close())
}

// Enabled implements fleethistory.History.
func (h *History) Enabled() bool { return true }

// Write implements fleethistory.History.
func (h *History) Write(batch []fleethistory.Sample) { h.batcher.Write(batch) }

// WriteEpisode implements fleethistory.History.
func (h *History) WriteEpisode(e fleethistory.Episode) { h.batcher.WriteEpisode(e) }

// Status implements fleethistory.History.
func (h *History) Status() fleethistory.Status {
	out := h.Store.Status()
	out.Dropped, out.Refused = h.batcher.Dropped(), h.batcher.Refused()
	if err := h.batcher.Err(); err != nil {
		out.Err = err
	}
	return out
}
