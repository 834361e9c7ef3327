// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/test/authority"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// issue returns a directory with tls.crt, tls.key and ca.crt.
func issue(t *testing.T, ca *authority.Authority) (dir string) {
	t.Helper()
	dir = t.TempDir()
	ca.Issue(t, dir, time.Hour)
	return dir
}

// trusting returns the settings of a client that trusts the CA, with a certificate by
// another or by none.
func trusting(t *testing.T, ca, by *authority.Authority) *tls.Config {
	t.Helper()
	conf := ca.Client()
	if by != nil {
		cert, key := by.Pair(t, time.Hour)
		pair, err := tls.X509KeyPair(cert, key)
		require.NoError(t, err)
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf
}

func over(conf *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}
}

func dialOver(t *testing.T, addr string, conf *tls.Config) *grpc.ClientConn {
	t.Helper()
	return process.Dial(t, addr, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// TestMutualTLS runs gateway and agent with the overlays for it and real certificates: the
// agent's data arrives, and that of no other client.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ca := authority.New(t, "test CA")
	gateway := process.Run(t, process.Options{
		Config: []string{"configs/gateway.yaml", "configs/overlays/mtls-gateway.yaml", pace}, Env: []string{"GPU_COLLECTOR_TLS=" + issue(t, ca)},
	})
	agent := process.Run(t, process.Options{
		Config: []string{"configs/agent.yaml", "configs/overlays/mtls-agent.yaml", pace},
		Env:    []string{"GPU_COLLECTOR_TLS=" + issue(t, ca), "GPU_COLLECTOR_GATEWAY=" + gateway.GRPC},
	})
	app := process.Dial(t, agent.GRPC)
	process.Eventually(t, "what the agent takes is at the gateway", func() bool {
		md := pmetric.NewMetrics()
		process.Gauge(process.Node(md, "secure"), "gpu.app.step.duration", "s", 2)
		_, err := process.Export(t.Context(), app, md)
		require.NoError(t, err)
		resp, err := process.Send(t.Context(), over(trusting(t, ca, ca)), http.MethodGet, "https://"+gateway.Prom+"/metrics", nil)
		require.NoError(t, err)
		return len(process.ParseScrape(t, resp.Body).With("gpu_app_step_duration_seconds", labels{"host_name": "secure"})) == 1
	})
	for name, conf := range map[string]*tls.Config{
		"no certificate":  trusting(t, ca, nil),
		"of another CA":   trusting(t, ca, authority.New(t, "test CA")),
		"an old protocol": {RootCAs: ca.Client().RootCAs, Certificates: trusting(t, ca, ca).Certificates, MaxVersion: tls.VersionTLS12},
	} {
		_, err := process.Export(t.Context(), dialOver(t, gateway.GRPC, conf), pmetric.NewMetrics())
		assert.Equal(t, codes.Unavailable, status.Code(err), name)
		_, err = process.Send(t.Context(), over(conf), http.MethodGet, "https://"+gateway.Prom+"/metrics", nil)
		require.Error(t, err, name)
	}
}

// TestNoClientReportsForAnother has two tenants at one gateway with the overlays for them, and
// one of them claims to be the other. Each place where a push can name a client is for the
// tests of fleetotlpreceiver, thresholdextension and clientidentity.
func TestNoClientReportsForAnother(t *testing.T) {
	t.Parallel()
	ca, dir := authority.New(t, "test CA"), t.TempDir()
	passwords, readers := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "readers")
	require.NoError(t, os.WriteFile(passwords, []byte("lab/*:shard-secret\nevil/e0:evil-secret\n"), 0o600))
	require.NoError(t, os.WriteFile(readers, []byte("*/*:reader-secret\n"), 0o600))
	g := process.Run(t, process.Options{
		Config: []string{"configs/gateway.yaml", "configs/overlays/mtls-gateway.yaml", "configs/overlays/tenants.yaml", pace},
		Env:    []string{"GPU_COLLECTOR_TLS=" + issue(t, ca), "GPU_COLLECTOR_HTPASSWD=" + passwords, "GPU_COLLECTOR_READERS_HTPASSWD=" + readers},
	})
	conf := trusting(t, ca, ca)
	conn, client := dialOver(t, g.GRPC, conf), over(conf)
	as := func(authorization string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "authorization", authorization, "gpu-cluster", "lab", "gpu-group", `"default"`)
	}
	lab, evil := basic("lab/*", "shard-secret"), basic("evil/e0", "evil-secret")
	process.Eventually(t, "the tenant has its threshold", func() bool {
		header, err := process.Export(as(lab), conn, healthyFleet())
		require.NoError(t, err)
		return len(header.Get("gpu-straggler-threshold")) == 1
	})

	// Another's node, by gRPC and HTTP, and another's event.
	_, err := process.Export(as(evil), conn, healthyFleet())
	assert.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	body := process.Marshal(t, healthyFleet())
	resp, err := process.Send(t.Context(), client, http.MethodPost, "https://"+g.HTTP+"/v1/metrics", body, "Authorization", evil, "Content-Type", process.Protobuf)
	require.NoError(t, err)
	assert.Equal(t, http.StatusForbidden, resp.Status)
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("k8s.cluster.name", "lab")
	rl.Resource().Attributes().PutStr("host.name", "good0")
	rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().SetEventName("gpu.straggler.episode")
	_, err = plogotlp.NewGRPCClient(conn).Export(as(evil), plogotlp.NewExportRequestFromLogs(ld))
	assert.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	_, err = process.Export(as(basic("lab/*", "guess")), conn, healthyFleet())
	assert.Equal(t, codes.Unauthenticated, status.Code(err), "%v", err)

	// One's own, with another's threshold asked for.
	own := pmetric.NewMetrics()
	process.Score(own, "e0", 0.9, "k8s.cluster.name", "evil")
	header, err := process.Export(as(evil), conn, own)
	require.NoError(t, err)
	assert.Empty(t, header.Get("gpu-straggler-threshold"))

	// A password for pushes reads nothing.
	for _, url := range []string{"https://" + g.Prom + "/metrics", "https://" + g.API + "/api/v1/thresholds", "https://" + g.Fleet + "/api/v1/nodes"} {
		for authorization, want := range map[string]int{"": http.StatusUnauthorized, evil: http.StatusUnauthorized, basic("*/*", "reader-secret"): http.StatusOK} {
			got, err := process.Send(t.Context(), client, http.MethodGet, url, nil, "Authorization", authorization)
			require.NoError(t, err)
			assert.Equal(t, want, got.Status, "%s as %q", url, authorization)
			if want == http.StatusOK {
				resp = got
			}
		}
	}
	var page fleetapi.NodePage
	require.NoError(t, json.Unmarshal(resp.Body, &page))
	assert.Len(t, page.Nodes, 7, "six nodes of the one, one of the other")
	assert.True(t, process.Scrape(t, g.Telemetry).Is(3, "otelcol_receiver_fleet_otlp_rejections", labels{"cause": "foreign"}))
}

// TestEachOpenPortIsGuarded goes over each overlay for mutual TLS or tenants. 127.0.0.2 stands
// for all addresses: a client gets nothing there without a certificate or a password.
func TestEachOpenPortIsGuarded(t *testing.T) {
	t.Parallel()
	ca := authority.New(t, "test CA")
	stranger := trusting(t, ca, nil)
	stranger.ServerName = "127.0.0.1"
	passwords := filepath.Join(t.TempDir(), "htpasswd")
	require.NoError(t, os.WriteFile(passwords, []byte("a/b:secret\n"), 0o600))
	env := []string{
		"GPU_COLLECTOR_TLS=" + issue(t, ca), "GPU_COLLECTOR_HTPASSWD=" + passwords, "GPU_COLLECTOR_READERS_HTPASSWD=" + passwords,
		"GPU_COLLECTOR_LISTEN=127.0.0.2", "GPU_COLLECTOR_API_LISTEN=127.0.0.2", "GPU_COLLECTOR_DCGM_LISTEN=127.0.0.2",
		"GPU_COLLECTOR_DCGM_PORT=" + process.Port(loopback.FreeAddr(t)),
	}
	port, opened := regexp.MustCompile(`(LISTEN:-[0-9.]+\}|127\.0\.0\.1):\d+`), regexp.MustCompile(`127\.0\.0\.2:\d+`)
	overlays, err := filepath.Glob(process.Root + "/configs/overlays/[mt]*.yaml")
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
			text, err := os.ReadFile(process.Root + "/configs/" + name + ".yaml")
			require.NoError(t, err)
			configs = append(configs, port.ReplaceAllStringFunc(string(text), func(was string) string {
				at := strings.LastIndex(was, ":") + 1
				if free[was[at:]] == "" {
					free[was[at:]] = process.Port(loopback.FreeAddr(t))
				}
				return was[:at] + free[was[at:]]
			}))
			overlays = slices.DeleteFunc(overlays, func(file string) bool { return strings.HasSuffix(file, "/"+name+".yaml") })
		}
		configs = append(configs, "service: {telemetry: {metrics: "+process.TelemetryAt(loopback.FreeAddr(t))+"}}\n")
		text := printed(t, env, configs...)
		open := opened.FindAllString(text, -1)
		assert.Equal(t, []int{c.open, c.open}, []int{len(open), strings.Count(text, "127.0.0.2")}, "%v", c.overlays)
		assert.NotContains(t, text, "0.0.0.0", "%v", c.overlays)
		if len(open) == 0 {
			continue
		}
		g := process.Run(t, process.Options{Config: configs, Env: env})
		for _, addr := range open {
			for _, scheme := range []string{"http", "https"} {
				for _, path := range []string{"/metrics", "/v1/metrics", "/api/v1/nodes", "/api/v1/threshold?cluster=a", "/api/v1/thresholds", "/status"} {
					resp, err := process.Send(t.Context(), over(stranger), http.MethodGet, scheme+"://"+addr+path, nil)
					assert.True(t, err != nil || resp.Status >= http.StatusBadRequest, "%v: %s%s answers %s", c.overlays, addr, path, resp.Body)
				}
			}
			for _, conn := range []*grpc.ClientConn{process.Dial(t, addr), dialOver(t, addr, stranger)} {
				_, err := process.Export(t.Context(), conn, pmetric.NewMetrics())
				assert.Contains(t, []codes.Code{codes.Unavailable, codes.Unauthenticated}, status.Code(err), "%v: %s", c.overlays, addr)
			}
		}
		g.Stop()
	}
	assert.Empty(t, overlays, "overlays without a row above")
}
