// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"fmt"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// Attributes of Ingero's resources (its agent's pkg/contract).
const (
	ingeroNodeID    = "ingero.node.id"
	ingeroClusterID = "ingero.cluster.id"
)

// identity is who a resource is. Its strings belong to the pdata they were
// read from.
type identity struct {
	cluster, node string
	peers         []string // scratch, one value per group_by attribute
}

// identifier reads identities out of resources.
type identifier struct {
	groupBy        []string
	model          int // of gpu.model in groupBy, -1 for none
	defaultCluster string
	ingero         bool
}

func newIdentifier(c *Config) identifier {
	return identifier{groupBy: c.GroupBy, model: slices.Index(c.GroupBy, gpusemconv.AttrGPUModel), defaultCluster: c.DefaultCluster, ingero: c.ingero()}
}

// read fills id. A resource that names no cluster belongs to the caller's,
// else to the default one; one that names an empty cluster is left without,
// since that is a mistake of its sender.
func (r *identifier) read(id *identity, ctx context.Context, attrs pcommon.Map) {
	id.node = r.node(attrs)
	id.cluster = r.cluster(ctx, attrs)
	id.peers = id.peers[:0]
	for _, name := range r.groupBy {
		v := ""
		if a, ok := attrs.Get(name); ok {
			v = text(a)
		}
		id.peers = append(id.peers, v)
	}
}

// node names the node. On Kubernetes host.name is often the pod's and changes
// with it.
func (r *identifier) node(attrs pcommon.Map) string {
	for _, name := range [...]string{gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostName, gpusemconv.AttrHostID} {
		if v, ok := attrs.Get(name); ok && text(v) != "" {
			return text(v)
		}
	}
	if r.ingero {
		if v, ok := attrs.Get(ingeroNodeID); ok {
			return text(v)
		}
	}
	return ""
}

func (r *identifier) cluster(ctx context.Context, attrs pcommon.Map) string {
	if v, ok := attrs.Get(gpusemconv.AttrClusterName); ok {
		return text(v)
	}
	if r.ingero {
		if v, ok := attrs.Get(ingeroClusterID); ok {
			return text(v)
		}
	}
	if c := threshold.CallerFromContext(ctx); c.Cluster != "" {
		return c.Cluster
	}
	return r.defaultCluster
}

// stamp writes an identity: what the node's score, signals and verdict carry,
// whichever of its reports led to them. What is about many nodes or groups
// leaves node or peers empty.
func (r *identifier) stamp(attrs pcommon.Map, cluster, node string, peers []string) {
	putText(attrs, gpusemconv.AttrHostName, node)
	attrs.PutStr(gpusemconv.AttrClusterName, cluster)
	for i, name := range r.groupBy[:min(len(r.groupBy), len(peers))] {
		putText(attrs, name, peers[i])
	}
}

// text returns a string value as it is, without a copy, and "" for a value of
// another type that is not worth a name.
func text(v pcommon.Value) string {
	switch v.Type() {
	case pcommon.ValueTypeStr:
		return v.Str()
	case pcommon.ValueTypeInt, pcommon.ValueTypeBool:
		return v.AsString()
	default:
		return ""
	}
}

// findExtension returns the extension id as a T, or an error that says what
// to configure.
func findExtension[T any](host component.Host, id *component.ID) (T, error) {
	var none T
	ext, ok := host.GetExtensions()[*id]
	if !ok {
		return none, fmt.Errorf("`threshold_extension` is %q, which `service::extensions` does not list", id)
	}
	t, ok := ext.(T)
	if !ok {
		return none, fmt.Errorf("`threshold_extension` is %q, must be a straggler_threshold extension", id)
	}
	return t, nil
}
