// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package fleetviewextension holds the latest views that a fleet_view exporter
// writes and the history, and serves both: a REST API, a live stream and a web
// page.
package fleetviewextension // import "github.com/gpu-collector/gpu-collector/extension/fleetviewextension"
