// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

const (
	// The bus changes when somebody swaps a card or rescans it, which is rare.
	inventoryInterval = time.Minute
	// maxPCIDevices bounds a walk over a directory that is not what it should be.
	maxPCIDevices = 16_384
)

// inventory knows how many GPUs the node should have.
type inventory struct {
	configured int
	sys        string
	seen       int
	next       time.Time
}

// gpus is the number of GPUs that there should be, absent where nobody
// knows. A GPU that left the bus is still expected: the most that were seen
// since the start count.
func (v *inventory) gpus(now time.Time) gpuhealth.Opt[int] {
	if v.configured > 0 {
		return gpuhealth.Some(v.configured)
	}
	if !now.Before(v.next) {
		v.next = now.Add(inventoryInterval)
		v.seen = max(v.seen, pciGPUs(v.sys))
	}
	return gpuhealth.Opt[int]{V: v.seen, OK: v.seen > 0}
}

// pciGPUs counts NVIDIA's display controllers on the bus, but for those that
// are handed through to a virtual machine.
func pciGPUs(sys string) int {
	devices := filepath.Join(sys, "bus", "pci", "devices")
	entries, err := os.ReadDir(devices)
	if err != nil {
		return 0
	}
	gpus := 0
	for _, entry := range entries[:min(len(entries), maxPCIDevices)] {
		device := filepath.Join(devices, entry.Name())
		// PCI's class codes: 0x0300 is a VGA controller, 0x0302 a 3D controller.
		class := sysText(device, "class")
		if sysText(device, "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		if driver, err := os.Readlink(filepath.Join(device, "driver")); err == nil && strings.HasPrefix(filepath.Base(driver), "vfio") {
			continue
		}
		gpus++
	}
	return gpus
}

func sysText(device, name string) string {
	text, err := os.ReadFile(filepath.Join(device, name)) //nolint:gosec // G304: sysfs is where the operator says it is
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// census counts the whole GPUs among the samples.
func census(samples []gpuhealth.Sample) (found, down int) {
	for i := range samples {
		switch {
		case samples[i].Parent != "":
		case samples[i].Up():
			found++
		default:
			down++
		}
	}
	return found, down
}
