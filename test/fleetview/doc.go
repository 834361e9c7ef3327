// SPDX-License-Identifier: Apache-2.0

// Package fleetview runs one suite of questions about the past against the
// fleet view's API on each storage: SQLite, a real Prometheus, a real
// VictoriaMetrics.
package fleetview // import "github.com/gpu-collector/gpu-collector/test/fleetview"
