// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"fmt"

	"google.golang.org/grpc/balancer/ringhash"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// The keys that pushes are hashed by.
const (
	hashNone    = "none"
	hashNode    = "node"
	hashCluster = "cluster"
)

var hashes = []string{hashNone, hashNode, hashCluster}

// hashHeader is the request header that decides which address gets a push,
// "" when the exporter's own balancer does.
func (e *thresholdExtension) hashHeader() string {
	switch e.cfg.ConsistentHash {
	case hashNode:
		return gpusemconv.HeaderNode
	case hashCluster:
		return gpusemconv.HeaderCluster
	default:
		return ""
	}
}

// ringPoints is the most that gRPC has on a ring, so that shares differ least.
const ringPoints = 4096

// hashServiceConfig selects gRPC's ring_hash by a request header (gRFC A42, A76).
func hashServiceConfig(header string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{%q:{"requestHashHeader":%q,"minRingSize":%d}}]}`, ringhash.Name, header, ringPoints)
}
