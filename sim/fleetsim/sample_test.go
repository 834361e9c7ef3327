// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
)

// The rubric judges the samples as it judges such GPUs.
func TestHealthOfFaults(t *testing.T) {
	for kind, want := range map[Kind][]string{
		SlowNode: nil, Drift: nil, Flapping: nil, PowerLimit: nil, ClockLock: nil, CPU: nil, Neighbour: nil, XidError: nil,
		ThermalThrottle: {"hw_thermal_slowdown", "sw_thermal_slowdown"},
		Brake:           {"hw_throttle_lasting"},
		ECC:             {"ecc_uncorrected", "remap_pending", "ecc_corrected_rate", "memory_history"},
		ECCCorrected:    {"ecc_corrected_rate"},
		LostGPU:         {"gpu_lost"},
		NVLink:          {"nvlink_down"},
		NVLinkErrors:    {"nvlink_errors", "nvlink_crc"},
		PCIe:            {"pcie_width"},
		PCIeSlow:        {"pcie_generation"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			n := alone(2)
			n.Inject(Fault{Kind: kind, GPU: AllGPUs, From: 5 * time.Minute})
			m := gpuhealth.NewMonitor(gpuhealth.DefaultRubric())
			now := time.Unix(1e9, 0)
			var v gpuhealth.Verdict
			for poll := range 90 {
				n.Advance(10 * time.Second)
				now = now.Add(10 * time.Second)
				r := n.Reading(0)
				s := r.Sample(gpuhealth.Identity{UUID: "GPU-0", Model: "NVIDIA H100 80GB HBM3"})
				assert.Empty(t, s.Validate())
				if v = m.Observe(&s, now); poll < 28 {
					assert.Equal(t, gpuhealth.StateHealthy, v.State)
				}
			}
			var names []string
			for _, r := range v.Reasons {
				names = append(names, r.Reason)
			}
			for _, name := range want {
				assert.Contains(t, names, name)
			}
			if want == nil {
				assert.Empty(t, names, fmt.Sprint(n.Reading(0)))
			}
		})
	}
}
