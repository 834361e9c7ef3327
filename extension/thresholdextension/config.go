// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"errors"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

// Config of the extension. One instance can be server and client middleware
// at once, as a middle tier needs it.
type Config struct {
	// Cluster that the client side names in its pushes when no straggler
	// processor in agent mode names one.
	Cluster string `mapstructure:"cluster"`
	// Rule is what clients may ask for; it replaces what they claim.
	clientidentity.Rule `mapstructure:",squash"`
	// Compatibility lists further protocols of the server side: ingero.
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
	// AllowedHosts are the names under which people reach the GET requests without
	// authentication.
	AllowedHosts []string `mapstructure:"allowed_hosts"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	api := confighttp.NewDefaultServerConfig()
	api.NetAddr.Endpoint = "127.0.0.1:8085"
	api.IdleTimeout = serverguard.IdleTimeout
	return &Config{
		ConsistentHash: "none",
		ReceivedTTL:    50 * time.Second,
		API:            configoptional.Default(api),
	}
}

// Opens implements serverguard.Opener. Ingero's agents ask without a password.
func (c *Config) Opens() (key string, server *confighttp.ServerConfig) {
	if !c.ingero() {
		server = c.API.Get()
	}
	return "api", server
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	_, hashes := hashHeaders[c.ConsistentHash]
	unknown := slices.DeleteFunc(slices.Clone(c.Compatibility), func(name string) bool { return name == ingero })
	return errors.Join(
		mistake.If(c.Cluster != "" && !pushheaders.ValidName(c.Cluster),
			"`cluster` is %q, must be 1 to %d printable ASCII characters", c.Cluster, pushheaders.MaxNameLength),
		mistake.If(c.ReceivedTTL <= 0 || c.ReceivedTTL > threshold.MaxTTL,
			"`received_ttl` is %s, must be in (0s,%s]", c.ReceivedTTL, threshold.MaxTTL),
		mistake.If(!hashes, "`consistent_hash` is %q, must be one of none, node, cluster", c.ConsistentHash),
		mistake.If(len(unknown) > 0, "`compatibility` has %q, only %q is known", strings.Join(unknown, ", "), ingero))
}

// ingero is the one other protocol.
const ingero = "ingero"

// ingero reports whether the headers and the API of Ingero Fleet are served too.
func (c *Config) ingero() bool { return slices.Contains(c.Compatibility, ingero) }
