// SPDX-License-Identifier: Apache-2.0

// Package hostile plays broken and malicious senders to the real binary with the
// shipped configurations, and measures the cost to the others. `make hostile` runs
// it.
package hostile

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	mib = 1 << 20

	// memoryLimit is the memory of a process under attack, as the chart's default, and
	// goMemoryLimit is GOMEMLIMIT in it, four fifths.
	memoryLimit   = 2 << 30
	goMemoryLimit = memoryLimit / 5 * 4
)

// target is a process under attack.
type target struct {
	*process.Collector
	t     *testing.T
	auth  bool  // pushes need a password
	worst int64 // of the peaks that are forgotten
	conn  *grpc.ClientConn
}

// start runs a collector in a cgroup of so many bytes.
func start(t *testing.T, memory int64, o process.Options) *target {
	t.Helper()
	o.Env = append([]string{fmt.Sprintf("GOMEMLIMIT=%d", goMemoryLimit)}, o.Env...)
	cgroup := memoryCgroup(t, memory) // before the collector: that ends first
	g := &target{Collector: process.Prepare(t, o), t: t}
	if cgroup != "" {
		g.Command.Args = append([]string{"-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, cgroup, g.Command.Path}, g.Command.Args...)
		g.Command.Path = "/bin/sh"
	}
	g.Start()
	g.conn = process.Dial(t, g.GRPC)
	return g
}

// gateway runs configs/gateway.yaml, at a faster pace. A node is missing after a minute, and
// after 50 s at the pace that ships: on a busy machine its pushes are late. So are scrapes,
// which are cut off after 30 s as shipped.
func gateway(t *testing.T, over ...string) *target {
	t.Helper()
	const config, pace = "configs/gateway.yaml", `
processors: {straggler: {push_interval: 200ms, ttl_multiplier: 300}}
extensions: {exposition: {http: {write_timeout: 5m}}}
`
	a := process.NewAddrs(t)
	return start(t, memoryLimit, process.Options{Config: append([]string{config, pace, a.Profiled(config)}, over...), Addrs: a})
}

// guarded is a gateway whose clients have passwords for their clusters. It is as in
// tenants.yaml, but readers need none.
func guarded(t *testing.T, clusters ...string) *target {
	t.Helper()
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	require.NoError(t, os.WriteFile(passwords, []byte(strings.Join(clusters, "/*:x\n")+"/*:x\n"), 0o600))
	g := gateway(t, fmt.Sprintf(`
extensions:
  basicauth/agents: {htpasswd: {file: %q}}
  straggler_threshold: {cluster_auth_attribute: username, node_auth_attribute: username}
receivers:
  fleet_otlp:
    protocols: {grpc: {auth: {authenticator: basicauth/agents}}, http: {auth: {authenticator: basicauth/agents}}}
    identity: {cluster_auth_attribute: username, node_auth_attribute: username}
service: {extensions: [straggler_threshold, exposition, fleet_view, healthcheckv2, pprof, basicauth/agents]}
`, passwords))
	g.auth = true
	return g
}

// front are the process that senders push to, and the one that serves their nodes.
type front struct{ door, view *target }

// behindShard is a gateway behind a shard, which compares pushes before they are decoded.
func behindShard(t *testing.T) front {
	t.Helper()
	const config = "configs/shard.yaml"
	g, a := gateway(t), process.NewAddrs(t)
	return front{start(t, memoryLimit, process.Options{
		Config: []string{config, a.Profiled(config)}, Addrs: a, Env: []string{"GPU_COLLECTOR_GATEWAY=" + g.GRPC, "GPU_COLLECTOR_INSECURE=true"},
	}), g}
}

// alone is a gateway without a shard.
func alone(g *target) front { return front{g, g} }

// targets are the processes of a front, by the parts of their figures' names.
func (f front) targets() map[string]*target {
	if f.door == f.view {
		return map[string]*target{"": f.door}
	}
	return map[string]*target{"": f.door, "_gateway": f.view}
}

// credentials are the password of a cluster as a header, where one is needed.
func (g *target) credentials(cluster string) []string {
	if !g.auth {
		return nil
	}
	return []string{"authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(cluster+"/*:x"))}
}

func (g *target) as(ctx context.Context, cluster string, headers ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, append(g.credentials(cluster), headers...)...)
}

// memoryCgroup makes a cgroup with a limit, where a process above it is killed. Without the
// right to make one the test is skipped, or fails where HOSTILE_CGROUP=require.
// HOSTILE_CGROUP=none runs it without the limit.
func memoryCgroup(t *testing.T, limit int64) (dir string) {
	t.Helper()
	mode := os.Getenv("HOSTILE_CGROUP")
	if mode == "none" {
		return ""
	}
	root, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes" // version 1
	}
	dir, err := os.MkdirTemp(root, "gpu-collector-hostile-") //nolint:usetesting // it has to lie among the cgroups
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, os.Remove(dir)) })
		err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o600)
	}
	if err != nil {
		require.NotEqual(t, "require", mode, "HOSTILE_CGROUP: no memory cgroup: %v", err)
		t.Skipf("no memory cgroup bounds the process, HOSTILE_CGROUP=none goes without: %v", err)
	}
	require.FileExists(t, filepath.Join(dir, "cgroup.procs"))
	return dir
}

// usage is what a process takes, in bytes where it is memory.
type usage struct {
	goroutines, fds, logged int
	heap, rss               int64
}

// usage measures the process, after its garbage is collected.
func (g *target) usage() (u usage) {
	g.t.Helper()
	u.heap, u.goroutines = g.Memory()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", g.PID()))
	require.NoError(g.t, err)
	u.fds, u.logged = len(fds), len(strings.Join(g.Log.Lines(), "\n"))
	u.rss = g.memory("VmRSS")
	return u
}

// kept is the heap that the process keeps: the least of some looks, since a scrape that is
// under way holds more for a while.
func (g *target) kept() int64 {
	g.t.Helper()
	least := g.usage().heap
	for range 6 {
		time.Sleep(time.Second)
		least = min(least, g.usage().heap)
	}
	return least
}

func (g *target) memory(key string) int64 {
	g.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.PID()))
	require.NoError(g.t, err, "the process is gone: %s", g.Log.Tail(40))
	m := regexp.MustCompile(key + `:\s+(\d+) kB`).FindSubmatch(text)
	require.NotNil(g.t, m)
	kib, err := strconv.ParseInt(string(m[1]), 10, 64)
	require.NoError(g.t, err)
	return kib << 10
}

// forgetPeak lets the peak of the memory begin anew (proc(5), clear_refs).
func (g *target) forgetPeak() {
	g.t.Helper()
	g.worst = g.peak()
	require.NoError(g.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", g.PID()), []byte("5"), 0o600))
}

// peak is the most memory that was resident since the start.
func (g *target) peak() int64 { return max(g.worst, g.memory("VmHWM")) }

func get(url string) ([]byte, error) {
	resp, err := process.Send(context.Background(), nil, http.MethodGet, url, nil)
	if err == nil && resp.Status != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, resp.Status)
	}
	return resp.Body, err
}

// post sends a body to the OTLP receiver, and returns the status, 0 when the server hung
// up, and the answer.
func (g *target) post(client *http.Client, path, contentType string, body []byte, headers ...string) (int, string) {
	headers = append(slices.Clone(headers), "Content-Type", contentType)
	resp, _ := process.Send(g.t.Context(), client, http.MethodPost, "http://"+g.HTTP+path, body, headers...)
	return resp.Status, string(resp.Body)
}

// metrics posts a push that is compressed by gzip.
func (g *target) metrics(contentType string, zipped []byte) int {
	status, _ := g.post(nil, "/v1/metrics", contentType, zipped, "Content-Encoding", "gzip")
	return status
}

func atOnce(times int, do func()) {
	var all sync.WaitGroup
	for range times {
		all.Go(do)
	}
	all.Wait()
}

func keepAlive(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: process.Patience, Transport: transport}
}

const (
	logsMethod   = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
	tracesMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
)
