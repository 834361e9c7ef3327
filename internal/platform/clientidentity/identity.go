// SPDX-License-Identifier: Apache-2.0

// Package clientidentity tells the cluster and node that an authenticated
// client may speak for. The components that meet a push share it.
package clientidentity // import "github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/platform/mistake"
	"github.com/gpu-collector/gpu-collector/internal/platform/wire"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// Errors of Rule.Of and Identity.Settle.
var (
	ErrNobody    = errors.New("the client is not authenticated")
	ErrNoCluster = errors.New("the client's credentials name no cluster")
	ErrNoNode    = errors.New("the client's credentials name no node")
	ErrForeign   = errors.New("not the client's own")
)

// Rule names the attributes of authenticated clients that hold what they are.
type Rule struct {
	// ClusterAuthAttribute and NodeAuthAttribute are the attributes of the authenticated
	// client that hold its cluster and node. Where both are the same, the value is
	// `cluster/node`. Without the first the clients' claims count, and without the second a
	// client speaks for all nodes of its cluster.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	NodeAuthAttribute    string `mapstructure:"node_auth_attribute"`

	_ struct{}
}

// Validate implements xconfmap.Validator.
func (r *Rule) Validate() error {
	return mistake.If(r.NodeAuthAttribute != "" && r.ClusterAuthAttribute == "",
		"`node_auth_attribute` is %q without `cluster_auth_attribute`: must be with it, since a node is one of a cluster", r.NodeAuthAttribute)
}

// Identity is for whom a client may speak. An empty name is any.
type Identity struct{ Cluster, Node string }

// Of returns the identity of the client behind a push, or why it has none.
func (r *Rule) Of(ctx context.Context) (id Identity, err error) {
	if r.ClusterAuthAttribute == "" {
		return id, nil
	}
	auth := client.FromContext(ctx).Auth
	if auth == nil {
		return id, ErrNobody
	}
	cluster, _ := auth.GetAttribute(r.ClusterAuthAttribute).(string)
	node := "*"
	switch r.NodeAuthAttribute {
	case "":
	case r.ClusterAuthAttribute:
		// No name of a Kubernetes cluster or node has a slash.
		cluster, node, _ = strings.Cut(cluster, "/")
	default:
		node, _ = auth.GetAttribute(r.NodeAuthAttribute).(string)
	}
	switch {
	case !wire.ValidName(cluster):
		return id, ErrNoCluster
	case !wire.ValidName(node):
		return id, ErrNoNode
	}
	return Identity{own(cluster), own(node)}, nil
}

// own is a name of the credentials. A tier in between has `*`, and speaks for all clusters or
// nodes: it has checked what it passes on.
func own(name string) string {
	if name == "*" {
		return ""
	}
	return name
}

// Caller returns the caller of a push that claims a cluster. A claim that cannot name a
// cluster is invalid.
func (id Identity) Caller(claim string) (caller wire.Caller, invalid bool) {
	cluster := cmp.Or(id.Cluster, claim)
	if cluster != "" && !wire.ValidName(cluster) {
		return wire.Caller{}, true
	}
	return wire.Caller{Cluster: cluster, Authenticated: id.Cluster != ""}, false
}

// name is an attribute in which a resource names its cluster or node.
type name struct {
	key, own string
	claim    bool // another name than the client's own is a foreign one
}

// names are those of a resource that the client is held to. On Kubernetes host.name is often
// a pod's: that is no claim.
func (id Identity) names(attrs pcommon.Map) (all []name) {
	if id.Cluster != "" {
		all = append(all, name{identity.Cluster, id.Cluster, true})
	}
	if id.Node != "" {
		claim := identity.Claim(func(key string) bool { _, ok := attrs.Get(key); return ok })
		all = append(all, name{claim, id.Node, true})
		if claim != identity.Host {
			all = append(all, name{identity.Host, id.Node, false})
		}
	}
	return all
}

// find reports whether one text is all that a resource has of a name, and returns a foreign
// text of it. On the wire there may be several of a name: some readers take the first, others
// the last.
func (n *name) find(attrs pcommon.Map) (settled bool, foreign error) {
	several := false
	for k, v := range attrs.All() {
		if k != n.key {
			continue
		}
		settled = !several && v.Type() == pcommon.ValueTypeStr && v.Str() == n.own
		several = true
		if foreign == nil && metricreading.Text(v) != n.own {
			foreign = fmt.Errorf("`%s` is %q, which is %w: must be %q", n.key, wire.Clip(v.AsString()), ErrForeign, n.own)
		}
	}
	return settled, foreign
}

// Owns reports whether Settle would leave a resource as it is.
func (id Identity) Owns(attrs pcommon.Map) bool {
	for _, n := range id.names(attrs) {
		if settled, _ := n.find(attrs); !settled {
			return false
		}
	}
	return true
}

// Settle writes the client's own names into a resource, and returns the first foreign name
// that it had, an ErrForeign. A resource that names nobody is its client's.
func (id Identity) Settle(attrs pcommon.Map) (foreign error) {
	for _, n := range id.names(attrs) {
		settled, other := n.find(attrs)
		if settled {
			continue
		}
		if n.claim {
			foreign = cmp.Or(foreign, other)
		}
		attrs.RemoveIf(func(key string, _ pcommon.Value) bool { return key == n.key })
		attrs.PutStr(n.key, n.own)
	}
	return foreign
}
