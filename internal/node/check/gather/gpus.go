// SPDX-License-Identifier: Apache-2.0

package gather

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpu-collector/gpu-collector/internal/node/check"
	"github.com/gpu-collector/gpu-collector/internal/platform/distro"
	"github.com/gpu-collector/gpu-collector/internal/platform/statefile"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

const timedOut = "NVML has not answered in time."

// elsewhere reads the GPUs in a process of its own: one with a call of NVML that hangs in the
// kernel ends by no signal, and its parent waits for ever.
func elsewhere(ctx context.Context, c *distro.Configuration, uris []string, budget time.Duration) []check.Finding {
	setup, ok := nvml(c)
	if !ok {
		return []check.Finding{{Check: "driver", Status: check.Unknown, Text: "The configuration has no nvml receiver.", Next: "Give the agent's with --config."}}
	}
	directory, unread := copyState(setup)
	defer func() { _ = os.RemoveAll(directory) }()
	self, err := os.Executable()
	if err != nil {
		return check.Unread(err.Error())
	}
	args := []string{"check", "--gpus", "--json", "--" + hereFlag, directory, "--timeout", budget.String()}
	for _, uri := range uris {
		args = append(args, "--config", uri)
	}
	cmd := exec.Command(self, args...) //nolint:gosec,noctx // G204: this program; Wait might not return
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return check.Unread(err.Error())
	}
	defer func() { _ = cmd.Process.Kill() }()
	done := make(chan []check.Finding, 1)
	go func() {
		var r report
		if json.NewDecoder(out).Decode(&r) != nil {
			r.Checks = check.Unread(fmt.Sprintf("The process that reads the GPUs failed: %v. %s", cmd.Wait(), stderr))
		}
		done <- append(r.Checks, unread...)
	}()
	select {
	case found := <-done:
		return found
	case <-ctx.Done():
		return check.Unread(timedOut)
	}
}

// copyState copies what the agent remembers of its GPUs to a directory of ours, since the
// receiver writes what it reads. A container may have nothing else to write to than memory.
func copyState(setup distro.Setup) (to string, unread []check.Finding) {
	from, _ := setup.Settings["state_directory"].(string)
	to, err := os.MkdirTemp("/dev/shm", "gpu-collector-check-")
	var data []byte
	if err == nil {
		data, err = os.ReadFile(statefile.Path(from, setup.ID.String()))
	}
	if err == nil {
		err = os.WriteFile(statefile.Path(to, setup.ID.String()), data, 0o600) //nolint:gosec // G703: a directory of ours
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		unread = []check.Finding{{Check: "gpus", Status: check.Warn, Text: "Nobody knows of GPUs lost earlier: " + err.Error() + ".", Next: "Run it as root, or as the agent's user."}}
	}
	return to, unread
}

func nvml(c *distro.Configuration) (distro.Setup, bool) {
	for _, s := range c.Section("receivers") {
		if s.ID.Type().String() == "nvml" {
			return s, true
		}
	}
	return distro.Setup{}, false
}

// Six reports are as many as a rule of the rubric takes that does not count minutes. The
// first does not know the siblings of a GPU.
const (
	looks = 7
	pause = 200 * time.Millisecond
)

// logBuffer is the log of a receiver.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *logBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *logBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSuffix(w.text.String(), "; ") + "."
}

// here takes the last of the receiver's first reports. The receiver keeps its state in a
// directory of ours.
func here(ctx context.Context, c *distro.Configuration, set component.TelemetrySettings, directory string, budget time.Duration) ([]check.Finding, error) {
	setup, _ := nvml(c)
	metrics := map[string]any{gpusemconv.MetricGPUAllocation: map[string]any{"enabled": false}}
	for _, name := range []string{
		gpusemconv.MetricGPUInfo, gpusemconv.MetricGPUDevices, gpusemconv.MetricGPUHealthState, gpusemconv.MetricGPUHealthReason,
		metricFabricState,
	} {
		metrics[name] = map[string]any{"enabled": true}
	}
	factory := c.Factories.Receivers[setup.ID.Type()]
	// The deadline is the agent's, 3 s by default.
	deadline, err := time.ParseDuration(fmt.Sprint(setup.Settings["deadline"]))
	if err != nil {
		deadline = 3 * time.Second
	}
	cfg, err := setup.Config(factory, map[string]any{
		"state_directory": directory, "acknowledge_file": "", "detail": "full", "initial_delay": "0s", "timeout": "0s",
		"collection_interval": pause.String(), "deadline": min(budget*4/5, deadline).String(), "metrics": metrics,
	})
	if err != nil {
		return nil, err
	}
	reports := make(chan *check.GPUs, looks)
	sink, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		select {
		case reports <- read(md):
		default: // enough
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	log := &logBuffer{}
	lines := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "m", ConsoleSeparator: " ", LineEnding: "; ", EncodeDuration: zapcore.StringDurationEncoder})
	set.Logger = zap.New(zapcore.NewCore(lines, zapcore.AddSync(log), zap.InfoLevel))
	failures := sdkmetric.NewManualReader()
	set.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(failures))
	r, err := factory.CreateMetrics(ctx, receiver.Settings{ID: setup.ID, TelemetrySettings: set}, cfg, sink)
	if err != nil {
		return nil, err
	}
	if err := r.Start(ctx, host{}); err != nil {
		return nil, err
	}
	var last *check.GPUs
	for more := looks; more > 0; more-- {
		select {
		case last = <-reports:
			last.Looks = looks - more + 1
		case <-ctx.Done():
			more = 0 // a call hangs
		}
	}
	if last == nil {
		return check.Unread(timedOut), nil
	}
	last.Log, last.All, last.Failures = log.String(), looks, failed(failures)
	return last.Findings(), nil
}

// harmless are failures that leave nothing unjudged. The rubric knows the first two. The others
// are of a driver that is older than the call.
var harmless = []string{"gpu_is_lost", "reset_required", "invalid_argument", "argument_version_mismatch", "deprecated"}

// failed lists the functions of NVML that failed, and how. No rule reads GPM.
func failed(reader sdkmetric.Reader) (functions []string) {
	var rm metricdata.ResourceMetrics
	_ = reader.Collect(context.Background(), &rm)
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			counts, ok := m.Data.(metricdata.Sum[int64])
			if !ok || m.Name != "otelcol_receiver_nvml_call_failures" {
				continue
			}
			for i := range counts.DataPoints {
				function, _ := counts.DataPoints[i].Attributes.Value("function")
				code, _ := counts.DataPoints[i].Attributes.Value("return")
				if !slices.Contains(harmless, code.AsString()) && !strings.HasPrefix(function.AsString(), "nvmlGpm") {
					functions = append(functions, function.AsString()+" ("+code.AsString()+")")
				}
			}
		}
	}
	slices.Sort(functions)
	return functions
}

const metricFabricState = "hw.gpu.fabric.state"

// read reads a report of the receiver.
func read(md pmetric.Metrics) *check.GPUs {
	g := &check.GPUs{}
	byID := map[string]*check.GPU{}
	each := func(dp pmetric.NumberDataPoint, m string) {
		text := func(key string) string {
			if v, ok := dp.Attributes().Get(key); ok {
				return v.AsString()
			}
			return ""
		}
		id, n := text(gpusemconv.AttrHWID), int(dp.IntValue())
		d := byID[id]
		if d == nil {
			d = &check.GPU{UUID: id}
			byID[id] = d
			if id != "" && text(gpusemconv.AttrHWParent) == "" { // a slice counts with its GPU
				g.List = append(g.List, d)
			}
		}
		switch {
		case m == gpusemconv.MetricGPUDevices && text("state") == "expected":
			g.Expected = n
		case m == gpusemconv.MetricGPUDevices && text("state") == "found":
			g.Found = n
		case n != 1:
		case m == gpusemconv.MetricGPUInfo:
			d.Index, d.PCIBusID = text(gpusemconv.AttrGPUIndex), text("gpu.pci.bus_id")
			g.Driver = cmp.Or(g.Driver, text("hw.driver_version"))
		case m == metricFabricState:
			d.Joining = text("state") == "not_started" || text("state") == "in_progress"
		case m == gpusemconv.MetricGPUHealthState:
			d.Health = text("state")
		case m == gpusemconv.MetricGPUHealthReason:
			d.Reasons, d.Actions = append(d.Reasons, text("reason")), append(d.Actions, text("action"))
		}
	}
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, dp := range metricreading.Points(m).All() {
					if !dp.Flags().NoRecordedValue() {
						each(dp, m.Name())
					}
				}
			}
		}
	}
	return g
}
