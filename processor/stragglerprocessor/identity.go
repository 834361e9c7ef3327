// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"slices"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/wire"
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

// read fills id.
func (r *identifier) read(id *identity, caller wire.Caller, attrs pcommon.Map) {
	names := metricreading.Identify(attrs, r.ingero)
	id.node, id.cluster = names.Node(), names.Cluster(caller.Cluster, r.defaultCluster)
	id.peers = id.peers[:0]
	for _, name := range r.groupBy {
		v := ""
		if a, ok := attrs.Get(name); ok {
			v = metricreading.Text(a)
		}
		id.peers = append(id.peers, v)
	}
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
