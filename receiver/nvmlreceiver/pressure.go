// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"

	"github.com/prometheus/procfs"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

var errNoSome = errors.New("there is no line `some` with a percentage in it")

// cpuPressure reads how long tasks of the node waited for a CPU.
type cpuPressure struct {
	proc   string
	log    *zap.Logger
	warned bool
}

// read returns the share of the last ten seconds when some task waited for a CPU, in
// [0,1] (docs.kernel.org/accounting/psi.html). It returns nothing where the kernel
// does not say: before 4.20, without CONFIG_PSI, or with psi=0.
func (p *cpuPressure) read() gpuhealth.Opt[float64] {
	v, err := p.some()
	if err != nil {
		if !p.warned {
			p.warned = true
			p.log.Warn("no gpu.node.cpu.pressure: the kernel does not tell it, or `proc_path` is not the host's", zap.Error(err))
		}
		return gpuhealth.Opt[float64]{}
	}
	return gpuhealth.Some(v)
}

func (p *cpuPressure) some() (float64, error) {
	fs, err := procfs.NewFS(p.proc)
	if err != nil {
		return 0, err
	}
	stats, err := fs.PSIStatsForResource("cpu")
	if err != nil {
		return 0, err
	}
	if stats.Some == nil {
		return 0, errNoSome
	}
	return stats.Some.Avg10 / 100, nil
}
