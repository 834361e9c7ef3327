// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	protobufType = "application/x-protobuf"
	jsonType     = "application/json"

	mib = 1 << 20

	// deadline ends what hangs. It is no limit: how long something took is a figure.
	deadline = 5 * time.Minute
)

// target is a process under attack.
type target struct {
	t *testing.T

	grpc, http, prom, api, fleet, telemetry, pprof string

	auth  bool  // pushes need a password
	worst int64 // of the peaks that are forgotten

	process *process.Process

	conn   *grpc.ClientConn
	client pmetricotlp.GRPCClient
}

// options of a target. Configs are files below the root; overlay is YAML that
// goes over them.
type options struct {
	configs    []string
	extensions string // besides those that ship
	overlay    string
	env        []string
	// users are the clusters with a password, where nobody else may push.
	users  []string
	binary string // another one than the full distribution
	memory int64  // of its cgroup, memoryLimit by default
}

// gateway runs configs/gateway.yaml, at a faster pace. A busy machine is no silence:
// what is 50 s at the pace that ships is a minute here.
func gateway(t *testing.T, o options) *target {
	t.Helper()
	g := newTarget(t)
	o.configs = append([]string{"configs/gateway.yaml"}, o.configs...)
	g.identify(&o)
	g.start(o, fmt.Sprintf(`
receivers: {fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
processors: {straggler: {push_interval: 200ms, ttl_multiplier: 300}}
extensions:
  exposition: {http: {endpoint: %q}}
  straggler_threshold: {api: {endpoint: %q}}
  fleet_view: {http: {endpoint: %q}}
  healthcheckv2: {http: {endpoint: %q}}
  pprof: {endpoint: %q}
service:
  extensions: [straggler_threshold, exposition, fleet_view, healthcheckv2, pprof%s]
  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}}
`, g.grpc, g.http, g.prom, g.api, g.fleet, loopback.FreeAddr(t), g.pprof, o.extensions, port(g.telemetry)))
	return g
}

// shard runs configs/shard.yaml before a next hop.
func shard(t *testing.T, next string, o options) *target {
	t.Helper()
	s := newTarget(t)
	o.configs = append([]string{"configs/shard.yaml"}, o.configs...)
	s.identify(&o)
	o.env = append(o.env, "GPU_COLLECTOR_GATEWAY="+next, "GPU_COLLECTOR_INSECURE=true")
	s.start(o, fmt.Sprintf(`
receivers: {fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
extensions:
  healthcheckv2: {http: {endpoint: %q}}
  pprof: {endpoint: %q}
service:
  extensions: [straggler_threshold, exposition, healthcheckv2, pprof%s]
  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: %s}}}}]}}
`, s.grpc, s.http, loopback.FreeAddr(t), s.pprof, o.extensions, port(s.telemetry)))
	return s
}

// front is where senders push, and where what became of it can be seen.
type front struct{ door, view *target }

// alone is a gateway without a shard.
func alone(g *target) front { return front{g, g} }

// targets are the processes of a front.
func (f front) targets() []*target {
	if f.door == f.view {
		return []*target{f.door}
	}
	return []*target{f.door, f.view}
}

// as adds the password of a cluster, where one is needed.
func (g *target) as(ctx context.Context, cluster string) context.Context {
	if !g.auth {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", basic(cluster))
}

func basic(cluster string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(cluster+"/*:x"))
}

// fronts are a gateway, and a gateway behind a shard. The shard compares pushes
// before they are decoded.
var fronts = map[string]func(*testing.T, options) front{
	"gateway": func(t *testing.T, o options) front {
		t.Helper()
		return alone(gateway(t, o))
	},
	"shard": func(t *testing.T, o options) front {
		t.Helper()
		g := gateway(t, o)
		return front{shard(t, g.grpc, options{}), g}
	},
}

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

func newTarget(t *testing.T) *target {
	t.Helper()
	addr := func() string { return loopback.FreeAddr(t) }
	return &target{t: t, grpc: addr(), http: addr(), prom: addr(), api: addr(), fleet: addr(), telemetry: addr(), pprof: addr()}
}

// identify holds clients to their own clusters, where some have a password. It is as in
// tenants.yaml, but readers need none.
func (g *target) identify(o *options) {
	if g.auth = len(o.users) > 0; !g.auth {
		return
	}
	passwords := filepath.Join(g.t.TempDir(), "htpasswd")
	require.NoError(g.t, os.WriteFile(passwords, []byte(strings.Join(o.users, "/*:x\n")+"/*:x\n"), 0o600))
	o.extensions += ", basicauth/agents"
	o.configs = append(o.configs, fmt.Sprintf(`
extensions:
  basicauth/agents: {htpasswd: {file: %q}}
  straggler_threshold: {cluster_auth_attribute: username, node_auth_attribute: username}
receivers:
  fleet_otlp:
    protocols: {grpc: {auth: {authenticator: basicauth/agents}}, http: {auth: {authenticator: basicauth/agents}}}
    identity: {cluster_auth_attribute: username, node_auth_attribute: username}
`, passwords))
}

func (g *target) start(o options, overlay string) {
	t := g.t
	t.Helper()
	dir := t.TempDir()
	var args []string
	for i, c := range append(o.configs, overlay, o.overlay) {
		if c == "" {
			continue
		}
		if strings.Contains(c, "\n") {
			file := filepath.Join(dir, strconv.Itoa(i)+".yaml")
			require.NoError(t, os.WriteFile(file, []byte(c), 0o600))
			c = file
		}
		args = append(args, "--config", c)
	}
	bin, err := filepath.Abs(cmp.Or(o.binary, binary))
	if o.binary == "" && strings.HasPrefix(binary, "bin/") {
		bin, err = filepath.Abs(filepath.Join(root, binary))
	}
	require.NoError(t, err)
	command := append(memoryCgroup(t, cmp.Or(o.memory, memoryLimit)), append([]string{bin}, args...)...)
	g.process = process.New(process.Command{
		Path: command[0], Args: command[1:], Dir: root,
		Env: append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "STATE_DIRECTORY=" + dir, fmt.Sprintf("GOMEMLIMIT=%d", goMemoryLimit)}, o.env...),
	})
	t.Cleanup(func() {
		assert.NoError(t, g.process.Stop())
		if t.Failed() {
			t.Logf("the end of its log:\n%s", g.process.Log.Tail(40))
		}
	})
	require.NoError(t, g.process.Start())
	g.conn = dial(t, g.grpc)
	g.client = pmetricotlp.NewGRPCClient(g.conn)
}

func (g *target) ended() bool { return g.process.Ended() }

// usage is what a process takes.
type usage struct {
	goroutines, fds, logged int
	heap, rss, peak         int64 // bytes; the heap after a collection
}

var (
	goroutineTotal = regexp.MustCompile(`goroutine profile: total (\d+)`)
	heapInuse      = regexp.MustCompile(`# HeapAlloc = (\d+)`)
)

// usage measures the process, after its garbage is collected.
func (g *target) usage() (u usage) {
	g.t.Helper()
	u.goroutines = int(g.profiled("goroutine?debug=1", goroutineTotal))
	u.heap = g.profiled("heap?gc=1&debug=1", heapInuse)
	dir := fmt.Sprintf("/proc/%d/", g.process.PID())
	fds, err := os.ReadDir(dir + "fd")
	require.NoError(g.t, err)
	u.fds, u.logged = len(fds), len(strings.Join(g.process.Log.Lines(), "\n"))
	u.rss, u.peak = g.memory("VmRSS"), g.memory("VmHWM")
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", g.process.PID()))
	require.NoError(g.t, err, "the process is gone: %s", g.process.Log.Tail(40))
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
	require.NoError(g.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", g.process.PID()), []byte("5"), 0o600))
}

// peak is the most memory that was resident since the start.
func (g *target) peak() int64 { return max(g.worst, g.memory("VmHWM")) }

func (g *target) profiled(what string, value *regexp.Regexp) int64 {
	g.t.Helper()
	_, text := g.get("http://" + g.pprof + "/debug/pprof/" + what)
	m := value.FindSubmatch(text)
	require.NotNil(g.t, m, "%.300s", text)
	n, err := strconv.ParseInt(string(m[1]), 10, 64)
	require.NoError(g.t, err)
	return n
}

// requireCalm requires that an attack has left nothing behind: no goroutines, no
// memory beyond some, and no more than some lines in the log.
func (g *target) requireCalm(before usage, heap int64, logged int) {
	g.t.Helper()
	require.False(g.t, g.ended(), "it lives")
	var after usage
	if !within(deadline, func() bool {
		after = g.usage()
		return after.goroutines <= before.goroutines+20 && after.fds <= before.fds+10 && after.heap <= before.heap+heap
	}) {
		require.Fail(g.t, "it keeps what the attack took", "before %+v, after %+v", before, after)
	}
	assert.LessOrEqual(g.t, after.logged-before.logged, logged, "bytes in the log")
}

var httpClient = &http.Client{Timeout: deadline, Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

func (g *target) get(url string) (int, []byte) {
	g.t.Helper()
	resp, err := httpClient.Get(url)
	require.NoError(g.t, err)
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(g.t, err)
	return resp.StatusCode, body
}

// post sends a body to the OTLP receiver over a connection that is kept, and
// returns the status, 0 when the server hung up.
func (g *target) post(client *http.Client, path, contentType string, body []byte, headers ...string) int {
	g.t.Helper()
	code, _ := g.postText(client, path, contentType, body, headers...)
	return code
}

// postText is post, and returns the answer's body as well.
func (g *target) postText(client *http.Client, path, contentType string, body []byte, headers ...string) (int, string) {
	g.t.Helper()
	req, err := http.NewRequestWithContext(g.t.Context(), http.MethodPost, "http://"+g.http+path, bytes.NewReader(body))
	require.NoError(g.t, err)
	req.Header.Set("Content-Type", contentType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, ""
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, mib))
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode, string(text)
}

func keepAlive(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: deadline, Transport: transport}
}

// eventually polls until the condition holds, in the test's own goroutine.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	if !within(deadline, condition) {
		require.Fail(t, "not within "+deadline.String()+": "+what)
	}
}

func within(d time.Duration, condition func() bool) bool { return process.Within(d, condition) }
