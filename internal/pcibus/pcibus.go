// SPDX-License-Identifier: Apache-2.0

// Package pcibus reads the PCI bus out of /sys: which GPUs there are, and what lies near
// to what. It is pure.
package pcibus // import "github.com/gpu-collector/gpu-collector/internal/pcibus"

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxDevices bounds a walk over a directory that is not what it should be.
const maxDevices = 16_384

// Devices is the directory of the bus' devices.
func Devices(sys string) string { return filepath.Join(sys, "bus", "pci", "devices") }

// GPUs are the addresses of NVIDIA's display controllers, those that are handed
// through to a virtual machine apart. It reads no more of a device than what the kernel
// remembers: a GPU that is broken may not answer for the rest, which procfs' sysfs
// package reads.
func GPUs(sys string) (shown, handedOver []string) {
	entries, err := os.ReadDir(Devices(sys))
	if err != nil {
		return nil, nil
	}
	for _, entry := range entries[:min(len(entries), maxDevices)] {
		device := filepath.Join(Devices(sys), entry.Name())
		// PCI's class codes: 0x0300 is a VGA controller, 0x0302 a 3D controller.
		class := text(device, "class")
		if text(device, "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		if driver, err := os.Readlink(filepath.Join(device, "driver")); err == nil && strings.HasPrefix(filepath.Base(driver), "vfio") {
			handedOver = append(handedOver, entry.Name())
		} else {
			shown = append(shown, entry.Name())
		}
	}
	return shown, handedOver
}

func text(device, name string) string {
	text, err := os.ReadFile(filepath.Join(device, name)) //nolint:gosec // G304: sysfs is where the operator says it is
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

var address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// IsAddress reports whether a name is the address of a PCI device as /sys writes it.
func IsAddress(name string) bool { return address.MatchString(name) }

// BusID is an address as NVML writes it: 8 digits of domain, in upper case.
func BusID(address string) string {
	domain, rest, _ := strings.Cut(address, ":")
	return strings.ToUpper(strings.Repeat("0", max(0, 8-len(domain))) + domain + ":" + rest)
}

// Place is where a device lies.
type Place struct {
	Address string
	// path are the bridges above it, the host bridge first.
	path []string
	numa string // empty where it is not known
}

var errNoPlace = errors.New("the bus does not show where it lies")

// Find returns where the device of an address lies.
func Find(sys, address string) (Place, error) {
	device := filepath.Join(Devices(sys), address)
	real, err := filepath.EvalSymlinks(device)
	if err != nil {
		return Place{}, err
	}
	p := Place{Address: address}
	if n := text(device, "numa_node"); n != "" && !strings.HasPrefix(n, "-") {
		p.numa = n
	}
	parts := strings.Split(filepath.ToSlash(real), "/")
	for i, part := range parts {
		if strings.HasPrefix(part, "pci") && i+1 < len(parts) && (IsAddress(parts[i+1])) {
			p.path = parts[i : len(parts)-1]
			return p, nil
		}
	}
	if p.numa == "" {
		return Place{}, errNoPlace
	}
	return p, nil
}

// Distance is how far two devices are from each other, the nearest first.
type Distance uint8

// The distances: below one PCIe switch, below one host bridge, of one NUMA node, further.
const (
	Switch Distance = iota
	HostBridge
	NUMA
	Far
)

// String is the distance as an attribute has it.
func (d Distance) String() string { return [...]string{"switch", "host_bridge", "numa", "far"}[d] }

// between returns the distance, and how many bridges are above both.
func between(a, b *Place) (Distance, int) {
	n := 0
	for n < len(a.path) && n < len(b.path) && a.path[n] == b.path[n] {
		n++
	}
	switch {
	case n > 1:
		return Switch, n
	case n == 1:
		return HostBridge, n
	case a.numa != "" && a.numa == b.numa:
		return NUMA, 0
	default:
		return Far, 0
	}
}

// Pair is two devices that are near to each other.
type Pair struct {
	From, To int // index in the lists of Nearest
	Distance Distance
}

// Nearest pairs each device of from with the nearest of to. Of several that are equally
// near each gets another one, in the order of the lists. A host bridge or a NUMA node that
// all of to are at tells nothing, as in a virtual machine, and makes no pair.
func Nearest(from, to []Place) []Pair {
	var pairs []Pair
	taken := make([]int, len(to))
	for i := range from {
		best, depth, equal := Far, 0, 0
		at := -1
		for j := range to {
			d, n := between(&from[i], &to[j])
			switch {
			case d < best || d == best && d != Far && n > depth:
				best, depth, equal, at = d, n, 1, j
			case d == best && d != Far && n == depth:
				equal++
				if taken[j] < taken[at] {
					at = j
				}
			}
		}
		if best == Far || best != Switch && equal == len(to) {
			continue
		}
		taken[at]++
		pairs = append(pairs, Pair{i, at, best})
	}
	return pairs
}
