// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpu-collector/gpu-collector/internal/serverguard"
)

// Config of the exposition extension.
type Config struct {
	// HTTP is the server of `/metrics`. Without it nothing is served.
	HTTP configoptional.Optional[confighttp.ServerConfig] `mapstructure:"http"`
	// AllowedHosts are the names under which a server without `auth` is scraped.
	AllowedHosts []string `mapstructure:"allowed_hosts"`
	// MetricExpiration is the silence of a node after which its series are not served.
	MetricExpiration time.Duration `mapstructure:"metric_expiration"`
	// ResourceAttributes are those of a node that each of its series has as labels,
	// besides `k8s.cluster.name`. The others are labels of `gpu_node_info` alone. All
	// are labels when it is empty.
	ResourceAttributes []string `mapstructure:"resource_attributes"`
	// DCGMNames has the GPUs served under dcgm-exporter's names and labels too.
	DCGMNames bool `mapstructure:"dcgm_names"`
	// MaxScrapes is how many scrapes are answered at a time, one address half of them,
	// rounded up. Others wait.
	MaxScrapes int `mapstructure:"max_scrapes"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "127.0.0.1:9464"
	server.IdleTimeout = serverguard.IdleTimeout
	return &Config{
		HTTP: configoptional.Default(server),
		// More than two resyncs of what is before, or unchanged nodes would come and go;
		// as long as Prometheus itself looks back (query.lookback-delta).
		MetricExpiration: 5 * time.Minute,
		// Two of one reader at once, or of a pair of servers, and one more.
		MaxScrapes: 3,
	}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if c.MetricExpiration <= 0 {
		errs = append(errs, fmt.Errorf("`metric_expiration` is %v: must be positive, and several times the interval of the nodes' reports", c.MetricExpiration))
	}
	if c.MaxScrapes < 1 {
		errs = append(errs, fmt.Errorf("`max_scrapes` is %d: must be at least 1", c.MaxScrapes))
	}
	return errors.Join(errs...)
}
