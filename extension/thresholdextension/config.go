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

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
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
	return errors.Join(errs...)
}

func (c *Config) rule() clientidentity.Rule {
	return clientidentity.Rule{Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute}
}

func (c *Config) ingero() bool { return slices.Contains(c.Compatibility, compatibilityIngero) }
