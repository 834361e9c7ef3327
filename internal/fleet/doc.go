// SPDX-License-Identifier: Apache-2.0

// Package fleet keeps the latest view of each node and its past, and answers questions about
// them.
// The exporter and the extension of the fleet view and the command `top` call it. It must
// not know how a verdict came about.
// Its packages: fleetstate has the views; fleethistory the past; fleetapi the API; fleettop
// a screen in a terminal.
package fleet // import "github.com/gpu-collector/gpu-collector/internal/fleet"
