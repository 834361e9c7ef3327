// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
)

// driverLoads finds out which load of the driver NVML is opened on.
type driverLoads struct {
	proc, sys string
	gone      bool // the driver was not there, or another, since NVML was opened last
}

// note looks for a driver that is gone.
func (d *driverLoads) note(r *nvml.Report) {
	d.gone = d.gone || slices.ContainsFunc(r.Samples, func(s gpuhealth.Sample) bool {
		return s.Reason == gpuhealth.ReasonDriverNotLoaded || s.Reason == gpuhealth.ReasonDriverMismatch
	})
}

// opened is the load that NVML was just opened on, and whether the driver was
// seen gone before.
func (d *driverLoads) opened(r *nvml.Report) (load gpuhealth.DriverLoad, gone bool) {
	load.BootID = sysText(filepath.Join(d.proc, "sys", "kernel", "random"), "boot_id")
	// The module's directory is made anew with each load, and kernfs gives
	// inode numbers out in turn (idr_alloc_cyclic in fs/kernfs/dir.c). Its
	// times say nothing: they are those of the inode in the cache.
	if info, err := os.Stat(filepath.Join(d.sys, "module", "nvidia")); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			load.Module = strconv.FormatUint(uint64(st.Ino), 10) //nolint:unconvert // not a uint64 everywhere
		}
	}
	for i := range r.Samples {
		if v := r.Samples[i].DriverVersion; v != "" && r.Samples[i].Up() {
			load.Version = v
			break
		}
	}
	gone, d.gone = d.gone, false
	return load, gone
}
