// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"golang.org/x/net/http/httpguts"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
)

// maxRetryAfter is the longest wait that may be asked for: exporters give a
// push up once the wait would pass their max_elapsed_time, 5 minutes by default.
const maxRetryAfter = time.Minute

// Config of the extension. All receivers that name it share its permits.
type Config struct {
	// MaxConcurrent is the number of pushes that may be in flight at once.
	MaxConcurrent int `mapstructure:"max_concurrent"`
	// MaxBytes is the memory that the pushes in flight may take together: each reserves
	// 112 times its bytes, which is what it becomes at worst. 0 is half of the
	// process' memory, see memorybudget.
	MaxBytes int64 `mapstructure:"max_bytes"`
	// ClusterShare is the part of the permits, and of the bytes, that one cluster
	// may hold, of those that the other clusters do not hold.
	ClusterShare float64 `mapstructure:"cluster_share"`
	// MaxClusters is the number of clusters with metrics of their own; those
	// beyond are counted together.
	MaxClusters int `mapstructure:"max_clusters"`
	// ReceiveTimeout is how long a push may hold its permit until its message
	// or body is there.
	ReceiveTimeout time.Duration `mapstructure:"receive_timeout"`
	// RetryAfter is what a refused sender is asked to wait.
	RetryAfter RetryAfterConfig `mapstructure:"retry_after"`
	// Authenticator is the receiver's over gRPC: admission asks it before a push has
	// a permit of its cluster. Over HTTP the receiver has asked it by then.
	Authenticator *component.ID `mapstructure:"authenticator"`
	// AuthenticatorHeaders are all request headers that the authenticator reads. Its
	// answer about a client is remembered by their values, for 10 minutes.
	AuthenticatorHeaders []string `mapstructure:"authenticator_headers"`
	// UnauthenticatedShare is the part of the permits that clients hold together
	// while the authenticator is asked about them.
	UnauthenticatedShare float64 `mapstructure:"unauthenticated_share"`
	// ClusterHeader is the request header that names the sender's cluster.
	ClusterHeader string `mapstructure:"cluster_header"`
	// ClusterAuthAttribute is the attribute of the authenticated client that
	// holds its cluster; it replaces whatever the client claims.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	// NodeAuthAttribute is the attribute that holds its node. It matters here where
	// both are the same, since the value is `cluster/node` then.
	NodeAuthAttribute string `mapstructure:"node_auth_attribute"`

	_ struct{}
}

// Bounds of receive_timeout: less would refuse a sender for one lost packet,
// which TCP sends again after 200 ms at the earliest; more is no bound.
const (
	minReceiveTimeout = time.Second
	maxReceiveTimeout = 5 * time.Minute
)

// RetryAfterConfig is the range, in whole seconds, from which each refusal
// draws its wait.
type RetryAfterConfig struct {
	Min time.Duration `mapstructure:"min"`
	Max time.Duration `mapstructure:"max"`

	_ struct{}
}

func createDefaultConfig() component.Config {
	return &Config{
		// A decoded report of 320 points is about 0.12 MB: 1000 of them in
		// flight are some 120 MB, a tenth of a second's work of one core.
		MaxConcurrent: 1000,
		ClusterShare:  0.5,
		MaxClusters:   64,
		// The exporters' own timeout is 5 s over gRPC by default; what they gave
		// up needs no permit.
		ReceiveTimeout: 10 * time.Second,
		// Back before the next push of a node, which is due 10 s later by default.
		RetryAfter:           RetryAfterConfig{Min: time.Second, Max: 5 * time.Second},
		AuthenticatorHeaders: []string{"authorization"},
		// 50 at a time; to check a password takes some 50 ms of a core.
		UnauthenticatedShare: 0.05,
		ClusterHeader:        gpusemconv.HeaderCluster,
	}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if c.MaxConcurrent < 1 {
		errs = append(errs, fmt.Errorf("`max_concurrent` is %d, must be at least 1", c.MaxConcurrent))
	}
	if c.MaxBytes != 0 && c.MaxBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("`max_bytes` is %d, must be at least 1048576, or 0 for half of the memory", c.MaxBytes))
	}
	if !(c.ClusterShare > 0 && c.ClusterShare <= 1) { // also NaN
		errs = append(errs, fmt.Errorf("`cluster_share` is %v, must be in (0,1]", c.ClusterShare))
	}
	if !(c.UnauthenticatedShare > 0 && c.UnauthenticatedShare <= 1) {
		errs = append(errs, fmt.Errorf("`unauthenticated_share` is %v, must be in (0,1]", c.UnauthenticatedShare))
	}
	if c.MaxClusters < 1 || c.MaxClusters > 1000 {
		errs = append(errs, fmt.Errorf("`max_clusters` is %d, must be in [1,1000]: each has metrics of its own", c.MaxClusters))
	}
	if c.ReceiveTimeout < minReceiveTimeout || c.ReceiveTimeout > maxReceiveTimeout {
		errs = append(errs, fmt.Errorf("`receive_timeout` is %s, must be in [%s,%s]", c.ReceiveTimeout, minReceiveTimeout, maxReceiveTimeout))
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"min", c.RetryAfter.Min}, {"max", c.RetryAfter.Max}} {
		if d.value < time.Second || d.value > maxRetryAfter || d.value%time.Second != 0 {
			errs = append(errs, fmt.Errorf("`retry_after::%s` is %s, must be whole seconds in [1s,%s]", d.key, d.value, maxRetryAfter))
		}
	}
	if c.RetryAfter.Max < c.RetryAfter.Min {
		errs = append(errs, fmt.Errorf("`retry_after::max` is %s, must not be less than `retry_after::min`, %s", c.RetryAfter.Max, c.RetryAfter.Min))
	}
	if c.NodeAuthAttribute != "" && c.ClusterAuthAttribute == "" {
		errs = append(errs, fmt.Errorf("`node_auth_attribute` is %q without `cluster_auth_attribute`, must be with it: a node is one of a cluster", c.NodeAuthAttribute))
	}
	name := strings.ToLower(c.ClusterHeader)
	if !httpguts.ValidHeaderFieldName(name) || strings.HasPrefix(name, "grpc-") || strings.HasSuffix(name, "-bin") {
		errs = append(errs, fmt.Errorf("`cluster_header` is %q, must be a valid HTTP header name that gRPC does not reserve (grpc-*, *-bin)", c.ClusterHeader))
	}
	if len(c.AuthenticatorHeaders) == 0 {
		errs = append(errs, errors.New("`authenticator_headers` is empty, must name the request headers that the authenticator reads"))
	}
	for _, name := range c.AuthenticatorHeaders {
		if !httpguts.ValidHeaderFieldName(name) {
			errs = append(errs, fmt.Errorf("`authenticator_headers` has %q, must be valid HTTP header names", name))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) rule() clientidentity.Rule {
	return clientidentity.Rule{Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute}
}

// MemoryBytes implements memorybudget.Holder: what all pushes share.
func (c *Config) MemoryBytes() int64 {
	if c.MaxBytes != 0 {
		return c.MaxBytes
	}
	return memorybudget.Percent(50)
}

func (c *Config) settings() admission.Settings {
	return admission.Settings{
		Permits: c.MaxConcurrent, Bytes: c.MemoryBytes(), ClusterShare: c.ClusterShare, UnknownShare: c.UnauthenticatedShare, MaxClusters: c.MaxClusters,
		RetryMin: c.RetryAfter.Min, RetryMax: c.RetryAfter.Max,
	}
}
