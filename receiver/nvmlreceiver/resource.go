// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"cmp"
	"os"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
)

const (
	nodeNameEnv   = "K8S_NODE_NAME"
	machineIDPath = "/etc/machine-id"
)

// nodeResource describes the node, without what is unknown. It is made once: a node
// does not change its name while it runs.
func nodeResource(cfg *Config) pcommon.Resource {
	rb := metadata.NewResourceBuilder(cfg.ResourceAttributes)
	if name, err := os.Hostname(); err == nil && name != "" {
		rb.SetHostName(name)
	}
	if id, err := os.ReadFile(machineIDPath); err == nil {
		if text := strings.TrimSpace(string(id)); text != "" {
			rb.SetHostID(text)
		}
	}
	if name := cmp.Or(cfg.NodeName, os.Getenv(nodeNameEnv)); name != "" {
		rb.SetK8sNodeName(name)
	}
	if cfg.Cluster != "" {
		rb.SetK8sClusterName(cfg.Cluster)
	}
	return rb.Emit()
}
