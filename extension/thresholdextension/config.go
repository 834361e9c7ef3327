// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"golang.org/x/net/http/httpguts"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
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
	// NodeAuthAttribute is the attribute that holds its node. Where both attributes
	// are the same, the value is `cluster/node`; `*` is for a client that speaks for
	// all.
	NodeAuthAttribute string `mapstructure:"node_auth_attribute"`
	// Headers are the names on the wire; both ends must agree.
	Headers wire.Names `mapstructure:"headers"`
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
	// AllowedHosts are the names under which people reach the GET requests where
	// nobody is asked who they are.
	AllowedHosts []string `mapstructure:"allowed_hosts"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	api := confighttp.NewDefaultServerConfig()
	api.NetAddr.Endpoint = "127.0.0.1:8085"
	api.IdleTimeout = serverguard.IdleTimeout
	return &Config{
		Headers: wire.Names{
			Cluster:   gpusemconv.HeaderCluster,
			Node:      gpusemconv.HeaderNode,
			Group:     gpusemconv.HeaderGroup,
			Tier:      gpusemconv.HeaderTier,
			Threshold: gpusemconv.HeaderThreshold,
			QuorumMet: gpusemconv.HeaderQuorumMet,
			Params:    gpusemconv.HeaderParams,
			Verdict:   gpusemconv.HeaderVerdict,
			Epoch:     gpusemconv.HeaderEpoch,
			Standing:  gpusemconv.HeaderStanding,
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
	h := reflect.ValueOf(&c.Headers).Elem()
	for i := range h.NumField() {
		key, header := h.Type().Field(i).Tag.Get("mapstructure"), h.Field(i).String()
		name := strings.ToLower(header)
		switch {
		case !httpguts.ValidHeaderFieldName(header):
			errs = append(errs, fmt.Errorf("`headers::%s` is %q, must be a valid HTTP header name", key, header))
		case strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin"):
			errs = append(errs, fmt.Errorf("`headers::%s` is %q, gRPC reserves the prefix grpc- and the suffix -bin", key, header))
		case seen[name] != "":
			errs = append(errs, fmt.Errorf("`headers::%s` is %q, which `headers::%s` is already", key, header, seen[name]))
		default:
			seen[name] = key
		}
	}
	return errors.Join(errs...)
}

func (c *Config) rule() clientidentity.Rule {
	return clientidentity.Rule{Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute}
}

func (c *Config) ingero() bool { return slices.Contains(c.Compatibility, compatibilityIngero) }

// names are the headers in lower case, as gRPC's metadata has them.
func (c *Config) names() wire.Names {
	names := c.Headers
	for _, v := range reflect.ValueOf(&names).Elem().Fields() {
		v.SetString(strings.ToLower(v.String()))
	}
	return names
}
