// SPDX-License-Identifier: Apache-2.0

package process

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// Root is the repository, as a package two folders below sees it.
const Root = "../.."

// Patience ends a wait for what does not come. It is no limit of how long something may
// take: that depends on the machine.
const Patience = 5 * time.Minute

// Eventually waits until the condition holds and returns how long that took. It polls in
// the test's own goroutine, so that the condition may require.
func Eventually(t testing.TB, what string, condition func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	if !Within(Patience, condition) {
		require.Fail(t, "not within "+Patience.String()+": "+what)
	}
	return time.Since(began)
}

// Addrs are the addresses of a collector; restarts keep them.
type Addrs struct{ GRPC, HTTP, Prom, API, Fleet, Health, PProf, Telemetry string }

// NewAddrs returns addresses that no other test has.
func NewAddrs(t testing.TB) (a Addrs) {
	t.Helper()
	for _, addr := range []*string{&a.GRPC, &a.HTTP, &a.Prom, &a.API, &a.Fleet, &a.Health, &a.PProf, &a.Telemetry} {
		*addr = loopback.FreeAddr(t)
	}
	return a
}

// Overlay moves the configuration of an agent, shard or gateway to the addresses, and has
// an agent run without GPUs. It is empty for any other configuration.
func (a *Addrs) Overlay(config string) string {
	served, pipelines := "", ""
	switch config {
	case "configs/agent.yaml":
		served = fmt.Sprintf("exposition: {http: {endpoint: %q}}, ", a.Prom)
		pipelines = "pipelines: {metrics: {receivers: [fleet_otlp]}, logs: {receivers: [fleet_otlp]}}"
	case "configs/gateway.yaml":
		served = fmt.Sprintf("exposition: {http: {endpoint: %q}}, straggler_threshold: {api: {endpoint: %q}}, fleet_view: {http: {endpoint: %q}}, ", a.Prom, a.API, a.Fleet)
	case "configs/shard.yaml":
	default:
		return ""
	}
	return fmt.Sprintf(`
receivers: {fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
extensions: {%shealthcheckv2: {http: {endpoint: %q}}}
service:
  telemetry: {metrics: %s}
  %s
`, a.GRPC, a.HTTP, served, a.Health, TelemetryAt(a.Telemetry), pipelines)
}

// Profiled is YAML that runs the extension pprof, which Memory asks, and more extensions
// beside those of the configuration of an agent, shard or gateway.
func (a *Addrs) Profiled(config string, more ...string) string {
	runs := append([]string{"straggler_threshold", "exposition", "healthcheckv2", "pprof"}, more...)
	if config == "configs/gateway.yaml" {
		runs = append(runs, "fleet_view")
	}
	return fmt.Sprintf("extensions: {pprof: {endpoint: %q}}\nservice: {extensions: [%s]}\n", a.PProf, strings.Join(runs, ", "))
}

// TelemetryAt is the value of service::telemetry::metrics that serves a collector's own
// metrics at an address.
func TelemetryAt(addr string) string {
	return fmt.Sprintf("{readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}", Port(addr))
}

// Port is that of an address.
func Port(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// Options of a collector.
type Options struct {
	// Binary is the full distribution by default.
	Binary string
	// Config are files below Root, and YAML. The first file decides what Addrs.Overlay
	// puts over the files, and the YAML goes over that.
	Config []string
	// Env is added to PATH and directories of the collector's own.
	Env []string
	// Addrs are new ones by default.
	Addrs Addrs
}

// Collector is a process of a test. It obeys in time, or the test fails.
type Collector struct {
	*Process
	Addrs
	t testing.TB
}

// Prepare returns a collector that does not run yet and ends with the test.
func Prepare(t testing.TB, o Options) *Collector {
	t.Helper()
	if o.Binary == "" {
		o.Binary = Binary(t, "gpu-collector")
	}
	if o.Addrs == (Addrs{}) {
		o.Addrs = NewAddrs(t)
	}
	var files, texts []string
	for _, config := range o.Config {
		if strings.Contains(config, "\n") {
			texts = append(texts, config)
		} else {
			files = append(files, config)
		}
	}
	if len(files) > 0 {
		if moved := o.Addrs.Overlay(files[0]); moved != "" {
			files = append(files, moved)
		}
	}
	c := &Collector{Process: New(Command{
		Path: o.Binary, Args: ConfigArgs(t, append(files, texts...)...), Dir: Root,
		Env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "STATE_DIRECTORY=" + t.TempDir()}, o.Env...),
	}), Addrs: o.Addrs, t: t}
	t.Cleanup(func() {
		c.Stop()
		if t.Failed() {
			t.Logf("log of %v:\n%s", files, c.Log.Tail(60))
		}
	})
	return c
}

// Run starts a collector, which ends with the test, and waits until it is ready.
func Run(t testing.TB, o Options) *Collector {
	t.Helper()
	c := Prepare(t, o)
	c.Start()
	return c
}

// ConfigArgs are the arguments for files and YAML, later ones over earlier ones.
func ConfigArgs(t testing.TB, configs ...string) (args []string) {
	t.Helper()
	for _, config := range configs {
		if strings.Contains(config, "\n") {
			file := filepath.Join(t.TempDir(), "config.yaml")
			require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
			config = file
		}
		args = append(args, "--config", config)
	}
	return args
}

// Start starts the collector, for the first time or again.
func (c *Collector) Start() {
	c.t.Helper()
	require.NoError(c.t, c.Process.Start())
}

// Stop ends the collector as an orchestrator does.
func (c *Collector) Stop() {
	c.t.Helper()
	assert.NoError(c.t, c.Process.Stop())
}

// Kill ends the collector as a crash does.
func (c *Collector) Kill() {
	c.t.Helper()
	assert.NoError(c.t, c.Process.Kill())
}

// WaitLog waits for n lines with all the parts.
func (c *Collector) WaitLog(n int, parts ...string) {
	c.t.Helper()
	Eventually(c.t, fmt.Sprintf("%d log lines have %q", n, parts), func() bool { return c.Log.Count(parts...) >= n })
}

// URL is an address of the fleet view.
func (c *Collector) URL(path string) string { return "http://" + c.Fleet + path }

// Push is where OTLP/HTTP takes metrics.
func (c *Collector) Push() string { return "http://" + c.HTTP + "/v1/metrics" }

// Memory returns the bytes of the heap after a garbage collection, and the number of
// goroutines, by the extension pprof at its address.
func (c *Collector) Memory() (heap int64, goroutines int) {
	c.t.Helper()
	read := func(page, format string, into any) {
		c.t.Helper()
		resp := Fetch(c.t, "http://"+c.PProf+"/debug/pprof/"+page)
		_, found, ok := strings.Cut(string(resp.Body), format)
		require.True(c.t, ok, "%.300s", resp.Body)
		_, err := fmt.Sscan(found, into)
		require.NoError(c.t, err)
	}
	// Twice: what has a finalizer, or was pooled, is free after the second.
	read("heap?gc=1&debug=1", "# HeapAlloc = ", &heap)
	read("heap?gc=1&debug=1", "# HeapAlloc = ", &heap)
	read("goroutine?debug=1", "goroutine profile: total ", &goroutines)
	return heap, goroutines
}

// Binary returns the path of a command in the directory GPU_COLLECTOR_BIN, or in bin.
func Binary(t testing.TB, command string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(cmp.Or(os.Getenv("GPU_COLLECTOR_BIN"), Root+"/bin"), command))
	require.NoError(t, err)
	require.FileExists(t, path, "make bin/%s", command)
	return path
}
