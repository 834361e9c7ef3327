// SPDX-License-Identifier: Apache-2.0

// Package hostfacts reads what a host does, out of its /proc. It is pure: it knows
// neither pdata nor a clock.
package hostfacts // import "github.com/gpu-collector/gpu-collector/internal/hostfacts"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/procfs"
)

var (
	errNoSome   = errors.New("there is no line `some` with a percentage in it")
	errNoMemory = errors.New("meminfo has no MemTotal with a MemAvailable of at most as much")
	errNoLoad   = errors.New("loadavg has no mean of one minute")
)

// Resource is something that tasks wait for.
type Resource string

// The resources of Linux' pressure stall information.
const (
	CPU    Resource = "cpu"
	Memory Resource = "memory"
	IO     Resource = "io"
)

// Pressure returns the share of the last ten seconds when some task waited for the
// resource, in [0,1] (docs.kernel.org/accounting/psi.html). It fails where the kernel
// does not say: before 4.20, without CONFIG_PSI, or with psi=0.
func Pressure(proc string, of Resource) (float64, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return 0, err
	}
	stats, err := fs.PSIStatsForResource(string(of))
	if err != nil {
		return 0, err
	}
	if stats.Some == nil {
		return 0, errNoSome
	}
	percent := stats.Some.Avg10
	if math.IsNaN(percent) || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("%w: avg10 is %v", errNoSome, percent)
	}
	return percent / 100, nil
}

// Load returns the runnable and waiting tasks, the mean of a minute.
func Load(proc string) (float64, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return 0, err
	}
	load, err := fs.LoadAvg()
	if err != nil {
		return 0, err
	}
	if !(load.Load1 >= 0 && load.Load1 < math.MaxInt32) {
		return 0, fmt.Errorf("%w: it is %v", errNoLoad, load.Load1)
	}
	return load.Load1, nil
}

// MemoryUsed returns the share of the memory that no program could get without swapping,
// in [0,1].
func MemoryUsed(proc string) (float64, error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return 0, err
	}
	m, err := fs.Meminfo()
	if err != nil {
		return 0, err
	}
	if m.MemTotal == nil || m.MemAvailable == nil || *m.MemTotal == 0 || *m.MemAvailable > *m.MemTotal {
		return 0, errNoMemory
	}
	return 1 - float64(*m.MemAvailable)/float64(*m.MemTotal), nil
}

// BootID names this boot of the host, empty where the host does not say.
func BootID(proc string) string {
	text, err := os.ReadFile(filepath.Join(proc, "sys", "kernel", "random", "boot_id")) //nolint:gosec // G304: procfs is where the operator says it is
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// Shares are parts of the CPUs' time, in [0,1].
type Shares struct{ User, System, IOWait, Steal float64 }

// Times takes the CPUs' times one reading after the other.
type Times struct {
	last  procfs.CPUStat
	known bool
}

// Read returns the shares of the time since the last reading of all CPUs together. The
// first reading has none.
func (t *Times) Read(proc string) (s Shares, ok bool, err error) {
	fs, err := procfs.NewFS(proc)
	if err != nil {
		return s, false, err
	}
	stat, err := fs.Stat()
	if err != nil {
		return s, false, err
	}
	now, last, known := stat.CPUTotal, t.last, t.known
	t.last, t.known = now, true
	// The kernel counts a guest's time as the user's too. It may take a little of the time
	// without work back (docs.kernel.org/filesystems/proc.html), so nothing is below 0.
	grew := func(now, last float64) float64 { return max(0, now-last) }
	s = Shares{
		User:   grew(now.User+now.Nice, last.User+last.Nice),
		System: grew(now.System+now.IRQ+now.SoftIRQ, last.System+last.IRQ+last.SoftIRQ),
		IOWait: grew(now.Iowait, last.Iowait),
		Steal:  grew(now.Steal, last.Steal),
	}
	all := s.User + s.System + s.IOWait + s.Steal + grew(now.Idle, last.Idle)
	if !known || !(all > 0) || math.IsInf(all, 0) {
		return Shares{}, false, nil
	}
	return Shares{s.User / all, s.System / all, s.IOWait / all, s.Steal / all}, true, nil
}
