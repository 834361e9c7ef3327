// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package fleetviewexporter keeps the latest view of every node and GPU, their
// groups and episodes, in a fleet_view extension, which serves it. It takes
// whole reports as well as differences.
package fleetviewexporter // import "github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
