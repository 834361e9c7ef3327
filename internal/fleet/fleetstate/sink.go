// SPDX-License-Identifier: Apache-2.0

package fleetstate

import "github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"

// Source has the latest views; the fleet_view extension is one.
type Source interface {
	// State returns the store of the latest views.
	State() *Store
}

// Sink takes what the fleet_view exporter reads; the extension is one.
type Sink interface {
	Source
	// History returns the store of past telemetry, never nil.
	History() fleethistory.History
}
