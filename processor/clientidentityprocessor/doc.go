// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package clientidentityprocessor holds each push to the cluster, and the node,
// of the client that was authenticated for it.
package clientidentityprocessor // import "github.com/gpu-collector/gpu-collector/processor/clientidentityprocessor"
