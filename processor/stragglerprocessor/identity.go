// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"slices"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// identifier reads identities out of resources, and writes them.
type identifier struct {
	names          identity.Names // scratch
	groupBy        []string
	model          int // of gpu.model in groupBy, -1 for none
	defaultCluster string
}

func newIdentifier(c *Config) identifier {
	return identifier{
		names: identity.New(c.GroupBy, c.ingero()), groupBy: c.GroupBy,
		model: slices.Index(c.GroupBy, gpusemconv.AttrGPUModel), defaultCluster: c.DefaultCluster,
	}
}

// read returns who a resource is. The peers are good until the next call.
func (r *identifier) read(caller wire.Caller, attrs pcommon.Map) (key nodeKey, peers []string) {
	metricreading.Identify(&r.names, attrs)
	return nodeKey{r.names.Cluster(caller.Cluster, r.defaultCluster), r.names.Node()}, r.names.Peers
}

// stamp writes an identity: what the node's score, signals and verdict carry,
// whichever of its reports led to them. A text about many nodes or groups leaves
// node or peers empty.
func (r *identifier) stamp(attrs pcommon.Map, cluster, node string, peers []string) {
	putText(attrs, gpusemconv.AttrHostName, node)
	attrs.PutStr(gpusemconv.AttrClusterName, cluster)
	for i, name := range r.groupBy[:min(len(r.groupBy), len(peers))] {
		putText(attrs, name, peers[i])
	}
}
