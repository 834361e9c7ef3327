// SPDX-License-Identifier: Apache-2.0

// Package topology knows which racks, switches and blocks nodes share, and says which
// label a fault of several nodes is about. Pure.
package topology // import "github.com/gpu-collector/gpu-collector/internal/topology"

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// nodeLabelPrefix is of a Kubernetes node's labels as resource attributes, by
// OpenTelemetry's conventions (k8s.node.label.<key>).
const nodeLabelPrefix = "k8s.node.label."

// Bounds of a label. Kubernetes stops at 63 bytes for a value, and an NVLink clique is
// a UUID and a number. MaxLevels is of one node.
const (
	MaxText   = 63
	MaxLevels = 8
)

// Label is one place of a node, such as leaf and leaf-7.
type Label struct{ Level, Value string }

// Compare orders labels by level, then by value.
func (l Label) Compare(o Label) int {
	return cmp.Or(cmp.Compare(l.Level, o.Level), cmp.Compare(l.Value, o.Value))
}

func (l Label) String() string { return l.Level + " " + l.Value }

// Valid reports whether both texts are printable ASCII of 1 to MaxText bytes.
func (l Label) Valid() bool { return validText(l.Level) && validText(l.Value) }

func validText(s string) bool {
	return s != "" && len(s) <= MaxText && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// keys are the labels of Kubernetes nodes that say where a node is, and their levels.
var keys = map[string]string{
	// GPU feature discovery: <ClusterUUID>.<CliqueID> of NVML's fabric.
	"nvidia.com/gpu.clique": "clique",
	// Topograph before 1.0; its version 0.1 wrote block, spine and datacenter.
	"network.topology.nvidia.com/accelerator": "accelerator",
	"network.topology.nvidia.com/block":       "block",
	"network.topology.nvidia.com/leaf":        "leaf",
	"network.topology.nvidia.com/spine":       "spine",
	"network.topology.nvidia.com/core":        "core",
	"network.topology.nvidia.com/datacenter":  "datacenter",
	// Topograph from 1.0 on; tier-0 is next to the node.
	"accelerator.topograph.run/domain":     "accelerator_domain",
	"accelerator.topograph.run/sub-domain": "accelerator_sub_domain",
	"fabric.topograph.run/tier-0":          "tier_0",
	"fabric.topograph.run/tier-1":          "tier_1",
	"fabric.topograph.run/tier-2":          "tier_2",
	"fabric.topograph.run/tier-3":          "tier_3",
	// EC2 instance topology: the highest number is next to the node.
	"topology.k8s.aws/network-node-layer-1": "layer_1",
	"topology.k8s.aws/network-node-layer-2": "layer_2",
	"topology.k8s.aws/network-node-layer-3": "layer_3",
	"topology.k8s.aws/network-node-layer-4": "layer_4",
	// GKE: a subblock is a rack.
	"cloud.google.com/gce-topology-host":     "host",
	"cloud.google.com/gce-topology-subblock": "subblock",
	"cloud.google.com/gce-topology-block":    "block",
	// OCI, as listed by Topograph.
	"oci.oraclecloud.com/host.rack_id":          "rack",
	"oci.oraclecloud.com/host.network_block_id": "network_block",
	"topology.kubernetes.io/zone":               "zone",
	"topology.kubernetes.io/region":             "region",
}

// LevelOfKey returns the level of a label of a Kubernetes node.
func LevelOfKey(key string) (level string, known bool) {
	level, known = keys[key]
	return level, known
}

// LevelOf returns the level that a resource attribute names: gpu.topology.<level>, or
// k8s.node.label.<key> with a key that is known.
func LevelOf(attribute string) (level string, known bool) {
	if level, ours := strings.CutPrefix(attribute, gpusemconv.AttrTopologyPrefix); ours {
		return level, level != ""
	}
	if key, is := strings.CutPrefix(attribute, nodeLabelPrefix); is {
		return LevelOfKey(key)
	}
	return "", false
}

// Merge returns the labels in order with the newer ones set, at most MaxLevels. It
// reports whether any was set or had another value.
func Merge(old []Label, newer ...Label) (merged []Label, changed bool) {
	merged = old
	for _, l := range newer {
		at, known := slices.BinarySearchFunc(merged, l.Level, func(x Label, level string) int { return cmp.Compare(x.Level, level) })
		switch {
		case known && merged[at] == l, !known && len(merged) >= MaxLevels:
			continue
		case !changed:
			merged, changed = slices.Clone(merged), true
		}
		if known {
			merged[at] = l
		} else {
			merged = slices.Insert(merged, at, l)
		}
	}
	return merged, changed
}
