// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"strconv"
	"strings"
)

// Device is a device id of the kubelet's, taken apart.
type Device struct {
	// UUID is the GPU's or the MIG slice's UUID, empty where the id has none.
	UUID string
	// Index is the minor number of the GPU, of an id without a UUID, else -1.
	Index int
	// GPUInstance is the id of the MIG GPU instance on that GPU, else -1.
	GPUInstance int
	// Shared tells that the id is one of several for the same device.
	Shared bool
}

// ParseDevice takes a device id apart. It knows
//   - GPU-UUID and MIG-UUID of NVIDIA's device plugin, also old MIG UUIDs with
//     slashes (MIG-GPU-UUID/1/0), and `UUID::3` of its time-slicing and MPS,
//   - nvidia0, nvidia0/gi1, nvidia0/vgpu1 and nvidia0/gi1/vgpu1 of GKE's,
//   - CDI names such as k8s.gpu.nvidia.com/device=gpu-0, nvidia.com/gpu=GPU-UUID,
//     and the device names of NVIDIA's DRA driver, gpu-0 and gpu-0-mig-9-4-4,
//
// and says false to everything else.
func ParseDevice(id string) (Device, bool) {
	if _, name, ok := strings.Cut(id, "="); ok {
		if !isNVIDIA(id) {
			return Device{}, false
		}
		id = name
	}
	id, _, shared := strings.Cut(id, "::")
	d := Device{Index: -1, GPUInstance: -1, Shared: shared}
	if i := strings.LastIndex(id, "GPU-"); i >= 0 && !strings.HasPrefix(id, "MIG-") {
		// A claim's UID goes before the device's name in CDI names of DRA.
		id = id[i:]
	}
	switch {
	case strings.HasPrefix(id, "GPU-"), strings.HasPrefix(id, "MIG-"):
		d.UUID = id
		return d, printable(id)
	case strings.HasPrefix(id, "nvidia"):
		return d.gke(strings.TrimPrefix(id, "nvidia"))
	default:
		return d.dra(id)
	}
}

// isNVIDIA reports whether a CDI name, vendor/class=device, is of a vendor of
// NVIDIA's: nvidia.com, or k8s.gpu.nvidia.com of its DRA driver. Another's gpu-0
// is not NVML's.
func isNVIDIA(cdi string) bool {
	vendor, _, ok := strings.Cut(cdi, "/")
	return ok && (vendor == "nvidia.com" || strings.HasSuffix(vendor, ".nvidia.com"))
}

// gke takes apart what follows `nvidia`.
func (d Device) gke(id string) (Device, bool) {
	parts := strings.Split(id, "/")
	if len(parts) > 3 {
		return Device{}, false
	}
	var ok bool
	if d.Index, ok = number(parts[0]); !ok {
		return Device{}, false
	}
	for _, part := range parts[1:] {
		if gi, found := strings.CutPrefix(part, "gi"); found && d.GPUInstance < 0 && !d.Shared {
			if d.GPUInstance, ok = number(gi); !ok {
				return Device{}, false
			}
			continue
		}
		vgpu, found := strings.CutPrefix(part, "vgpu")
		if _, ok = number(vgpu); !found || !ok || d.Shared {
			return Device{}, false
		}
		d.Shared = true
	}
	return d, true
}

// dra takes apart gpu-0 and gpu-0-mig-PROFILE-START-SIZE, also after a claim's
// UID and a dash. Which slice the latter is, the name does not say; it is
// reported on the GPU.
func (d Device) dra(id string) (Device, bool) {
	i := strings.LastIndex(id, "gpu-")
	if i < 0 || i > 0 && id[i-1] != '-' {
		return Device{}, false
	}
	index, rest, mig := strings.Cut(id[i+len("gpu-"):], "-")
	if mig && !strings.HasPrefix(rest, "mig-") {
		return Device{}, false
	}
	var ok bool
	d.Index, ok = number(index)
	d.Shared = d.Shared || mig
	if !ok {
		return Device{}, false
	}
	return d, true
}

// number is a small number in decimal digits.
func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil
}

func printable(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return len(id) > len("GPU-")
}
