// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package ncclreceiver reports the collective operations of the training jobs of a node,
// as NCCL's and RCCL's Inspector plug-in writes them into files.
package ncclreceiver // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver"
