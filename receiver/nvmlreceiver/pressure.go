// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/hostfacts"
)

// cpuPressure reads how long tasks of the node waited for a CPU.
type cpuPressure struct {
	proc   string
	log    *zap.Logger
	warned bool
}

// read returns the share of the last ten seconds when some task waited for a CPU, in
// [0,1]. It returns nothing where the kernel does not say.
func (p *cpuPressure) read() gpuhealth.Opt[float64] {
	v, err := hostfacts.Pressure(p.proc, hostfacts.CPU)
	if err != nil {
		if !p.warned {
			p.warned = true
			p.log.Warn("no gpu.node.cpu.pressure: the kernel does not tell it, or `proc_path` is not the host's", zap.Error(err))
		}
		return gpuhealth.Opt[float64]{}
	}
	return gpuhealth.Some(v)
}
