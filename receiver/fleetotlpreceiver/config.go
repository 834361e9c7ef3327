// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configgrpc"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/wire"
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

// A push that names a foreign cluster or node has one of two fates.
const (
	foreignRefuse    = "refuse"    // none of it is taken
	foreignOverwrite = "overwrite" // it is taken as its sender's own
)

// Identity says whose the pushes are. Without its keys the clients' claims count.
type Identity struct {
	// ClusterAuthAttribute and NodeAuthAttribute are the attributes of the authenticated
	// client that hold its cluster and node. Where both are the same, the value is
	// `cluster/node`. Without a node a client speaks for all nodes of its cluster.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	NodeAuthAttribute    string `mapstructure:"node_auth_attribute"`
	// Cluster and Node are for whom everybody speaks, at a receiver that needs no
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
	// clusters do not hold.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// ReceiveTimeout is how long a push may take until its message or body is there.
	ReceiveTimeout time.Duration `mapstructure:"receive_timeout"`
	// RetryAfter is what a refused sender is asked to wait.
	RetryAfter RetryAfter `mapstructure:"retry_after"`

	_ struct{}
}

// RetryAfter is the range, in whole seconds, from which each refusal draws its wait.
type RetryAfter struct {
	Min time.Duration `mapstructure:"min"`
	Max time.Duration `mapstructure:"max"`

	_ struct{}
}

const (
	// minReceiveTimeout is a lost packet, which TCP sends again after 200 ms at the
	// earliest, and maxReceiveTimeout still is a bound.
	minReceiveTimeout = time.Second
	maxReceiveTimeout = 5 * time.Minute
	// maxRetryAfter is the longest wait: exporters give a push up once the wait would pass
	// their max_elapsed_time, 5 minutes by default.
	maxRetryAfter = time.Minute
)

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
	var errs []error
	if !c.Protocols.GRPC.HasValue() && !c.Protocols.HTTP.HasValue() {
		errs = append(errs, errors.New("`protocols` is empty: must have `grpc`, `http` or both"))
	}
	if c.Protocols.GRPC.HasValue() && len(c.Protocols.GRPC.Get().Middlewares) > 0 {
		errs = append(errs, errors.New("`protocols::grpc::middlewares` is set: a middleware's interceptors of unary calls would not run here. "+
			"Name straggler_threshold as `threshold_extension`, and use the otlp receiver for other middlewares"))
	}
	if c.MaxConnections < 0 {
		errs = append(errs, fmt.Errorf("`max_connections` is %d: must be positive, or 0 for a part of the memory", c.MaxConnections))
	}
	return errors.Join(errs...)
}

// Validate implements xconfmap.Validator.
func (c *Identity) Validate() error {
	var errs []error
	switch {
	case c.Cluster != "" && (c.ClusterAuthAttribute != "" || c.NodeAuthAttribute != ""):
		errs = append(errs, errors.New("`cluster` is set beside `cluster_auth_attribute` or `node_auth_attribute`: must be either the names or the attributes that hold them"))
	case c.Cluster == "" && c.Node != "":
		errs = append(errs, errors.New("`node` is set without `cluster`: must go with the name of its cluster"))
	case c.NodeAuthAttribute != "" && c.ClusterAuthAttribute == "":
		errs = append(errs, fmt.Errorf("`node_auth_attribute` is %q without `cluster_auth_attribute`: must be with it, since a node is one of a cluster", c.NodeAuthAttribute))
	}
	for _, name := range []struct{ key, value string }{{"cluster", c.Cluster}, {"node", c.Node}} {
		if name.value != "" && !wire.ValidName(name.value) {
			errs = append(errs, fmt.Errorf("`%s` is %q: must be 1 to %d printable ASCII characters", name.key, name.value, wire.MaxNameLength))
		}
	}
	if c.Foreign != foreignRefuse && c.Foreign != foreignOverwrite {
		errs = append(errs, fmt.Errorf("`foreign` is %q: must be %q or %q", c.Foreign, foreignRefuse, foreignOverwrite))
	}
	return errors.Join(errs...)
}

func (c *Identity) rule() clientidentity.Rule {
	return clientidentity.Rule{
		Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute, Everybody: clientidentity.Identity{Cluster: c.Cluster, Node: c.Node},
	}
}

// Validate implements xconfmap.Validator.
func (c *Admission) Validate() error {
	var errs []error
	if c.MaxConcurrent < 1 {
		errs = append(errs, fmt.Errorf("`max_concurrent` is %d: must be at least 1", c.MaxConcurrent))
	}
	if c.MaxBytes != 0 && c.MaxBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("`max_bytes` is %d: must be at least 1048576, or 0 for half of the memory", c.MaxBytes))
	}
	if !(c.ClusterShare > 0 && c.ClusterShare <= 1) { // also NaN
		errs = append(errs, fmt.Errorf("`cluster_share` is %v: must be in (0,1]", c.ClusterShare))
	}
	if c.ReceiveTimeout < minReceiveTimeout || c.ReceiveTimeout > maxReceiveTimeout {
		errs = append(errs, fmt.Errorf("`receive_timeout` is %s: must be in [%s,%s]", c.ReceiveTimeout, minReceiveTimeout, maxReceiveTimeout))
	}
	lo, hi := c.RetryAfter.Min, c.RetryAfter.Max
	if lo < time.Second || hi < lo || hi > maxRetryAfter || lo%time.Second != 0 || hi%time.Second != 0 {
		errs = append(errs, fmt.Errorf("`retry_after` is %s to %s: `min` and `max` must be whole seconds in [1s,%s], and `max` not less than `min`", lo, hi, maxRetryAfter))
	}
	return errors.Join(errs...)
}

// MemoryBytes implements memorybudget.Holder: what all pushes share.
func (c *Config) MemoryBytes() int64 { return cmp.Or(c.Admission.MaxBytes, memorybudget.Percent(50)) }

func (c *Config) admission() admission.Settings {
	return admission.Settings{
		Permits: c.Admission.MaxConcurrent, Bytes: c.MemoryBytes(), ClusterShare: c.Admission.ClusterShare,
		RetryMin: c.Admission.RetryAfter.Min, RetryMax: c.Admission.RetryAfter.Max,
	}
}
