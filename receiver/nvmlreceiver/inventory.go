// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"os"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/pcibus"
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
	if _, err := os.ReadDir(pcibus.Devices(v.sys)); err != nil {
		return false, err.Error()
	}
	return true, ""
}

// look tells the roster what is on the bus, when it is time to look again.
func (v *inventory) look(known *roster.Roster, now time.Time) {
	if now.Before(v.next) {
		return
	}
	v.next = now.Add(inventoryInterval)
	if ok, _ := v.readable(); ok {
		shown, handedOver := pcibus.GPUs(v.sys)
		v.shown = len(shown)
		known.SeeBus(shown, handedOver)
	}
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
