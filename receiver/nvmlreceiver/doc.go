// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package nvmlreceiver reads the state of every NVIDIA GPU of a node through
// NVML, also of those that hang or are lost, and reports it as metrics.
package nvmlreceiver // import "github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver"
