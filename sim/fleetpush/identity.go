// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"math/rand/v2"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// identity is how a node and its GPUs are called.
type identity struct {
	node, hostID, cluster, job string
	gpus                       []gpuhealth.Identity
}

// product is the GPUs' hw.model.
const product = "NVIDIA H100 80GB HBM3"

// NodeName returns the name of a node of a fleet.
func NodeName(node int) string { return fmt.Sprintf("node-%06d", node) }

func jobName(job int) string { return fmt.Sprintf("job-%05d", job) }

// draw draws the names of the host and its GPUs, for each report anew, so that a
// fleet does not keep them.
func (id *identity) draw(seed uint64, node, gpus int) {
	rng := rand.New(rand.NewPCG(seed, uint64(node)))
	id.hostID = fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()) // as systemd's machine id
	id.gpus = id.gpus[:0]
	for gpu := range gpus {
		a, b := rng.Uint64(), rng.Uint64()
		id.gpus = append(id.gpus, gpuhealth.Identity{
			// A random UUID, as NVML's are (RFC 9562, 5.4).
			UUID:  fmt.Sprintf("GPU-%08x-%04x-4%03x-8%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0xfff, b&0xffff_ffff_ffff),
			Index: gpu, Model: product, Serial: fmt.Sprintf("%013d", rng.Uint64N(1e13)),
			PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x1b+gpu), VBIOS: "96.00.89.00.01", DriverVersion: "570.86.15", CUDAVersion: "12.8",
		})
	}
}

// hostAttrs name a node as its receivers do.
var hostAttrs = []string{gpusemconv.AttrHostName, gpusemconv.AttrK8sNodeName, gpusemconv.AttrHostID, gpusemconv.AttrClusterName}

// name puts names into a resource.
func (id *identity) name(resource pcommon.Resource, attrs ...string) {
	for _, attr := range attrs {
		text := id.node
		switch attr {
		case gpusemconv.AttrHostID:
			text = id.hostID
		case gpusemconv.AttrClusterName:
			text = id.cluster
		case gpusemconv.AttrJobID:
			text = id.job
		}
		resource.Attributes().PutStr(attr, text)
	}
}
