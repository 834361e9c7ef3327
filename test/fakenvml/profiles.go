// SPDX-License-Identifier: Apache-2.0

package fakenvml

import "fmt"

// Profiles are the nodes that there is a ready state for, by the name that the
// command takes. A reading that a model does not support has no key.
var Profiles = map[string]func(gpus int) *State{
	"h100":     NewH100,
	"b200":     NewB200,
	"a100-mig": NewA100MIG,
	"t4":       NewT4,
}

// NewH100 is NewState with all that an H100 reports: NVLink counters by link,
// fabric, row remapping, GPM and the cumulative fields.
func NewH100(gpus int) *State {
	s := NewState(gpus).Set("confidential_compute", 0)
	for i := range gpus {
		s.fabric(i)
		s.setAll(i, map[string]any{
			"temperature.margin": 40 - i, "temperature.max": 87, "temperature.memory.max": 95, "temperature.slowdown": 90, "temperature.shutdown": 95,
			"gpm.1": 88, "gpm.20": 2048, "gpm.21": 1024, "gpm.60": 4096 + i, "gpm.61": 8192,
			"gpm.2": 80, "gpm.3": 40, "gpm.5": 55, "gpm.10": 30, "gpm.11": 0, "gpm.12": 5, "gpm.13": 10,
			"field.186": 351_000 + 1_250*i, "field.194": below(2), "field.161": 0, "field.162": 0, "field.163": 0,
		})
	}
	return s
}

// below is a number of degrees below zero, as a field carries it.
func below(degrees int32) uint32 { return uint32(-degrees) }

// NewB200 is a node of B200s. Its set of readings is after nvml.h of NVML 13:
// fields 161 to 163 ended with Hopper and 201 to 222 came with NVLink 5, and
// the T.Limit fields supersede the absolute thresholds from Ada on. That the
// hardware slows down at -3 is from NVSentinel's ADR-042; size, power limit and
// links are from NVIDIA's data sheet of the HGX B200. Temperatures, clocks and
// counts are made up; none of it was read from a board.
func NewB200(gpus int) *State {
	s := NewState(gpus).Set("driver.version", "580.65.06").Set("cuda.version", 13000).Set("confidential_compute", 0)
	for i := range gpus {
		s.fabric(i)
		s.setAll(i, map[string]any{
			"name": "NVIDIA B200", "memory.total": uint64(180) << 30, "memory.used": uint64(140+i) << 30,
			"power.limit": 1_000_000, "power.limit.max": 1_000_000,
			"clock.graphics": 1965, "clock.sm": 1965, "clock.memory": 3996, "clock.max.graphics": 1965, "clock.max.sm": 1965, "clock.max.memory": 3996,
			"temperature.margin": 35 - i,
			"gpm.1":              92, "gpm.20": 2048, "gpm.21": 1024, "gpm.60": 4096, "gpm.61": 8192,
			"gpm.2": 85, "gpm.3": 45, "gpm.5": 60, "gpm.10": 35, "gpm.11": 0, "gpm.12": 5, "gpm.13": 10,
			"field.186": 801_000 + 1_250*i, "field.194": below(3),
			"field.202": 5_120_000_000 / 18, "field.204": 6_144_000_000 / 18,
			"field.213": 0, "field.214": 0, "field.215": 0, "field.219": 0, "field.221": 0,
			"field.220": 0xFF, "field.222": 1<<8 | 15, // 0 and 1e-15
		})
	}
	return s
}

// NewA100MIG is a node of A100s that are cut into two slices each: 3g.20gb and
// 1g.5gb.
func NewA100MIG(gpus int) *State {
	s := NewState(gpus)
	for i := range gpus {
		s.datacentre(i)
		s.setAll(i, map[string]any{
			"name": "NVIDIA A100-SXM4-40GB", "memory.total": uint64(40) << 30, "memory.used": uint64(10+i) << 30,
			"power.limit": 400_000, "power.limit.max": 400_000,
			"temperature.max": 85, "temperature.memory.max": 95, "temperature.slowdown": 89, "temperature.shutdown": 92,
			"repair.channel": 0, "repair.tpc": 0,
			"remapped.corrected": 0, "remapped.uncorrected": 0, "remapped.pending": 0, "remapped.failed": 0, "sram.threshold_exceeded": 0,
			"pcie.generation": 4, "pcie.generation.max": 4,
			"nvlink.links": 12, "field.38": 0, "field.45": 0, "field.161": 0, "field.162": 0, "field.163": 0, "mode.gsp": 1,
			"mig.mode": 1, "mig.places": 7,
		})
		s.Slice(i, 0, 2, 0, "3g.20gb", uint64(20)<<30).Slice(i, 1, 9, 0, "1g.5gb", uint64(5)<<30)
	}
	return s
}

// NewT4 is a node of T4s: no NVLink, no row remapping, no memory temperature.
func NewT4(gpus int) *State {
	s := NewState(gpus)
	for i := range gpus {
		s.datacentre(i)
		s.setAll(i, map[string]any{
			"name": "Tesla T4", "memory.total": uint64(15) << 30, "memory.used": uint64(4+i) << 30,
			"power": 40_000 + i, "power.limit": 70_000, "power.limit.max": 70_000,
			"temperature.max": 85, "temperature.slowdown": 93, "temperature.shutdown": 96,
			"retired.sbe": 0, "retired.dbe": 0, "retired.pending": 0,
			"pcie.generation": 3, "pcie.generation.max": 3, "mode.gsp": 0,
		})
		s.DeleteGPU(i, "temperature.memory")
	}
	return s
}

// fabric sets what the boards with NVLink switches report, from Hopper on.
func (s *State) fabric(gpu int) {
	s.datacentre(gpu)
	s.setAll(gpu, map[string]any{
		"remapped.corrected": 0, "remapped.uncorrected": 0, "remapped.pending": 0, "remapped.failed": 0, "sram.threshold_exceeded": 0,
		"pcie.generation": 5, "pcie.generation.max": 5,
		"nvlink.links": 18, "nvlink.state.field": 1, "fabric.state": 3, "fabric.summary": 1, "fabric.mask": 0xAA | 1<<8 | 1<<12,
		"mig.mode": 0, "mode.gsp": 1, "gpm.supported": 1,
		"repair.channel": 0, "repair.tpc": 0,
		"field.193": below(8), "field.195": 0, "field.196": 0, "field.230": 0,
		"field.197": 1_000_000 + gpu, "field.198": 2_000_000 + gpu, "field.138": 5_000_000 + gpu, "field.139": 6_000_000 + gpu,
		"field.140": 5_500_000 + gpu, "field.141": 6_500_000 + gpu,
		"field.269": 0, "field.270": 0, "field.271": 0,
	})
}

// datacentre sets what all of the boards report.
func (s *State) datacentre(gpu int) {
	s.setAll(gpu, map[string]any{
		"pstate": 0, "mode.persistence": 1, "mode.ecc": 1, "pcie.width": 16, "pcie.width.max": 16,
		"processes.compute": 1, "processes.graphics": 0,
		"ecc.corrected.volatile.dram": 0, "ecc.corrected.volatile.sram": 0, "ecc.corrected.aggregate.dram": gpu, "ecc.corrected.aggregate.sram": 0,
		"ecc.uncorrected.volatile.dram": 0, "ecc.uncorrected.volatile.sram": 0, "ecc.uncorrected.aggregate.dram": 0, "ecc.uncorrected.aggregate.sram": 0,
		"field.74": 1_000_000_000, "field.75": 0, "field.76": 0, "field.77": 0, "field.78": 0, "field.79": 0, "field.94": 0, "field.95": 0,
	})
}

// Slice puts a MIG slice into a slot of the GPU, 0 to 6.
func (s *State) Slice(gpu, slot, gi, ci int, profile string, memory uint64) *State {
	for key, value := range map[string]any{
		"uuid": SliceUUID(gpu, slot), "name": "NVIDIA A100-SXM4-40GB MIG " + profile, "gi": gi, "ci": ci,
		"memory.total": memory, "memory.used": memory / 4, "processes.compute": 1, "ecc.uncorrected.volatile.sram": 0,
	} {
		s.SetGPU(gpu, fmt.Sprintf("mig.%d.%s", slot, key), value)
	}
	return s
}

// DeleteSlice empties a slot of the GPU.
func (s *State) DeleteSlice(gpu, slot int) *State {
	return s.DeleteGPU(gpu, fmt.Sprintf("mig.%d.uuid", slot))
}

// SliceUUID is the UUID that Slice gives.
func SliceUUID(gpu, slot int) string {
	return fmt.Sprintf("MIG-00000000-0000-4000-8%03d-%012d", slot, gpu)
}

// XIDOf adds an Xid event of an instance of the GPU.
func (s *State) XIDOf(gpu, code, gi, ci int) *State {
	s.xids = append(s.xids, fmt.Sprintf("xid %d %d %d %d", gpu, code, gi, ci))
	return s
}
