// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/ownnode"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

// nodeResource describes the node, without what is unknown. It is made once: a node
// does not change its name while it runs.
func nodeResource(cfg *Config) pcommon.Resource {
	rb := metadata.NewResourceBuilder(cfg.ResourceAttributes)
	ownnode.Describe(rb, cfg.NodeName, cfg.Cluster)
	return rb.Emit()
}

// machineOf tells one machine from another in what the storage keeps: a disk
// may be cloned. A container may have another name each time.
func machineOf(resource pcommon.Resource) string {
	if id, ok := resource.Attributes().Get(gpusemconv.AttrHostID); ok {
		return id.Str()
	}
	return ""
}
