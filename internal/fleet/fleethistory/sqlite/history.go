// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// History is a Store behind a Batcher.
type History struct {
	*Store
	*fleethistory.Batcher
}

var (
	_ fleethistory.History = (*History)(nil)
	_ fleethistory.Storage = (*Store)(nil)
)

// NewHistory returns a history that is not yet started. onError is called when
// the file cannot be written any more, and with nil when it can again.
func NewHistory(cfg Config, batch fleethistory.BatchConfig, onError func(error)) *History {
	h := &History{}
	cfg.OnDrop = func(n int64) { h.Drop(n) }
	h.Store = New(cfg)
	h.Batcher = fleethistory.NewBatcher(batch, h.Store, onError)
	return h
}

// Shutdown writes what waits and closes the file.
func (h *History) Shutdown(ctx context.Context) error {
	return errors.Join(h.Batcher.Shutdown(ctx), h.Close())
}

// Enabled implements fleethistory.History.
func (h *History) Enabled() bool { return true }

// Status implements fleethistory.History.
func (h *History) Status() fleethistory.Status {
	out := h.Store.Status()
	out.Dropped, out.Refused = h.Dropped(), h.Refused()
	if err := h.Err(); err != nil {
		out.Err = err
	}
	return out
}
