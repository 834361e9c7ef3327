// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package expositionextension keeps the table of a diff processor, and serves it to
// Prometheus.
package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"
