// SPDX-License-Identifier: Apache-2.0

// Package identity reads the node, the cluster and the peers that a resource names.
// It is pure: the caller hands it the attributes one by one.
package identity // import "github.com/gpu-collector/gpu-collector/internal/reading/identity"

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Cluster and Host are the attributes that name any cluster and node.
const (
	Cluster = gpusemconv.AttrClusterName
	Host    = gpusemconv.AttrHostName
)

// Attributes are those that identify a resource.
var Attributes = [...]string{Cluster, Host, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID}

// Claim is the attribute that names the node of a resource with such attributes.
func Claim(has func(key string) bool) string {
	if has(gpusemconv.AttrK8sNodeName) {
		return gpusemconv.AttrK8sNodeName
	}
	return Host
}

// Names are the names of a resource by its attributes. The strings are
// those that Take was given. The zero value names no peers.
type Names struct {
	// Ingero is set where resources of Ingero's agents name nodes too.
	Ingero bool
	// Peers are the values of the attributes that make nodes peers, empty where
	// the resource has none.
	GroupLabels []string
	groupBy     []string

	// Of several names the first that is there counts.
	node    [3]string
	cluster [2]string
	named   [2]bool
	hostID  string
}

// New returns names with peers by the attributes groupBy.
func New(groupBy []string, ingero bool) Names {
	return Names{Ingero: ingero, groupBy: groupBy, GroupLabels: make([]string, len(groupBy))}
}

// Reset forgets a resource.
func (n *Names) Reset() {
	clear(n.GroupLabels)
	*n = Names{Ingero: n.Ingero, GroupLabels: n.GroupLabels, groupBy: n.groupBy}
}

// Take takes one attribute, of any name.
func (n *Names) Take(key, value string) {
	if key == gpusemconv.AttrJobID {
		value = Job(value)
	}
	if i := slices.Index(n.groupBy, key); i >= 0 {
		n.GroupLabels[i] = value
	}
	switch key {
	case gpusemconv.AttrK8sNodeName:
		n.node[0] = value
	case Host:
		n.node[1] = value
	case gpusemconv.AttrHostID:
		n.hostID = value
	case Cluster:
		n.cluster[0], n.named[0] = value, true
	}
	if !n.Ingero {
		return
	}
	// Of Ingero's resources (its agent's pkg/contract).
	switch key {
	case "ingero.node.id":
		n.node[2] = value
	case "ingero.cluster.id":
		n.cluster[1], n.named[1] = value, true
	}
}

// Complete takes an attribute of a point, of any name: a peer that the resource
// does not name, as Ingero's workload type.
func (n *Names) Complete(key, value string) {
	if i := slices.Index(n.groupBy, key); i >= 0 && n.GroupLabels[i] == "" {
		n.GroupLabels[i] = value
	}
}

// Job is the job that an id is of. Slurm's tools write `1234+1` for a part of the
// heterogeneous job 1234 (https://slurm.schedmd.com/heterogeneous_jobs.html); its parts
// wait for each other. The jobs of an array, `1234_7`, do not.
func Job(id string) string {
	job, part, found := strings.Cut(id, "+")
	if found && job != "" && part != "" && strings.Trim(job+part, "0123456789") == "" {
		return job
	}
	return id
}

// IsNode reports whether an attribute of that name, of any value, makes a resource a
// node: others, such as a cluster with figures of its own, are none.
func IsNode[T string | []byte](key T) bool {
	switch string(key) {
	case gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostName, gpusemconv.AttrHostID:
		return true
	default:
		return false
	}
}

// HostID is the host's, which is no name for people.
func (n *Names) HostID() string { return n.hostID }

// Node names the node, empty for a resource that is none. On Kubernetes
// host.name is often the pod's and changes with it.
func (n *Names) Node() string { return cmp.Or(n.node[0], n.node[1], n.hostID, n.node[2]) }

// Cluster names the cluster. A resource that names none belongs to the caller's,
// else to the default one. A resource that names an empty cluster is left
// without: its sender made a mistake.
func (n *Names) Cluster(caller, fallback string) string {
	if i := slices.Index(n.named[:], true); i >= 0 {
		return n.cluster[i]
	}
	return cmp.Or(caller, fallback)
}
