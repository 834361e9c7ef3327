// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package fleetviewexporter keeps the latest view of every node and GPU, their
// groups and episodes. A fleet_view extension holds and serves the views. It takes
// whole reports as well as differences.
package fleetviewexporter // import "github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
