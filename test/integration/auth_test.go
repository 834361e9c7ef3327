// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/authority"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// ca is a CA of a test's own.
type ca struct {
	*authority.Authority
	t *testing.T
}

func newAuthority(t *testing.T) *ca {
	t.Helper()
	a, err := authority.New()
	require.NoError(t, err)
	return &ca{a, t}
}

// issue writes tls.crt, tls.key and ca.crt into a directory.
func (a *ca) issue() (dir string) {
	a.t.Helper()
	dir = a.t.TempDir()
	require.NoError(a.t, a.Issue(dir, time.Hour))
	return dir
}

// client returns the settings of a client that trusts the CA, with a
// certificate of another's or without one.
func (a *ca) client(by *ca) *tls.Config {
	a.t.Helper()
	conf := a.Client()
	if by != nil {
		dir := by.issue()
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
		require.NoError(a.t, err)
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf
}

func secureConn(t *testing.T, addr string, conf *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestMutualTLS runs gateway and agent with the overlays for it and real
// certificates: the agent's data arrives, and nobody else's.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ports, below := newGatewayPorts(t), newAgentPorts(t)
	g := start(t, options{
		configs: []string{"configs/gateway.yaml", "configs/overlays/mtls-gateway.yaml", ports.overlay(t)},
		env:     []string{"GPU_COLLECTOR_TLS=" + ca.issue()},
	})
	start(t, options{
		configs: []string{"configs/agent.yaml", "configs/overlays/mtls-agent.yaml", below.overlay(t)},
		env:     []string{"GPU_COLLECTOR_TLS=" + ca.issue(), "GPU_COLLECTOR_GATEWAY=" + ports.grpc},
	})
	app := grpcClient(t, below.grpc)
	eventually(t, "what the agent takes is at the gateway", func() bool {
		md := pmetric.NewMetrics()
		gauge(node(md, "secure", nil), "gpu.app.step.duration", "s", 2)
		_, err := app.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
		require.NoError(t, err)
		return len(scrapeOver(t, ca.client(ca), ports.prom).with("gpu_app_step_duration_seconds", labels{"host_name": "secure"})) == 1
	})

	md := pmetric.NewMetrics()
	score(md, "intruder", nil, 0.1)
	for name, conf := range map[string]*tls.Config{
		"no certificate":  ca.client(nil),
		"of another CA":   ca.client(newAuthority(t)),
		"an old protocol": {RootCAs: ca.client(nil).RootCAs, Certificates: ca.client(ca).Certificates, MaxVersion: tls.VersionTLS12},
	} {
		client := pmetricotlp.NewGRPCClient(secureConn(t, ports.grpc, conf))
		_, err := client.Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
		assert.Equal(t, codes.Unavailable, status.Code(err), name)
		_, err = postOver(t, conf, "https://"+ports.http+"/v1/metrics", marshal(t, md))
		require.Error(t, err, name)
		_, err = postOver(t, conf, "https://"+ports.prom+"/metrics", nil)
		require.Error(t, err, name)
	}
	_, err := grpcClient(t, ports.grpc).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
	require.Error(t, err, "in the clear")
	resp, err := postOver(t, ca.client(ca), "https://"+ports.http+"/v1/metrics", marshal(t, pmetric.NewMetrics()))
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.status)
	assert.Empty(t, scrapeOver(t, ca.client(ca), ports.prom).with("gpu_node_health_score_ratio", labels{"host_name": "intruder"}))
	assert.Zero(t, g.log.Count("panic"))
}

// postOver sends a push over a connection of its own.
func postOver(t *testing.T, conf *tls.Config, url string, body []byte, headers ...string) (response, error) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(body))
	require.NoError(t, err)
	if body == nil {
		req.Method = http.MethodGet
	}
	req.Header.Set("Content-Type", protobufType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, resp.Header, text}, err
}

// scrapeOver reads /metrics over TLS.
func scrapeOver(t *testing.T, conf *tls.Config, addr string, headers ...string) scraped {
	t.Helper()
	resp, err := postOver(t, conf, "https://"+addr+"/metrics", nil, headers...)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.status, "%s", resp.body)
	return parseScrape(t, bytes.NewReader(resp.body))
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// TestNobodySpeaksForAnother has two tenants at one gateway, and one of them
// claims to be the other in every place where a push can say who it is.
func TestNobodySpeaksForAnother(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ports := newGatewayPorts(t)
	passwords, readers := filepath.Join(t.TempDir(), "htpasswd"), filepath.Join(t.TempDir(), "readers")
	require.NoError(t, os.WriteFile(passwords, []byte("lab/*:shard-secret\nevil/e0:evil-secret\n"), 0o600))
	require.NoError(t, os.WriteFile(readers, []byte("*/*:reader-secret\n"), 0o600))
	g := &target{gatewayPorts: ports, collector: start(t, options{
		configs: []string{"configs/gateway.yaml", "configs/overlays/mtls-gateway.yaml", "configs/overlays/tenants.yaml", ports.overlay(t)},
		env:     []string{"GPU_COLLECTOR_TLS=" + ca.issue(), "GPU_COLLECTOR_HTPASSWD=" + passwords, "GPU_COLLECTOR_READERS_HTPASSWD=" + readers},
	})}
	conf := ca.client(ca)
	reader := []string{"Authorization", basic("*/*", "reader-secret")}
	read := func(url string) []byte {
		t.Helper()
		resp, err := postOver(t, conf, url, nil, reader...)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.status, "%s", resp.body)
		return resp.body
	}
	conn := secureConn(t, ports.grpc, conf)
	g.client = pmetricotlp.NewGRPCClient(conn)
	as := func(user, password string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", basic(user, password))
	}
	lab, evil := as("lab/*", "shard-secret"), as("evil/e0", "evil-secret")

	fleet := pmetric.NewMetrics()
	healthyFleet(fleet, "lab")
	asked := metadata.AppendToOutgoingContext(lab, "gpu-cluster", "lab", "gpu-group", `"default"`)
	eventually(t, "the tenant has its threshold", func() bool {
		var header metadata.MD
		_, err := g.client.Export(asked, pmetricotlp.NewExportRequestFromMetrics(fleet), grpc.Header(&header))
		require.NoError(t, err)
		return len(header.Get("gpu-straggler-threshold")) == 1
	})

	attacks := map[string]pmetric.Metrics{}
	attack := func(name string, attrs map[string]string) {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		for k, v := range attrs {
			rm.Resource().Attributes().PutStr(k, v)
		}
		ms := rm.ScopeMetrics().AppendEmpty().Metrics()
		gauge(ms, "gpu.node.health_score", "1", 0.01)
		gauge(ms, "gpu.straggler.threshold", "1", 0.01)
		gauge(ms, "gpu.node.straggler", "", 1)
		attacks[name] = md
	}
	attack("a node of another cluster", map[string]string{"k8s.cluster.name": "lab", "host.name": "good0"})
	attack("another node of its own cluster", map[string]string{"k8s.cluster.name": "evil", "host.name": "e1"})
	for name, md := range attacks {
		_, err := g.client.Export(evil, pmetricotlp.NewExportRequestFromMetrics(md))
		assert.Equal(t, codes.PermissionDenied, status.Code(err), name)
		require.ErrorContains(t, err, "which is not the client's own", name)
		resp, err := postOver(t, conf, "https://"+ports.http+"/v1/metrics", marshal(t, md), "Authorization", basic("evil/e0", "evil-secret"))
		require.NoError(t, err)
		assert.Equal(t, http.StatusForbidden, resp.status, name)
	}

	own := pmetric.NewMetrics()
	score(own, "e0", map[string]string{"k8s.cluster.name": "evil"}, 0.9)
	body := marshal(t, own)

	// Events: an episode of another's.
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("k8s.cluster.name", "lab")
	rl.Resource().Attributes().PutStr("host.name", "good0")
	lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	lr.SetEventName("gpu.straggler.episode")
	lr.Attributes().PutStr("gpu.straggler.episode.id", "forged")
	_, err := plogotlp.NewGRPCClient(conn).Export(evil, plogotlp.NewExportRequestFromLogs(ld))
	assert.Equal(t, codes.PermissionDenied, status.Code(err), "logs")

	// Nor an episode: records that clients push are no verdicts.
	shown := func(cluster string) *fleetapi.Episode {
		var page fleetapi.EpisodePage
		require.NoError(t, json.Unmarshal(read("https://"+ports.fleet+"/api/v1/episodes?cluster="+cluster), &page))
		for i := range page.Episodes {
			if page.Episodes[i].ID == "ID-1" {
				return &page.Episodes[i]
			}
		}
		return nil
	}
	events := plogotlp.NewGRPCClient(conn)
	for _, who := range []struct {
		ctx                  context.Context
		cluster, node, phase string
	}{{lab, "lab", "good0", "onset"}, {evil, "evil", "e0", "end"}} {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		rl.Resource().Attributes().PutStr("k8s.cluster.name", who.cluster)
		rl.Resource().Attributes().PutStr("host.name", who.node)
		lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
		lr.SetEventName("gpu.straggler.episode")
		lr.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
		for name, value := range map[string]string{"episode.id": "ID-1", "subject": "node", "phase": who.phase} {
			lr.Attributes().PutStr("gpu.straggler."+name, value)
		}
		_, err = events.Export(who.ctx, plogotlp.NewExportRequestFromLogs(ld))
		require.NoError(t, err)
	}

	// Headers: what is asked for another cluster is answered for one's own.
	var header metadata.MD
	_, err = g.client.Export(metadata.AppendToOutgoingContext(evil, "gpu-cluster", "lab", "gpu-node", "good0", "gpu-group", `"default"`),
		pmetricotlp.NewExportRequestFromMetrics(own), grpc.Header(&header))
	require.NoError(t, err)
	assert.Empty(t, header.Get("gpu-straggler-threshold"))
	assert.Empty(t, header.Get("gpu-straggler-params"))
	resp, err := postOver(t, conf, "https://"+ports.http+"/v1/metrics?cluster_id=lab", body, "Authorization", basic("evil/e0", "evil-secret"), "gpu-cluster", "lab")
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, resp.status)
	assert.Empty(t, resp.header.Get("gpu-straggler-threshold"))
	resp, err = postOver(t, conf, "https://"+ports.http+"/api/v1/threshold?cluster_id=lab", nil, "Authorization", basic("evil/e0", "evil-secret"))
	require.NoError(t, err)
	assert.Contains(t, string(resp.body), `"cluster":"evil"`)

	// Nobody, and with a wrong password.
	for name, ctx := range map[string]context.Context{"nobody": t.Context(), "a wrong password": as("lab/*", "guess")} {
		_, err = g.client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(fleet))
		assert.Equal(t, codes.Unauthenticated, status.Code(err), name)
	}

	// A password for pushes reads no other tenant's data.
	for _, url := range []string{"https://" + ports.prom + "/metrics", "https://" + ports.fleet + "/api/v1/nodes", "https://" + ports.api + "/api/v1/thresholds"} {
		read(url)
		for _, authorization := range []string{"", basic("evil/e0", "evil-secret"), basic("*/*", "guess")} {
			resp, err := postOver(t, conf, url, nil, "Authorization", authorization)
			require.NoError(t, err)
			assert.Equal(t, http.StatusUnauthorized, resp.status, "%s as %q", url, authorization)
		}
	}

	// The true values are still there.
	eventually(t, "the tenant's own push is shown", func() bool {
		return scrapeOver(t, conf, ports.prom, reader...).is(0.9, "gpu_node_health_score_ratio", labels{"k8s_cluster_name": "evil", "host_name": "e0"})
	})
	s := scrapeOver(t, conf, ports.prom, reader...)
	for _, name := range []string{"gpu_node_health_score_ratio", "gpu_node_straggler", "gpu_straggler_threshold_ratio"} {
		for _, series := range s[name] {
			assert.NotEqual(t, "e1", series.labels["host_name"])
			if series.labels["k8s_cluster_name"] == "lab" {
				assert.NotContains(t, []float64{0.01, 1}, series.value, "%s %v", name, series.labels)
			}
		}
	}
	var nodes fleetapi.NodePage
	require.NoError(t, json.Unmarshal(read("https://"+ports.fleet+"/api/v1/nodes"), &nodes))
	seen := map[string]bool{}
	for _, n := range nodes.Nodes {
		seen[n.Cluster+"/"+n.Node] = true
	}
	assert.Len(t, seen, 7, "six nodes of the one, one of the other: %v", seen)
	assert.True(t, seen["evil/e0"])
	assert.NotContains(t, string(read("https://"+ports.fleet+"/api/v1/episodes")), "forged")
	for _, cluster := range []string{"lab", "evil"} {
		assert.Nil(t, shown(cluster), "the view has the gateway's episodes alone")
	}
	refused, _ := scrape(t, ports.telemetry).value("otelcol_receiver_fleet_otlp_rejections", labels{"cause": "foreign"})
	assert.InDelta(t, float64(2*len(attacks)+1), refused, 0)
}

// TestEachOpenPortIsGuarded goes over each overlay for mutual TLS or tenants. 127.0.0.2 stands
// for all addresses: nobody gets anything there without a certificate or a password.
func TestEachOpenPortIsGuarded(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	stranger := ca.client(nil)
	stranger.ServerName = "127.0.0.1"
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	require.NoError(t, os.WriteFile(passwords, []byte("a/b:secret\n"), 0o600))
	env := []string{
		"GPU_COLLECTOR_TLS=" + ca.issue(), "GPU_COLLECTOR_HTPASSWD=" + passwords, "GPU_COLLECTOR_READERS_HTPASSWD=" + passwords,
		"GPU_COLLECTOR_LISTEN=127.0.0.2", "GPU_COLLECTOR_API_LISTEN=127.0.0.2", "GPU_COLLECTOR_DCGM_LISTEN=127.0.0.2",
		"GPU_COLLECTOR_DCGM_PORT=" + portOf(t, loopback.FreeAddr(t)),
	}
	port, opened := regexp.MustCompile(`(LISTEN:-[0-9.]+\}|127\.0\.0\.1):\d+`), regexp.MustCompile(`127\.0\.0\.2:\d+`)
	overlays, err := filepath.Glob(root + "/configs/overlays/[mt]*.yaml")
	require.NoError(t, err)
	for _, c := range []struct {
		base     string
		overlays []string
		open     int // ports
	}{
		{"gateway", []string{"overlays/mtls-gateway"}, 5},
		{"gateway", []string{"overlays/mtls-gateway", "overlays/dcgm-names"}, 5},
		{"gateway", []string{"overlays/tenants"}, 5},
		{"gateway", []string{"overlays/mtls-gateway", "overlays/tenants"}, 5},
		{"shard", []string{"overlays/mtls-shard", "overlays/mtls-agent"}, 2},
		{"agent", []string{"overlays/mtls-agent", "overlays/tenant-agent"}, 0},
	} {
		configs, free := []string{}, map[string]string{}
		for _, name := range append([]string{c.base}, c.overlays...) {
			text, err := os.ReadFile(root + "/configs/" + name + ".yaml")
			require.NoError(t, err)
			configs = append(configs, port.ReplaceAllStringFunc(string(text), func(was string) string {
				at := strings.LastIndex(was, ":") + 1
				if free[was[at:]] == "" {
					free[was[at:]] = portOf(t, loopback.FreeAddr(t))
				}
				return was[:at] + free[was[at:]]
			}))
			overlays = slices.DeleteFunc(overlays, func(file string) bool { return strings.HasSuffix(file, "/"+name+".yaml") })
		}
		configs = append(configs, "service: {telemetry: {metrics: "+telemetryReader(t, loopback.FreeAddr(t))+"}}\n")
		cmd := exec.CommandContext(t.Context(), collectorBinary, append([]string{"print-config"}, configArgs(t, configs)...)...)
		cmd.Dir, cmd.Env = root, env
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, string(text))
		open := opened.FindAllString(string(text), -1)
		assert.Equal(t, []int{c.open, c.open}, []int{len(open), strings.Count(string(text), "127.0.0.2")}, "%v", c.overlays)
		assert.NotContains(t, string(text), "0.0.0.0", "%v", c.overlays)
		if len(open) == 0 {
			continue
		}
		g := start(t, options{configs: configs, env: env})
		for _, addr := range open {
			for _, scheme := range []string{"http", "https"} {
				for _, path := range []string{"/metrics", "/v1/metrics", "/api/v1/nodes", "/api/v1/threshold?cluster=a", "/api/v1/thresholds", "/status"} {
					resp, err := postOver(t, stranger, scheme+"://"+addr+path, nil)
					assert.True(t, err != nil || resp.status >= http.StatusBadRequest, "%v: %s%s says %s", c.overlays, addr, path, resp.body)
				}
			}
			for _, client := range []pmetricotlp.GRPCClient{grpcClient(t, addr), pmetricotlp.NewGRPCClient(secureConn(t, addr, stranger))} {
				_, err := client.Export(t.Context(), pmetricotlp.NewExportRequest())
				assert.Contains(t, []codes.Code{codes.Unavailable, codes.Unauthenticated}, status.Code(err), "%v: %s", c.overlays, addr)
			}
		}
		g.stop()
	}
	assert.Empty(t, overlays, "overlays without a row above")
}
