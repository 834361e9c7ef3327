// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package ncclreceiver reports what the ranks of training jobs record of their collective
// operations, from the files of NCCL's and RCCL's Inspector plug-in.
package ncclreceiver // import "github.com/gpu-collector/gpu-collector/receiver/ncclreceiver"
