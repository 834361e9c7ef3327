// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/ringhash"
	"google.golang.org/grpc/serviceconfig"

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

const (
	hashPolicy = "gpu_ring_hash"
	// pointsPerAddress on the ring: shares differ by about 1/sqrt(160), 8 %.
	pointsPerAddress = 160
)

func hashServiceConfig(header string) string {
	return fmt.Sprintf(`{"loadBalancingConfig":[{%q:{"requestHashHeader":%q}}]}`, hashPolicy, header)
}

func init() { balancer.Register(hashBuilder{balancer.Get(ringhash.Name)}) }

// hashBuilder is gRPC's ring_hash (gRFC A42, A76) with a ring that grows with
// the number of addresses. ring_hash itself divides a ring of constant size:
// when one of three addresses leaves, the other two get half as many points
// again, and every sixth of their keys changes sides without need.
type hashBuilder struct{ balancer.Builder }

// Name implements balancer.Builder.
func (hashBuilder) Name() string { return hashPolicy }

// hashConfig is the policy's configuration as the service config has it.
type hashConfig struct {
	serviceconfig.LoadBalancingConfig `json:"-"`

	RequestHashHeader string `json:"requestHashHeader"`
	MinRingSize       int    `json:"minRingSize"`
	MaxRingSize       int    `json:"maxRingSize"`
}

// ParseConfig implements balancer.ConfigParser.
func (hashBuilder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c := &hashConfig{}
	return c, json.Unmarshal(text, c)
}

// Build implements balancer.Builder.
func (b hashBuilder) Build(cc balancer.ClientConn, opts balancer.BuildOptions) balancer.Balancer {
	return &hashBalancer{Balancer: b.Builder.Build(cc, opts), parser: b.Builder.(balancer.ConfigParser)}
}

type hashBalancer struct {
	balancer.Balancer
	parser balancer.ConfigParser
}

// UpdateClientConnState implements balancer.Balancer.
func (b *hashBalancer) UpdateClientConnState(state balancer.ClientConnState) error {
	c, ok := state.BalancerConfig.(*hashConfig)
	if !ok {
		return fmt.Errorf("unexpected balancer config %T", state.BalancerConfig)
	}
	sized := *c
	sized.MinRingSize = pointsPerAddress * max(len(state.ResolverState.Endpoints), 1)
	sized.MaxRingSize = sized.MinRingSize
	text, err := json.Marshal(&sized)
	if err != nil {
		return err
	}
	if state.BalancerConfig, err = b.parser.ParseConfig(text); err != nil {
		return err
	}
	return b.Balancer.UpdateClientConnState(state)
}
