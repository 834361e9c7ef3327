// SPDX-License-Identifier: Apache-2.0

package expositionextension // import "github.com/gpu-collector/gpu-collector/extension/expositionextension"

import (
	"cmp"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

const (
	// maxSeriesLimit keeps positions in the table within 32 bits.
	maxSeriesLimit = 1_000_000_000
	// minTTL keeps the sweep, which runs four times per ttl, from being busy.
	minTTL = time.Second
	// minBytes has room for the names of some nodes.
	minBytes = 1 << 20
	// tablePercent is of the process' memory.
	tablePercent = 25
)

// Config of the exposition extension.
type Config struct {
	// TTL is how long a node or a series that is not reported is remembered.
	TTL time.Duration `mapstructure:"ttl"`
	// MaxNodes, MaxSeries, MaxSeriesPerNode and MaxBytes bound what is remembered. Of
	// MaxBytes 0 is a part of the memory.
	MaxNodes         int   `mapstructure:"max_nodes"`
	MaxSeries        int   `mapstructure:"max_series"`
	MaxSeriesPerNode int   `mapstructure:"max_series_per_node"`
	MaxBytes         int64 `mapstructure:"max_bytes"`
	// ClusterShare is the part of the last quarter of nodes, series and bytes that the other
	// clusters leave which one may hold.
	ClusterShare float64 `mapstructure:"cluster_share"`

	// HTTP is the server of `/metrics`. Without it nothing is served.
	HTTP configoptional.Optional[confighttp.ServerConfig] `mapstructure:"http"`
	// AllowedHosts are the names under which a server without `auth` is scraped.
	AllowedHosts []string `mapstructure:"allowed_hosts"`
	// MetricExpiration is the time without a report after which its series are not served.
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
		TTL:          10 * time.Minute,
		MaxNodes:     200_000,
		MaxSeries:    8_000_000,
		ClusterShare: fairshare.Half,
		// 16 GPUs of 7 MIG slices with 100 series each, and half as much again.
		MaxSeriesPerNode: 16_384,
		HTTP:             configoptional.Default(server),
		// More than two resyncs of what is before, or unchanged nodes would come and go;
		// as long as Prometheus itself looks back (query.lookback-delta).
		MetricExpiration: 5 * time.Minute,
		// Two of one reader at once, or of a pair of servers, and one more.
		MaxScrapes: 3,
	}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	return errors.Join(
		mistake.If(c.TTL < minTTL, "`ttl` is %v: must be at least %v, and several times the interval of the reports", c.TTL, minTTL),
		mistake.If(c.MaxNodes < 1, "`max_nodes` is %d: must be at least 1", c.MaxNodes),
		mistake.If(c.MaxSeries < 1 || c.MaxSeries > maxSeriesLimit,
			"`max_series` is %d: must be between 1 and %d", c.MaxSeries, maxSeriesLimit),
		mistake.If(c.MaxSeriesPerNode < 1 || c.MaxSeriesPerNode > lastvalue.MaxNodeSeries,
			"`max_series_per_node` is %d: must be between 1 and %d", c.MaxSeriesPerNode, lastvalue.MaxNodeSeries),
		mistake.If(c.MaxBytes != 0 && c.MaxBytes < minBytes,
			"`max_bytes` is %d: must be at least %d, or 0 for %d %% of the memory", c.MaxBytes, minBytes, tablePercent),
		mistake.If(!(c.ClusterShare > 0 && c.ClusterShare <= 1), "`cluster_share` is %v: must be in (0,1]", c.ClusterShare), // also NaN
		mistake.If(c.MetricExpiration <= 0,
			"`metric_expiration` is %v: must be positive, and several times the interval of the nodes' reports", c.MetricExpiration),
		mistake.If(c.MaxScrapes < 1, "`max_scrapes` is %d: must be at least 1", c.MaxScrapes))
}

// MemoryBytes implements memorybudget.Holder: the table.
func (c *Config) MemoryBytes() int64 { return cmp.Or(c.MaxBytes, memorybudget.Percent(tablePercent)) }
