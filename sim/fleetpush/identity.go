// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
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
	d := digits{state: seed ^ uint64(node+1)<<32}
	id.hostID = string(d.fill(make([]byte, 32), 16)) // as systemd's machine id
	id.gpus = id.gpus[:0]
	for gpu := range gpus {
		// A random UUID, as NVML's are (RFC 9562, 5.4).
		uuid := d.fill(make([]byte, 36), 16)
		uuid[8], uuid[13], uuid[14], uuid[18], uuid[19], uuid[23] = '-', '-', '4', '-', '8', '-'
		id.gpus = append(id.gpus, gpuhealth.Identity{
			UUID: "GPU-" + string(uuid), Index: gpu, Model: product, Serial: string(d.fill(make([]byte, 13), 10)),
			PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x1b+gpu), VBIOS: "96.00.89.00.01", DriverVersion: "570.86.15", CUDAVersion: "12.8",
		})
	}
}

// digits draws digits by splitmix64 (Steele, Lea, Flood, OOPSLA 2014), which
// needs no state on the heap.
type digits struct{ state uint64 }

func (d *digits) fill(to []byte, base uint64) []byte {
	var x uint64
	for i := range to {
		if i%16 == 0 {
			d.state += 0x9e3779b97f4a7c15
			x = d.state
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			x = (x ^ x>>27) * 0x94d049bb133111eb
			x ^= x >> 31
		}
		to[i] = "0123456789abcdef"[x%16%base]
		x >>= 4
	}
	return to
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
