// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package expositionextension serves the tables of diff processors to Prometheus. It
// keeps nothing per series.
package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"
