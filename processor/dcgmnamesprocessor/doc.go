// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package dcgmnamesprocessor gives the nvml receiver's metrics the names, units and labels
// of dcgm-exporter.
package dcgmnamesprocessor // import "github.com/gpu-collector/gpu-collector/processor/dcgmnamesprocessor"
