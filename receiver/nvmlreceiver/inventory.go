// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// The bus changes when somebody swaps a card or rescans it, which is rare.
const inventoryInterval = time.Minute

// visibleEnv is how NVIDIA's container toolkit is told which GPUs a container gets.
const visibleEnv = "NVIDIA_VISIBLE_DEVICES"

// inventory looks at the PCI bus for the GPUs that the node has.
type inventory struct {
	sys   string
	next  time.Time
	shown int // GPUs on the bus at the last look
}

// readable reports whether the bus tells how many GPUs to expect. A container that
// was given some GPUs sees all on the bus, but NVML lists only the given GPUs.
func (v *inventory) readable() (ok bool, why string) {
	if given := os.Getenv(visibleEnv); given != "" && given != allGPUs {
		return false, visibleEnv + " is " + given
	}
	if _, err := os.ReadDir(v.devices()); err != nil {
		return false, err.Error()
	}
	return true, ""
}

func (v *inventory) devices() string { return filepath.Join(v.sys, "bus", "pci", "devices") }

// look tells the roster what is on the bus, when it is time to look again.
func (v *inventory) look(known *roster.Roster, now time.Time) {
	if now.Before(v.next) {
		return
	}
	v.next = now.Add(inventoryInterval)
	if ok, _ := v.readable(); ok {
		shown, handedOver := v.gpus()
		v.shown = len(shown)
		known.SeeBus(shown, handedOver)
	}
}

// gpus are the addresses of NVIDIA's display controllers, those that are handed
// through to a virtual machine apart. It reads no more of a device than what
// the kernel remembers: a GPU that is broken may not answer for the rest, which
// procfs' sysfs package reads.
func (v *inventory) gpus() (shown, handedOver []string) {
	entries, err := os.ReadDir(v.devices())
	if err != nil {
		return nil, nil
	}
	for _, entry := range entries {
		device := filepath.Join(v.devices(), entry.Name())
		// PCI's class codes: 0x0300 is a VGA controller, 0x0302 a 3D controller.
		class := sysText(device, "class")
		if sysText(device, "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
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

func sysText(device, name string) string {
	text, err := os.ReadFile(filepath.Join(device, name)) //nolint:gosec // G304: sysfs is where the operator says it is
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// census counts the whole GPUs that answer.
func census(samples []gpuhealth.Sample) (found int) {
	for i := range samples {
		if samples[i].Parent == "" && samples[i].Up() {
			found++
		}
	}
	return found
}
