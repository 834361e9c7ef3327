// SPDX-License-Identifier: Apache-2.0

// Package identity says which node of which cluster a resource is. It is pure:
// the attributes are handed to it one by one.
package identity // import "github.com/gpu-collector/gpu-collector/internal/reading/identity"

import "github.com/gpu-collector/gpu-collector/internal/gpusemconv"

// Attributes of Ingero's resources (its agent's pkg/contract).
const (
	ingeroNode    = "ingero.node.id"
	ingeroCluster = "ingero.cluster.id"
)

// Names are what the attributes of a resource say of who it is. The strings are
// those that Take was given.
type Names struct {
	// Ingero is set where resources of Ingero's agents name nodes too.
	Ingero bool

	k8sNode, hostName, hostID, cluster string
	ingeroNode, ingeroCluster          string
	named, ingeroNamed                 bool
}

// Take takes one attribute, of any name.
func (n *Names) Take(key, value string) {
	switch key {
	case gpusemconv.AttrK8sNodeName:
		n.k8sNode = value
	case gpusemconv.AttrHostName:
		n.hostName = value
	case gpusemconv.AttrHostID:
		n.hostID = value
	case gpusemconv.AttrClusterName:
		n.cluster, n.named = value, true
	case ingeroNode:
		n.ingeroNode = value
	case ingeroCluster:
		n.ingeroCluster, n.ingeroNamed = value, true
	}
}

// HostID is the host's, which is no name for people.
func (n *Names) HostID() string { return n.hostID }

// Node names the node, empty for a resource that is none. On Kubernetes
// host.name is often the pod's and changes with it.
func (n *Names) Node() string {
	switch {
	case n.k8sNode != "":
		return n.k8sNode
	case n.hostName != "":
		return n.hostName
	case n.hostID != "":
		return n.hostID
	case n.Ingero:
		return n.ingeroNode
	default:
		return ""
	}
}

// Cluster names the cluster. A resource that names none belongs to the caller's,
// else to the default one. A resource that names an empty cluster is left
// without: its sender made a mistake.
func (n *Names) Cluster(caller, fallback string) string {
	switch {
	case n.named:
		return n.cluster
	case n.Ingero && n.ingeroNamed:
		return n.ingeroCluster
	case caller != "":
		return caller
	default:
		return fallback
	}
}
