// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
)

// What becomes of a push that names a foreign cluster or node.
const (
	foreignRefuse    = "refuse"    // none of it is taken
	foreignOverwrite = "overwrite" // it is taken as its sender's own
)

// Config of the client_identity processor.
type Config struct {
	// ClusterAuthAttribute is the attribute of the authenticated client that
	// holds its cluster. There is no default.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	// NodeAuthAttribute is the one that holds its node. Without it a client
	// speaks for all nodes of its cluster. Where both are the same, the value is
	// `cluster/node`.
	NodeAuthAttribute string `mapstructure:"node_auth_attribute"`
	// Foreign is what becomes of a push that names another cluster or node:
	// refuse or overwrite.
	Foreign string `mapstructure:"foreign"`

	_ struct{}
}

func createDefaultConfig() component.Config { return &Config{Foreign: foreignRefuse} }

func (c *Config) rule() clientidentity.Rule {
	return clientidentity.Rule{Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute}
}

// Validate reports every mistake.
func (c *Config) Validate() error {
	var errs []error
	if c.ClusterAuthAttribute == "" {
		errs = append(errs, errors.New("`cluster_auth_attribute` is empty: must be an attribute of authenticated clients, such as `username` of basicauth"))
	}
	if c.Foreign != foreignRefuse && c.Foreign != foreignOverwrite {
		errs = append(errs, fmt.Errorf("`foreign` is %q: must be %q or %q", c.Foreign, foreignRefuse, foreignOverwrite))
	}
	return errors.Join(errs...)
}
