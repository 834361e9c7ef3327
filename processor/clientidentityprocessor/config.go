// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"cmp"
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/component"

	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// A push that names a foreign cluster or node has one of two fates.
const (
	foreignRefuse    = "refuse"    // none of it is taken
	foreignOverwrite = "overwrite" // it is taken as its sender's own
)

// Config of the client_identity processor.
type Config struct {
	// ClusterAuthAttribute is the attribute of the authenticated client that
	// holds its cluster. There is no default: it or Cluster must be there.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	// NodeAuthAttribute is the attribute that holds its node. Without it a client
	// speaks for all nodes of its cluster. Where both are the same, the value is
	// `cluster/node`.
	NodeAuthAttribute string `mapstructure:"node_auth_attribute"`
	// Cluster and Node are for whom everybody speaks, whoever it is: for a
	// receiver that needs no authentication since all it takes is of one node.
	// Without Node that is any node of the cluster.
	Cluster string `mapstructure:"cluster"`
	Node    string `mapstructure:"node"`
	// OwnNode is in place of Node: everybody speaks for the node that this process runs
	// on. Resources get its machine id, and its name in Kubernetes, too.
	OwnNode bool `mapstructure:"own_node"`
	// Foreign is what becomes of a push that names another cluster or node:
	// refuse or overwrite.
	Foreign string `mapstructure:"foreign"`

	_ struct{}
}

func createDefaultConfig() component.Config { return &Config{Foreign: foreignRefuse} }

func (c *Config) rule() clientidentity.Rule {
	return clientidentity.Rule{Cluster: c.ClusterAuthAttribute, Node: c.NodeAuthAttribute}
}

// own returns for whom everybody speaks, if that is given.
func (c *Config) own() clientidentity.Identity {
	return clientidentity.Identity{Cluster: c.Cluster, Node: cmp.Or(c.Node, clientidentity.Any)}
}

// Validate reports every mistake.
func (c *Config) Validate() error {
	var errs []error
	switch {
	case c.ClusterAuthAttribute == "" && c.Cluster == "" && c.Node == "" && !c.OwnNode:
		errs = append(errs, errors.New("`cluster_auth_attribute` is empty: must be an attribute of authenticated clients, such as `username` of basicauth, or `cluster` a name"))
	case c.Cluster != "" && (c.ClusterAuthAttribute != "" || c.NodeAuthAttribute != ""):
		errs = append(errs, errors.New("`cluster` is set beside `cluster_auth_attribute` or `node_auth_attribute`: must be either the names or the attributes that hold them"))
	case c.Node != "" && c.OwnNode:
		errs = append(errs, errors.New("`node` is set beside `own_node`: must be one of them"))
	case c.Cluster == "" && c.OwnNode:
		errs = append(errs, errors.New("`own_node` is set without `cluster`: must go with the name of its cluster"))
	case c.Cluster == "" && c.Node != "":
		errs = append(errs, errors.New("`node` is set without `cluster`: must go with the name of its cluster"))
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
