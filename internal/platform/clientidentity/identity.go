// SPDX-License-Identifier: Apache-2.0

// Package clientidentity finds the cluster and node that an authenticated
// client may push for. The components that meet a push share it.
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
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
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
	// client pushes for all nodes of its cluster.
	ClusterAuthAttribute string `mapstructure:"cluster_auth_attribute"`
	NodeAuthAttribute    string `mapstructure:"node_auth_attribute"`

	_ struct{}
}

// Validate implements xconfmap.Validator.
func (r *Rule) Validate() error {
	return mistake.If(r.NodeAuthAttribute != "" && r.ClusterAuthAttribute == "",
		"`node_auth_attribute` is %q without `cluster_auth_attribute`: must be with it, since a node is one of a cluster", r.NodeAuthAttribute)
}

// Identity is what a client may push for. An empty name is any.
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
	case !pushheaders.ValidName(cluster):
		return id, ErrNoCluster
	case !pushheaders.ValidName(node):
		return id, ErrNoNode
	}
	return Identity{own(cluster), own(node)}, nil
}

// own is a name of the credentials. A tier in between has `*`, and pushes for all clusters or
// nodes: it has checked what it passes on.
func own(name string) string {
	if name == "*" {
		return ""
	}
	return name
}

// Caller returns the caller of a push that claims a cluster. A claim that cannot name a
// cluster is invalid.
func (id Identity) Caller(claim string) (caller pushheaders.Caller, invalid bool) {
	cluster := cmp.Or(id.Cluster, claim)
	if cluster != "" && !pushheaders.ValidName(cluster) {
		return pushheaders.Caller{}, true
	}
	return pushheaders.Caller{Cluster: cluster, Authenticated: id.Cluster != ""}, false
}

// Settle writes the client's own names into a resource, and returns the first foreign name
// that it had, an ErrForeign. A resource without names is its client's.
func (id Identity) Settle(attrs pcommon.Map) (foreign error) {
	claim := identity.Claim(func(key string) bool { _, ok := attrs.Get(key); return ok })
	if id.Cluster != "" {
		foreign = settle(attrs, identity.Cluster, id.Cluster)
	}
	if id.Node != "" {
		foreign = cmp.Or(foreign, settle(attrs, claim, id.Node))
		if claim != identity.Host {
			_ = settle(attrs, identity.Host, id.Node) // on Kubernetes often a pod's: that is no claim
		}
	}
	return foreign
}

// Owns reports whether Settle would leave a resource as it is.
func (id Identity) Owns(attrs pcommon.Map) bool {
	settled := pcommon.NewMap()
	attrs.CopyTo(settled)
	_ = id.Settle(settled)
	return settled.Equal(attrs)
}

// settle has a text be all that a resource has of a name, and returns a foreign value of it. On the
// connection there may be several of a name: some readers take the first, others the last.
func settle(attrs pcommon.Map, key, own string) (foreign error) {
	count, settled := 0, false
	for k, v := range attrs.All() {
		if k != key {
			continue
		}
		count++
		settled = v.Type() == pcommon.ValueTypeStr && v.Str() == own
		if foreign == nil && metricreading.Text(v) != own {
			foreign = fmt.Errorf("`%s` is %q, which is %w: must be %q", key, pushheaders.Clip(v.AsString()), ErrForeign, own)
		}
	}
	if !settled || count > 1 {
		attrs.RemoveIf(func(k string, _ pcommon.Value) bool { return k == key })
		attrs.PutStr(key, own)
	}
	return foreign
}
