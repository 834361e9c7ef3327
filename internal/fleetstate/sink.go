// SPDX-License-Identifier: Apache-2.0

package fleetstate

import "github.com/gpu-collector/gpu-collector/internal/fleethistory"

// Sink takes what the fleet_view exporter reads; the extension is one.
type Sink interface {
	// State returns the store of the latest views.
	State() *Store
	// History returns the store of past telemetry, never nil.
	History() fleethistory.History
}
