// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/check"
	"github.com/gpu-collector/gpu-collector/internal/distro"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// maxStateBytes bounds a file of the agent's state.
const maxStateBytes = 4 << 20

// elsewhere reads the GPUs in a process of its own: a call of NVML that hangs in the kernel
// keeps its process from ending, whatever signal it gets.
func elsewhere(ctx context.Context, c *distro.Configuration, uris []string, budget time.Duration) *check.GPUs {
	setup, ok := nvml(c)
	if !ok {
		return &check.GPUs{Absent: true}
	}
	began := time.Now()
	late := func() *check.GPUs { return &check.GPUs{Late: true, Waited: time.Since(began)} }
	self, err := os.Executable()
	if err != nil {
		return &check.GPUs{Trouble: err.Error()}
	}
	directory, unread := copyState(setup.Settings["state_directory"])
	defer func() { _ = os.RemoveAll(directory) }()

	args := []string{"check", "--" + gpusFlag, directory, "--timeout", budget.String()}
	for _, uri := range uris {
		args = append(args, "--config", uri)
	}
	cmd := exec.Command(self, args...) //nolint:gosec,noctx // G204: this program; Wait might not return
	said := &strings.Builder{}
	cmd.Stderr = said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return &check.GPUs{Trouble: err.Error()}
	}
	done := make(chan *check.GPUs, 1)
	go func() {
		g := &check.GPUs{}
		if err := json.NewDecoder(out).Decode(g); err != nil {
			g.Trouble = "The process that reads the GPUs ended without a word."
			if err := cmd.Wait(); err != nil {
				g.Trouble = fmt.Sprintf("The process that reads the GPUs failed: %v. %s", err, said)
			}
			g.Expected = 1 // there is somebody whom nobody could ask
		}
		done <- g
	}()
	select {
	case g := <-done:
		_ = cmd.Process.Kill()
		g.Unread = unread
		return g
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		return late()
	}
}

// copyState copies what the agent remembers of its GPUs to a directory of ours, since the
// receiver writes what it reads. It says why it could not; without a memory there is none.
func copyState(from any) (to, unread string) {
	directory, _ := from.(string)
	if directory == "" {
		return "", ""
	}
	entries, err := os.ReadDir(directory)
	if err == nil && len(entries) > 0 {
		to, err = os.MkdirTemp("", "gpu-collector-check-")
	}
	for _, e := range entries {
		info, statErr := e.Info()
		if to == "" || !strings.HasSuffix(e.Name(), ".state") || statErr != nil || info.Size() > maxStateBytes {
			continue
		}
		data, readErr := os.ReadFile(filepath.Join(directory, e.Name())) //nolint:gosec // G304: of the configuration
		if readErr == nil {
			readErr = os.WriteFile(filepath.Join(to, e.Name()), data, 0o600) //nolint:gosec // G703: a name of a directory's entry
		}
		err = errors.Join(err, readErr)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return to, ""
	}
	return to, err.Error()
}

func nvml(c *distro.Configuration) (distro.Setup, bool) {
	for _, s := range c.Section("receivers") {
		if s.ID.Type().String() == "nvml" {
			return s, true
		}
	}
	return distro.Setup{}, false
}

// gpus takes the receiver's first report. What the receiver keeps goes to a directory of ours.
func gpus(ctx context.Context, c *distro.Configuration, set receiver.Settings, directory string, budget time.Duration) (*check.GPUs, error) {
	setup, ok := nvml(c)
	if !ok {
		return &check.GPUs{Absent: true}, nil
	}
	on := map[string]any{"enabled": true}
	over := map[string]any{
		"state_directory": directory, "acknowledge_file": "", "detail": "full", "initial_delay": "0s", "timeout": "0s",
		"collection_interval": "1h", "deadline": min(budget*4/5, time.Hour).String(),
		"metrics": map[string]any{
			gpusemconv.MetricGPUInfo: on, gpusemconv.MetricGPUUp: on, gpusemconv.MetricGPUDevices: on, gpusemconv.MetricGPUHealthState: on,
			gpusemconv.MetricGPUHealthReason: on, gpusemconv.MetricGPUThrottleActive: on, gpusemconv.MetricGPUNVLinkLinks: on,
			gpusemconv.MetricGPUPCIeLinkWidth: on, gpusemconv.MetricGPUPCIeLinkGeneration: on,
		},
	}
	factory := c.Factories.Receivers[setup.ID.Type()]
	cfg, err := setup.Config(factory, over)
	if err != nil {
		return nil, err
	}
	first := make(chan pmetric.Metrics, 1)
	sink, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		select {
		case first <- md:
		default:
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	core, logs := observer.New(zap.InfoLevel)
	set.ID, set.Logger = setup.ID, zap.New(core)
	r, err := factory.CreateMetrics(ctx, set, cfg, sink)
	if err != nil {
		return nil, err
	}
	if err := r.Start(ctx, host{}); err != nil {
		return nil, err
	}
	select {
	case md := <-first:
		g := report(md)
		hear(g, logs.All())
		return g, nil
	case <-ctx.Done():
		return &check.GPUs{Late: true, Waited: budget}, nil
	}
}

// hear takes the receiver's own words for what no metric says.
func hear(g *check.GPUs, logs []observer.LoggedEntry) {
	for _, l := range logs {
		fields := l.ContextMap()
		_, named := fields["gpu"]
		why, failed := fields["error"]
		known, _ := fields["known"].([]any)
		for _, name := range known {
			g.Silent = append(g.Silent, fmt.Sprint(name))
		}
		switch index, one := fields["index"]; {
		case named || !failed:
		case one:
			g.Silent = append(g.Silent, fmt.Sprintf("index %v: %v", index, why))
		case strings.Contains(l.Message, "NVML") || strings.Contains(l.Message, "GPU metrics"):
			g.Trouble = fmt.Sprintf("The receiver says: %s: %v.", l.Message, why)
			g.NoLibrary = !strings.HasPrefix(l.Message, "NVML")
		}
		if file, ok := fields["release_file"]; ok {
			g.Trouble, g.NoLibrary = fmt.Sprintf("NVML is released while %v is there.", file), true
		}
	}
}

// report reads a report of the receiver.
func report(md pmetric.Metrics) *check.GPUs {
	g := &check.GPUs{}
	byID := map[string]*check.GPU{}
	each := func(dp pmetric.NumberDataPoint, m string) {
		text := func(key string) string {
			if v, ok := dp.Attributes().Get(key); ok {
				return v.AsString()
			}
			return ""
		}
		n := int(dp.IntValue())
		if m == gpusemconv.MetricGPUDevices {
			switch text("state") {
			case "expected":
				g.Expected = n
			case "found":
				g.Found = n
			}
			return
		}
		id := text(gpusemconv.AttrHWID)
		if id == "" || text(gpusemconv.AttrHWParent) != "" || dp.Flags().NoRecordedValue() {
			return // a slice counts with its GPU
		}
		d := byID[id]
		if d == nil {
			d = &check.GPU{UUID: id}
			byID[id] = d
		}
		switch m {
		case gpusemconv.MetricGPUInfo:
			if index, ok := dp.Attributes().Get(gpusemconv.AttrGPUIndex); ok && index.Type() == pcommon.ValueTypeInt {
				d.Index = int(index.Int())
			}
			d.PCIBusID = text("gpu.pci.bus_id")
			g.Driver = cmp.Or(g.Driver, text("hw.driver_version"))
		case gpusemconv.MetricGPUUp:
			if n == 0 {
				d.Down = text("reason")
			}
		case gpusemconv.MetricGPUHealthState:
			if n == 1 {
				d.Health = text("state")
			}
		case gpusemconv.MetricGPUHealthReason:
			if n == 1 {
				d.Reasons = append(d.Reasons, check.Reason{Name: text("reason"), Action: text("action")})
			}
		case gpusemconv.MetricGPUThrottleActive:
			if n == 1 {
				d.Throttle = append(d.Throttle, text("reason"))
			}
		case gpusemconv.MetricGPUNVLinkLinks:
			if text("state") == "up" {
				d.LinksUp = n
			} else {
				d.LinksDown = n
			}
		case gpusemconv.MetricGPUPCIeLinkWidth:
			if text("kind") == "max" {
				d.WidthMax = n
			} else {
				d.Width = n
			}
		case gpusemconv.MetricGPUPCIeLinkGeneration:
			if text("kind") == "current" {
				d.Generation = n
			}
		}
	}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Type() != pmetric.MetricTypeGauge {
					continue
				}
				for _, dp := range m.Gauge().DataPoints().All() {
					each(dp, m.Name())
				}
			}
		}
	}
	for _, d := range slices.SortedFunc(maps.Values(byID), func(a, b *check.GPU) int { return cmp.Compare(a.Index, b.Index) }) {
		g.List = append(g.List, *d)
	}
	return g
}
