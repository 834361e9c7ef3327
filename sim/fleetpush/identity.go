// SPDX-License-Identifier: Apache-2.0

package fleetpush

import "fmt"

// The lengths of names, which are the same for all nodes so that one may be
// written over another.
const (
	nodeNameSize = len("node-000000")
	hostIDSize   = 32 // systemd's machine id
	gpuIDSize    = len("GPU-00000000-0000-4000-8000-000000000000")
	serialSize   = len("1652422000001")
)

// identity is what a node and its GPUs are called.
type identity struct {
	node, cluster, job string
	hostID             [hostIDSize]byte
	gpus               []gpuIdentity
}

type gpuIdentity struct {
	uuid   [gpuIDSize]byte
	serial [serialSize]byte
}

// NodeName returns the name of a node of a fleet.
func NodeName(node int) string { return fmt.Sprintf("node-%06d", node) }

func jobName(job int) string { return fmt.Sprintf("job-%05d", job) }

// names of the GPUs and the host, made anew for each report so that a fleet
// does not keep them.
func (id *identity) draw(seed uint64, node, gpus int) {
	d := digits{state: seed ^ uint64(node+1)<<32}
	d.fill(id.hostID[:], 16)
	if cap(id.gpus) < gpus {
		id.gpus = make([]gpuIdentity, gpus)
	}
	id.gpus = id.gpus[:gpus]
	for i := range id.gpus {
		g := &id.gpus[i]
		copy(g.uuid[:], "GPU-")
		uuid := g.uuid[len("GPU-"):]
		d.fill(uuid, 16)
		// A random UUID, as NVML's are (RFC 9562, 5.4).
		uuid[8], uuid[13], uuid[14], uuid[18], uuid[19], uuid[23] = '-', '-', '4', '-', '8', '-'
		d.fill(g.serial[:], 10)
	}
}

// digits draws digits by splitmix64 (Steele, Lea, Flood, OOPSLA 2014), which
// needs no state on the heap.
type digits struct{ state uint64 }

func (d *digits) fill(to []byte, base uint64) {
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
}

// write puts the names into a resource.
func (id *identity) write(resource []byte, at []place) {
	for _, p := range at {
		to := resource[p.at:]
		switch p.name {
		case nameNode:
			copy(to, id.node)
		case nameHostID:
			copy(to, id.hostID[:])
		case nameCluster:
			copy(to, id.cluster)
		case nameJob:
			copy(to, id.job)
		}
	}
}

// text returns a name.
func (id *identity) text(k nameKind) string {
	return [...]string{nameNode: id.node, nameHostID: string(id.hostID[:]), nameCluster: id.cluster, nameJob: id.job}[k]
}
