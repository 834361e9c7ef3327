// SPDX-License-Identifier: Apache-2.0

package fleetstate

import (
	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
)

// Sink takes what the fleet_view exporter reads; the extension is one.
type Sink interface {
	// State returns the store of the latest views.
	State() *Store
	// History returns the store of past telemetry, never nil.
	History() fleethistory.History
	// WatchHistory calls f when the history begins not to take all that comes, with why,
	// and with nil when it does again; at once where that is so already. One call at a
	// time, and none once stop has returned. f must not call stop.
	WatchHistory(f func(error)) (stop func())
	// Ledger returns the history of the boards, never nil.
	Ledger() *ledger.Book
	// Its book is never nil.
	people.Keeper
}
