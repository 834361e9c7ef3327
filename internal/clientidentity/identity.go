// SPDX-License-Identifier: Apache-2.0

// Package clientidentity tells the cluster and node that an authenticated
// client may speak for. The components that meet a push share it.
package clientidentity // import "github.com/gpu-collector/gpu-collector/internal/clientidentity"

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"go.opentelemetry.io/collector/client"

	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// Any as a cluster or a node is for clients that speak for all of them: a
// tier in between, which has checked what it passes on.
const Any = "*"

// separator is between cluster and node where one attribute holds both. No
// name of a Kubernetes cluster or node has one.
const separator = "/"

// Errors of Rule.Of.
var (
	ErrNobody    = errors.New("the client is not authenticated")
	ErrNoCluster = errors.New("the client's credentials name no cluster")
	ErrNoNode    = errors.New("the client's credentials name no node")
)

// Rule names the attributes of authenticated clients that hold what they are.
// Where both are the same, its values are `cluster/node`.
type Rule struct {
	Cluster string // empty where claims count
	Node    string // empty where clients speak for all nodes of their cluster
	// Everybody is who all clients are where claims count. An empty name is Any.
	Everybody Identity
}

// Identity is for whom a client may speak. Either name may be Any.
type Identity struct{ Cluster, Node string }

// Of returns the identity of the client behind a push, or why it has none.
func (r Rule) Of(ctx context.Context) (Identity, error) {
	if r.Cluster == "" {
		return Identity{cmp.Or(r.Everybody.Cluster, Any), cmp.Or(r.Everybody.Node, Any)}, nil
	}
	auth := client.FromContext(ctx).Auth
	if auth == nil {
		return Identity{}, ErrNobody
	}
	id := Identity{Cluster: text(auth, r.Cluster), Node: Any}
	switch r.Node {
	case "":
	case r.Cluster:
		id.Cluster, id.Node, _ = strings.Cut(id.Cluster, separator)
	default:
		id.Node = text(auth, r.Node)
	}
	switch {
	case !wire.ValidName(id.Cluster):
		return Identity{}, ErrNoCluster
	case !wire.ValidName(id.Node):
		return Identity{}, ErrNoNode
	}
	return id, nil
}

func text(auth client.AuthData, name string) string {
	s, _ := auth.GetAttribute(name).(string)
	return s
}

// Caller returns the caller of a push that claims a cluster. A claim that cannot name a
// cluster is invalid.
func (id Identity) Caller(claim string) (caller wire.Caller, invalid bool) {
	cluster := or(id.Cluster, claim)
	if cluster != "" && !wire.ValidName(cluster) {
		return wire.Caller{}, true
	}
	return wire.Caller{Cluster: cluster, Authenticated: id.Cluster != Any}, false
}

// NodeOr returns the node to take a push for that claims one.
func (id Identity) NodeOr(claim string) string { return or(id.Node, claim) }

func or(own, claim string) string {
	if own == Any {
		return claim
	}
	return own
}
