// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package fabricreceiver reports the network and RDMA ports of a node, which of them is
// near to which GPU, and what the node's host does.
package fabricreceiver // import "github.com/gpu-collector/gpu-collector/receiver/fabricreceiver"
