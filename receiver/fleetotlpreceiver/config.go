// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"

	"github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
)

// Config of the receiver.
type Config struct {
	// Protocols are the servers, under the keys of the Collector's otlp receiver.
	Protocols otlpreceiver.Protocols `mapstructure:"protocols"`
	// ThresholdExtension is the straggler_threshold extension that answers the pushes.
	ThresholdExtension *component.ID `mapstructure:"threshold_extension"`
	// Table is the exposition extension whose table pushes of metrics are compared with,
	// before they are decoded: that of the one diff processor which follows.
	Table *component.ID `mapstructure:"table"`
	// Identity holds each push to the cluster and node of its client.
	Identity Identity `mapstructure:"identity"`
	// Admission bounds the pushes that are worked on.
	Admission Admission `mapstructure:"admission"`
	// MaxConnections bounds the connections of each protocol. 0 is a part of the memory.
	MaxConnections int `mapstructure:"max_connections"`

	_ struct{}
}

// A push that names a foreign cluster or node goes nowhere, or is taken as its sender's own.
const foreignRefuse, foreignOverwrite = "refuse", "overwrite"

// Identity is whose the pushes are. Without its keys the clients' claims count.
type Identity struct {
	clientidentity.Rule `mapstructure:",squash"`
	// Cluster and Node are for all clients, at a receiver that needs no
	// authentication since all it takes is of one cluster or node.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
	// Foreign is what becomes of a push that names another cluster or node: refuse or
	// overwrite.
	Foreign string `mapstructure:"foreign"`

	_ struct{}
}

// Admission are the bounds of the pushes that are worked on at once.
type Admission struct {
	// MaxConcurrent is the number of pushes in flight.
	MaxConcurrent int `mapstructure:"max_concurrent"`
	// MaxBytes is the memory that they may take together. 0 is half of the process'.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ClusterShare is the part of both that one cluster may hold, of what the other
	// clusters do not hold, while another one pushes.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// ReceiveTimeout is how long a push may take until its message or body is there. In less
	// than a second no lost packet is there, which TCP sends again after 200 ms at the earliest.
	ReceiveTimeout time.Duration `mapstructure:"receive_timeout"`
	// RetryAfter is what a refused sender is asked to wait.
	RetryAfter RetryAfter `mapstructure:"retry_after"`

	_ struct{}
}

// RetryAfter is the range, in whole seconds, from which each refusal draws its wait. Exporters
// give a push up once the wait would pass their max_elapsed_time, 5 minutes by default.
type RetryAfter struct {
	Min time.Duration `mapstructure:"min"`
	Max time.Duration `mapstructure:"max"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	protocols := otlpreceiver.NewFactory().CreateDefaultConfig().(*otlpreceiver.Config).Protocols
	grpc := configgrpc.NewDefaultServerConfig()
	grpc.NetAddr.Endpoint = "localhost:4317"
	grpc.MaxRecvMsgSizeMiB = 2
	grpc.MaxConcurrentStreams = 100 // of one connection
	grpc.ReadBufferSize = 8 << 10   // of one connection
	grpc.Keepalive = configoptional.Some(configgrpc.KeepaliveServerConfig{
		ServerParameters:  configoptional.Some(configgrpc.KeepaliveServerParameters{Time: serverguard.PingAfter, Timeout: serverguard.PingTimeout}),
		EnforcementPolicy: configoptional.Some(configgrpc.KeepaliveEnforcementPolicy{MinTime: 15 * time.Second, PermitWithoutStream: true}),
	})
	protocols.GRPC = configoptional.Default(grpc)

	http := *protocols.HTTP.GetOrInsertDefault() // with the paths
	http.ServerConfig = confighttp.NewDefaultServerConfig()
	http.ServerConfig.NetAddr.Endpoint = "localhost:4318"
	http.ServerConfig.MaxRequestBodySize = 2 << 20 // as over gRPC, for the next hop
	// Without those that take memory beside what is counted: zstd makes room for a window
	// of up to 512 MiB, lz4 for blocks of 4 MiB, and snappy is unpacked whole.
	http.ServerConfig.CompressionAlgorithms = []string{"", "gzip", "zlib", "deflate"}
	http.ServerConfig.ReadTimeout = 20 * time.Second
	http.ServerConfig.IdleTimeout = serverguard.IdleTimeout
	protocols.HTTP = configoptional.Default(http)

	return &Config{
		Protocols: protocols,
		Identity:  Identity{Foreign: foreignRefuse},
		Admission: Admission{
			// A decoded report of 320 points is about 0.12 MB: 1000 of them in flight are some
			// 120 MB, a tenth of a second's work of one core.
			MaxConcurrent: 1000,
			ClusterShare:  0.5,
			// The exporters' own timeout is 5 s over gRPC by default.
			ReceiveTimeout: 10 * time.Second,
			// Back before the next push of a node, which is due 10 s later by default.
			RetryAfter: RetryAfter{Min: time.Second, Max: 5 * time.Second},
		},
	}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	grpc, http := c.Protocols.GRPC.Get(), c.Protocols.HTTP.Get()
	return errors.Join(
		mistake.If(grpc == nil && http == nil, "`protocols` is empty: must have `grpc`, `http` or both"),
		mistake.If(grpc != nil && len(grpc.Middlewares) > 0,
			"`protocols::grpc::middlewares` is set: a middleware's interceptors of unary calls would not run here. "+
				"Name straggler_threshold as `threshold_extension`, and use the otlp receiver for other middlewares"),
		mistake.If(http != nil && (http.MetricsURLPath == http.LogsURLPath ||
			http.LogsURLPath == http.TracesURLPath || http.TracesURLPath == http.MetricsURLPath),
			"`protocols::http` has one path for two signals: `metrics_url_path`, `logs_url_path` and `traces_url_path` must differ"),
		mistake.If(c.MaxConnections < 0, "`max_connections` is %d: must be positive, or 0 for a part of the memory", c.MaxConnections))
}

// Validate implements xconfmap.Validator.
func (c *Identity) Validate() error {
	name := func(key, value string) error {
		return mistake.If(value != "" && !pushheaders.ValidName(value),
			"`%s` is %q: must be 1 to %d printable ASCII characters", key, value, pushheaders.MaxNameLength)
	}
	return errors.Join(
		mistake.If(c.Cluster != "" && c.Rule != clientidentity.Rule{},
			"`cluster` is set beside `cluster_auth_attribute` or `node_auth_attribute`: must be either the names or the attributes that hold them"),
		mistake.If(c.Cluster == "" && c.Node != "", "`node` is set without `cluster`: must go with the name of its cluster"),
		name("cluster", c.Cluster), name("node", c.Node),
		mistake.If(c.Foreign != foreignRefuse && c.Foreign != foreignOverwrite,
			"`foreign` is %q: must be %q or %q", c.Foreign, foreignRefuse, foreignOverwrite))
}

// of is what the client of a push may push for.
func (c *Identity) of(ctx context.Context) (clientidentity.Identity, error) {
	if c.Cluster != "" {
		return clientidentity.Identity{Cluster: c.Cluster, Node: c.Node}, nil
	}
	return c.Of(ctx)
}

// Validate implements xconfmap.Validator.
func (c *Admission) Validate() error {
	lo, hi := c.RetryAfter.Min, c.RetryAfter.Max
	return errors.Join(
		mistake.If(c.MaxConcurrent < 1, "`max_concurrent` is %d: must be at least 1", c.MaxConcurrent),
		mistake.If(c.MaxBytes != 0 && c.MaxBytes < 1<<20, "`max_bytes` is %d: must be at least 1048576, or 0 for half of the memory", c.MaxBytes),
		mistake.If(!(c.ClusterShare > 0 && c.ClusterShare <= 1), "`cluster_share` is %v: must be in (0,1]", c.ClusterShare), // also NaN
		mistake.If(c.ReceiveTimeout < time.Second || c.ReceiveTimeout > 5*time.Minute,
			"`receive_timeout` is %s: must be in [1s,5m]", c.ReceiveTimeout),
		mistake.If(lo < time.Second || hi < lo || hi > time.Minute || lo%time.Second != 0 || hi%time.Second != 0,
			"`retry_after` is %s to %s: `min` and `max` must be whole seconds in [1s,1m], and `max` not less than `min`", lo, hi))
}

// MemoryBytes implements memorybudget.Holder: what all pushes share.
func (c *Config) MemoryBytes() int64 { return cmp.Or(c.Admission.MaxBytes, memorybudget.Percent(50)) }
