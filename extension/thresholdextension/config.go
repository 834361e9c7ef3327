// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"golang.org/x/net/http/httpguts"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// compatibilityIngero also speaks the headers and the API of Ingero Fleet.
const compatibilityIngero = "ingero"

// Config of the extension. One instance can be server and client middleware
// at once, as a middle tier needs it.
type Config struct {
	// Cluster that the client side names in its pushes when no straggler
	// processor in agent mode names one.
	Cluster string `mapstructure:"cluster"`
	// ClusterAuthAttribute is the attribute of the authenticated client that
	// holds its cluster; it replaces whatever the client claims.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	// NodeAuthAttribute is the one that holds its node. Where both are the same,
	// the value is `cluster/node`; `*` is for a client that speaks for all.
	NodeAuthAttribute string `mapstructure:"node_auth_attribute"`
	// Headers are the names on the wire; both ends must agree.
	Headers HeadersConfig `mapstructure:"headers"`
	// Compatibility lists further protocols that the server side speaks: ingero.
	Compatibility []string `mapstructure:"compatibility"`
	// ConsistentHash spreads the client side's gRPC pushes over the addresses
	// behind the exporter's endpoint by a request header: node, cluster or none.
	ConsistentHash string `mapstructure:"consistent_hash"`
	// ReceivedTTL is how long the client side takes a threshold for fresh that
	// came without a lifetime of its own.
	ReceivedTTL time.Duration `mapstructure:"received_ttl"`
	// API is a server of its own for the GET requests. Without it they are
	// answered on the port of each OTLP/HTTP receiver that uses the extension.
	API configoptional.Optional[confighttp.ServerConfig] `mapstructure:"api"`

	_ struct{}
}

// HeadersConfig names the request and response headers.
type HeadersConfig struct {
	Cluster   string `mapstructure:"cluster"`
	Node      string `mapstructure:"node"`
	Group     string `mapstructure:"group"`
	Threshold string `mapstructure:"threshold"`
	QuorumMet string `mapstructure:"quorum_met"`
	Params    string `mapstructure:"params"`
	Epoch     string `mapstructure:"epoch"`
	Resync    string `mapstructure:"resync"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	api := confighttp.NewDefaultServerConfig()
	api.NetAddr.Endpoint = "127.0.0.1:8085"
	return &Config{
		Headers: HeadersConfig{
			Cluster:   gpusemconv.HeaderCluster,
			Node:      gpusemconv.HeaderNode,
			Group:     gpusemconv.HeaderGroup,
			Threshold: gpusemconv.HeaderThreshold,
			QuorumMet: gpusemconv.HeaderQuorumMet,
			Params:    gpusemconv.HeaderParams,
			Epoch:     gpusemconv.HeaderEpoch,
			Resync:    gpusemconv.HeaderResync,
		},
		ConsistentHash: hashNone,
		ReceivedTTL:    50 * time.Second,
		API:            configoptional.Default(api),
	}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if c.Cluster != "" && !wire.ValidName(c.Cluster) {
		errs = append(errs, fmt.Errorf("`cluster` is %q, must be 1 to %d printable ASCII characters", c.Cluster, wire.MaxNameLength))
	}
	if c.NodeAuthAttribute != "" && c.ClusterAuthAttribute == "" {
		errs = append(errs, fmt.Errorf("`node_auth_attribute` is %q without `cluster_auth_attribute`, must be with it: a node is one of a cluster", c.NodeAuthAttribute))
	}
	if c.ReceivedTTL <= 0 || c.ReceivedTTL > threshold.MaxTTL {
		errs = append(errs, fmt.Errorf("`received_ttl` is %s, must be in (0s,%s]", c.ReceivedTTL, threshold.MaxTTL))
	}
	if !slices.Contains(hashes, c.ConsistentHash) {
		errs = append(errs, fmt.Errorf("`consistent_hash` is %q, must be one of %s", c.ConsistentHash, strings.Join(hashes, ", ")))
	}
	for _, name := range c.Compatibility {
		if name != compatibilityIngero {
			errs = append(errs, fmt.Errorf("`compatibility` has %q, only %q is known", name, compatibilityIngero))
		}
	}
	seen := map[string]string{}
	for _, h := range c.Headers.list() {
		name := strings.ToLower(h.name)
		switch {
		case !httpguts.ValidHeaderFieldName(h.name):
			errs = append(errs, fmt.Errorf("`headers::%s` is %q, must be a valid HTTP header name", h.key, h.name))
		case strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin"):
			errs = append(errs, fmt.Errorf("`headers::%s` is %q, gRPC reserves the prefix grpc- and the suffix -bin", h.key, h.name))
		case seen[name] != "":
			errs = append(errs, fmt.Errorf("`headers::%s` is %q, which `headers::%s` is already", h.key, h.name, seen[name]))
		default:
			seen[name] = h.key
		}
	}
	return errors.Join(errs...)
}

func (c *Config) rule() clientidentity.Rule {
	return clientidentity.Rule{Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute}
}

func (c *Config) ingero() bool { return slices.Contains(c.Compatibility, compatibilityIngero) }

type headerName struct{ key, name string }

func (h *HeadersConfig) list() []headerName {
	return []headerName{
		{"cluster", h.Cluster},
		{"node", h.Node},
		{"group", h.Group},
		{"threshold", h.Threshold},
		{"quorum_met", h.QuorumMet},
		{"params", h.Params},
		{"epoch", h.Epoch},
		{"resync", h.Resync},
	}
}

func (h *HeadersConfig) names() wire.Names {
	return wire.Names{
		Cluster: strings.ToLower(h.Cluster), Node: strings.ToLower(h.Node), Group: strings.ToLower(h.Group),
		Threshold: strings.ToLower(h.Threshold), QuorumMet: strings.ToLower(h.QuorumMet), Params: strings.ToLower(h.Params),
		Epoch: strings.ToLower(h.Epoch), Resync: strings.ToLower(h.Resync),
	}
}
