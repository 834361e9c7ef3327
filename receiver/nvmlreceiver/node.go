// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/ownnode"
	"github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/nvml"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// The bus changes with a swapped card or a rescan, which is rare.
const inventoryInterval = time.Minute

// visibleEnv is NVIDIA's container toolkit's setting of which GPUs a container gets.
const visibleEnv = "NVIDIA_VISIBLE_DEVICES"

// inventory looks at the PCI bus for the GPUs that the node has.
type inventory struct {
	sys   string
	next  time.Time
	shown int // GPUs on the bus at the last look
}

// readable reports whether the bus shows how many GPUs to expect. A container that
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

// look hands what is on the bus to the roster, when it is time to look again.
func (v *inventory) look(known *roster.Roster, now time.Time) {
	if now.Before(v.next) {
		return
	}
	v.next = now.Add(inventoryInterval)
	if ok, _ := v.readable(); ok {
		shown, handedOver, others := v.gpus()
		v.shown = len(shown)
		known.SeeBus(shown, handedOver, others)
	}
}

// gpus are the addresses of NVIDIA's display controllers. NVML can only ever see those
// of the driver `nvidia`, so a device that another driver has is apart: one that is
// handed through to a virtual machine, or a display's board of nouveau. A device without
// a driver is a GPU: `nvidia` is to come, or has failed at it. It reads no more of a
// device than what the kernel remembers: a GPU that is broken may not answer for the
// rest, which procfs' sysfs package reads.
func (v *inventory) gpus() (shown, handedOver, others []string) {
	entries, err := os.ReadDir(v.devices())
	if err != nil {
		return nil, nil, nil
	}
	for _, entry := range entries {
		device := filepath.Join(v.devices(), entry.Name())
		// PCI's class codes: 0x0300 is a VGA controller, 0x0302 a 3D controller.
		class := sysText(device, "class")
		if sysText(device, "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(device, "physfn")); err == nil {
			continue // a virtual function of a GPU, which NVML does not list
		}
		link, err := os.Readlink(filepath.Join(device, "driver"))
		switch driver := filepath.Base(link); {
		case err != nil, driver == "nvidia":
			shown = append(shown, entry.Name())
		case strings.Contains(driver, "vfio"), driver == "pci-stub", driver == "pciback":
			handedOver = append(handedOver, entry.Name())
		default:
			others = append(others, entry.Name())
		}
	}
	return shown, handedOver, others
}

func sysText(device, name string) string {
	text, err := os.ReadFile(filepath.Join(device, name)) //nolint:gosec // G304: sysfs is where the operator says it is
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// driverLoads finds out which load of the driver NVML is opened on.
type driverLoads struct {
	proc, sys string
	gone      bool // the driver was not there, or another, since NVML was opened last
}

// note looks for a driver that is gone.
func (d *driverLoads) note(r *nvml.Report) {
	gone := func(r gpuhealth.Reason) bool {
		return r == gpuhealth.ReasonDriverNotLoaded || r == gpuhealth.ReasonDriverMismatch
	}
	d.gone = d.gone || gone(r.Down) || slices.ContainsFunc(r.Samples, func(s gpuhealth.Sample) bool { return gone(s.Reason) })
}

// opened is the load that NVML was just opened on, and whether the driver was
// seen gone before.
func (d *driverLoads) opened(r *nvml.Report) (load gpuhealth.DriverLoad, gone bool) {
	load.BootID = sysText(filepath.Join(d.proc, "sys", "kernel", "random"), "boot_id")
	// The module's directory is made anew with each load, and kernfs gives
	// inode numbers out in turn (idr_alloc_cyclic in fs/kernfs/dir.c). Its
	// times do not help: they are those of the inode in the cache.
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

var errNoSome = errors.New("there is no line `some` with a percentage in it")

// cpuPressure reads how long tasks of the node waited for a CPU.
type cpuPressure struct {
	proc   string
	log    *zap.Logger
	warned bool
}

// read returns the share of the last ten seconds when some task waited for a CPU, in
// [0,1] (docs.kernel.org/accounting/psi.html). It returns nothing where the kernel
// has no figure: before 4.20, without CONFIG_PSI, or with psi=0.
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

// nodeResource describes the node, without what is unknown. It is made once: a node
// does not change its name while it runs.
func nodeResource(cfg *Config) pcommon.Resource {
	rb := metadata.NewResourceBuilder(cfg.ResourceAttributes)
	ownnode.Describe(rb, cfg.NodeName, cfg.Cluster)
	return rb.Emit()
}

// OwnNode implements ownnode.Namer: by the attributes of each report.
func (c *Config) OwnNode() (cluster, node string) {
	var names identity.Names
	for key, value := range nodeResource(c).Attributes().All() {
		names.Take(key, value.Str())
	}
	return names.Cluster("", ""), names.Node()
}
