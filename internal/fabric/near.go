// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"slices"

	"github.com/gpu-collector/gpu-collector/internal/pcibus"
)

// Near says which port is nearest to a GPU.
type Near struct {
	GPU      string // its address as NVML writes it
	Port     string // its ID
	Distance string
}

// FindNear relates the GPUs of the node to its ports: to those of RDMA devices, where
// there are any. Ports of the default route are left out, they carry no collective. A GPU
// that nothing is known of to be near has no relation.
func FindNear(sys string, ports []Port, route map[string]bool) []Near {
	gpus, _ := pcibus.GPUs(sys)
	if len(gpus) == 0 {
		return nil
	}
	rdma := slices.ContainsFunc(ports, func(p Port) bool { return p.rdma() })
	var from, to []pcibus.Place
	var ids []string
	for i := range ports {
		p := &ports[i]
		if p.PCI == "" || p.rdma() != rdma || route[p.Interface] {
			continue
		}
		if place, err := pcibus.Find(sys, p.PCI); err == nil {
			to, ids = append(to, place), append(ids, p.ID)
		}
	}
	for _, address := range gpus {
		if place, err := pcibus.Find(sys, address); err == nil {
			from = append(from, place)
		}
	}
	pairs := pcibus.Nearest(from, to)
	near := make([]Near, 0, len(pairs))
	for _, pair := range pairs {
		near = append(near, Near{GPU: pcibus.BusID(from[pair.From].Address), Port: ids[pair.To], Distance: pair.Distance.String()})
	}
	return near
}

// rdma reports whether it is a port of an RDMA device.
func (p *Port) rdma() bool { return p.ID != p.Device }
