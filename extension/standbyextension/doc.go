// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package standbyextension lets two gateways serve one cluster. One is active, by a Lease
// or a lock on a file. The other holds a copy of its state, hands connections on to it, and
// takes its place.
package standbyextension // import "github.com/gpu-collector/gpu-collector/extension/standbyextension"
