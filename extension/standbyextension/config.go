// SPDX-License-Identifier: Apache-2.0

package standbyextension

import (
	"errors"
	"fmt"
	"net"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
)

// Config of the extension.
type Config struct {
	// StorageID names the storage that this one stands before: what is stored here goes
	// there, and to the standbys.
	StorageID *component.ID `mapstructure:"storage"`
	// Lock is how the processes agree who is active.
	Lock LockConfig `mapstructure:"lock"`
	// HTTP is the server to which the active process sends copies, and of the probes.
	HTTP confighttp.ServerConfig `mapstructure:"http"`
	// Peers are the servers of the others. This process may be among them.
	Peers []confighttp.ClientConfig `mapstructure:"peers"`
	// Relay lists addresses that the other components listen on once this process is
	// active. Until then connections to them are handed on to the active process, which
	// has to list the same services in the same order.
	Relay []string `mapstructure:"relay"`
	// MaxConnections is how many connections are handed on at a time.
	MaxConnections int `mapstructure:"max_connections"`

	_ struct{}
}

// LockConfig is a lock of one of two kinds.
type LockConfig struct {
	// File is locked by the active process. All of them have to see the same file, with
	// locks: on one machine, or on storage that they share.
	File string `mapstructure:"file"`
	// Lease is an object of Kubernetes.
	Lease configoptional.Optional[LeaseConfig] `mapstructure:"lease"`

	_ struct{}
}

// LeaseConfig names a Lease of coordination.k8s.io/v1.
type LeaseConfig struct {
	// Name of the Lease, one per pair of gateways. Namespace is the pod's by default.
	Name      string `mapstructure:"name"`
	Namespace string `mapstructure:"namespace"`
	// Duration is how long the others wait for an active process that is silent. It gives
	// up by itself after Deadline. Both try each Retry.
	Duration time.Duration `mapstructure:"duration"`
	Deadline time.Duration `mapstructure:"renew_deadline"`
	Retry    time.Duration `mapstructure:"retry_period"`
	// Server is the API server's URL, that of the pod's cluster by default; TokenFile and
	// CAFile are the pod's by default.
	Server    string `mapstructure:"server"`
	TokenFile string `mapstructure:"token_file"`
	CAFile    string `mapstructure:"ca_file"`

	_ struct{}
}

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

func createDefaultConfig() component.Config {
	server := confighttp.NewDefaultServerConfig()
	server.NetAddr.Endpoint = "127.0.0.1:8087"
	return &Config{
		HTTP: server,
		Lock: LockConfig{Lease: configoptional.Default(LeaseConfig{
			// Of ten seconds for a fail-over they leave three to start in.
			Duration: 6 * time.Second, Deadline: 4 * time.Second, Retry: time.Second,
			TokenFile: serviceAccount + "token", CAFile: serviceAccount + "ca.crt",
		})},
		MaxConnections: 10_000,
	}
}

// Validate implements xconfmap.Validator.
func (c *Config) Validate() error {
	var errs []error
	if (c.Lock.File == "") != c.Lock.Lease.HasValue() {
		errs = append(errs, errors.New("`lock` must have one of `file` and `lease`: the file that all gateways lock, or the Lease of Kubernetes"))
	}
	if l := c.Lock.Lease.Get(); c.Lock.Lease.HasValue() {
		if l.Name == "" {
			errs = append(errs, errors.New("`lock::lease::name` is empty, must be a name that all gateways of a cluster share, and no others"))
		}
		if l.Retry <= 0 || l.Deadline < 2*l.Retry || l.Duration < l.Deadline+l.Retry {
			errs = append(errs, fmt.Errorf("`lock::lease` has `retry_period` %s, `renew_deadline` %s and `duration` %s: the second must be at least twice the first, and the third at least the sum of both", l.Retry, l.Deadline, l.Duration))
		}
	}
	for i := range c.Peers {
		if c.Peers[i].Endpoint == "" {
			errs = append(errs, fmt.Errorf("`peers` has no `endpoint` at position %d, must be the URL of another gateway's `http`", i))
		}
	}
	for i, addr := range c.Relay {
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "0" || port == "" {
			errs = append(errs, fmt.Errorf("`relay` has %q at position %d, must be host:port of a server of this process", addr, i))
		}
	}
	if c.MaxConnections < 1 {
		errs = append(errs, fmt.Errorf("`max_connections` is %d, must be at least 1", c.MaxConnections))
	}
	return errors.Join(errs...)
}
