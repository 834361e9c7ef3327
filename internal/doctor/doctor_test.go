// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/straggler/unjudged"
	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// well is a node with nothing to complain of.
func well() *Facts {
	return &Facts{
		Version: "v1", Node: "n1", GatewayAt: "http://gw:8086",
		Host:      Host{Driver: "570.86.15", GPUs: 8},
		Collector: &Collector{Name: "gpu-collector", Version: "v1", Agent: true, Scraped: 900, Sent: 900, To: "gw:4317", Answers: map[string]float64{"new": 1, "unchanged": 9}},
		Gateway: &Gateway{
			Status: "ok", Nodes: 8, Unjudged: map[string]int{},
			Node:   &Node{Cluster: "c", Group: "g", GPUs: 8, Age: time.Second},
			Groups: []Group{{Cluster: "c", Name: "g", Active: 8, QuorumMet: true}},
		},
	}
}

func TestANodeThatIsWell(t *testing.T) {
	for _, c := range Diagnose(well()) {
		assert.Equal(t, OK, c.Status, "%s: %s", c.Name, c.Text)
		assert.Empty(t, c.Advice, c.Name)
	}
}

func TestEachFaultIsNamed(t *testing.T) {
	for name, tt := range map[string]struct {
		harm         func(f *Facts)
		check        string
		status       Status
		text, advice string
	}{
		"no driver":         {func(f *Facts) { f.Host.Driver = "" }, "driver", Fail, "not loaded", "nvidia-smi"},
		"a lost GPU":        {func(f *Facts) { f.Gateway.Node.GPUs, f.Gateway.Node.Lost = 7, 1 }, "gpus", Fail, "8 GPUs on the PCI bus, 7 told to the gateway, 1 lost", "reboot"},
		"a GPU unseen":      {func(f *Facts) { f.Gateway.Node.GPUs = 6 }, "gpus", Warn, "6 told", "log"},
		"no collector":      {func(f *Facts) { f.Collector, f.CollectorError = nil, errors.New("connection refused") }, "collector", Warn, "connection refused", "--telemetry"},
		"another version":   {func(f *Facts) { f.Collector.Version = "v0" }, "collector", Warn, "gpu-collector v0 runs, and this program is v1", "restart"},
		"no readings":       {func(f *Facts) { f.Collector.Scraped = 0 }, "readings", Fail, "nothing of a GPU", "/dev/nvidia"},
		"bad readings":      {func(f *Facts) { f.Collector.Errored = 300 }, "readings", Warn, "300 of 1200 points", "call_failures"},
		"never pushed":      {func(f *Facts) { f.Collector.Sent, f.Collector.Failed = 0, 900 }, "pushes", Fail, "no push to gw:4317 was ever taken", "GPU_COLLECTOR_INSECURE"},
		"just started":      {func(f *Facts) { f.Collector.Sent = 0 }, "pushes", Warn, "nothing was pushed", "10 s"},
		"often refused":     {func(f *Facts) { f.Collector.Failed = 901 }, "pushes", Warn, "more pushes", "log"},
		"no threshold":      {func(f *Facts) { f.Collector.Answers = map[string]float64{"absent": 3} }, "threshold", Warn, "without a threshold", "silence"},
		"a bad threshold":   {func(f *Facts) { f.Collector.Answers = map[string]float64{"invalid": 3} }, "threshold", Fail, "cannot be read", "upgrade"},
		"no answer":         {func(f *Facts) { f.Collector.Answers = map[string]float64{"unanswered": 3} }, "threshold", Fail, "no push was answered", "pushes"},
		"no gateway":        {func(f *Facts) { f.Gateway, f.GatewayError = nil, errors.New("timeout") }, "gateway", Unknown, "timeout", "--endpoint"},
		"an empty gateway":  {func(f *Facts) { f.Gateway.Nodes = 0 }, "gateway", Warn, "knows 0 nodes", "GPU_COLLECTOR_GATEWAY"},
		"a sick gateway":    {func(f *Facts) { f.Gateway.Status = "degraded" }, "gateway", Warn, "degraded", "page"},
		"clocks":            {func(f *Facts) { f.Gateway.Skew = -time.Minute }, "clock", Warn, "1m0s apart", "NTP"},
		"an unknown node":   {func(f *Facts) { f.Gateway.Node = nil }, "node", Warn, `a node "n1"`, "--node"},
		"a silent node":     {func(f *Facts) { f.Gateway.Node.Age = time.Minute }, "node", Fail, "1m0s ago", "pushes"},
		"a straggler":       {func(f *Facts) { f.Gateway.Node.Straggler = true }, "verdict", Warn, "is a straggler", "page"},
		"one of four nodes": {func(f *Facts) { f.Gateway.Groups[0] = Group{Cluster: "c", Name: "g", Active: 1} }, "peers", Warn, "1 active node in group g, at least 3", "more active nodes"},
		"four are needed":   {func(f *Facts) { f.Gateway.Groups[0] = Group{Cluster: "c", Name: "g", Active: 3, MinPeers: 4} }, "peers", Warn, "3 active nodes in group g, at least 4", "more active nodes"},
		"two are enough":    {func(f *Facts) { f.Gateway.Groups[0] = Group{Cluster: "c", Name: "g", Active: 2, MinPeers: 2} }, "peers", OK, "2 active nodes in group g, at least 2", ""},
		"peers to come":     {func(f *Facts) { f.Gateway.Groups[0] = Group{Cluster: "c", Name: "g", Active: 1, Calibrating: 3} }, "peers", Warn, "at least 3 are needed; calibrating: 3", "wait"},
		"peers too few yet": {func(f *Facts) { f.Gateway.Groups[0] = Group{Cluster: "c", Name: "g", Calibrating: 2} }, "peers", Warn, "0 active nodes in group g, at least 3 are needed; calibrating: 2", "more active nodes"},
		"a gateway's name": {func(f *Facts) {
			f.Collector.Sent, f.Collector.NextHop = 0, &NextHop{Unresolved: errors.New("no such host")}
		}, "pushes", Fail, "the gateway gw:4317 has no address here: no such host", "GPU_COLLECTOR_GATEWAY"},
		"no gateway there": {func(f *Facts) {
			f.Collector.Sent, f.Collector.NextHop = 0, &NextHop{Unreachable: errors.New("connection refused")}
		}, "pushes", Fail, "nobody answers at the gateway gw:4317: connection refused", "runs"},
		"no TLS there":    {func(f *Facts) { f.Collector.Sent, f.Collector.Failed, f.Collector.NextHop = 0, 9, &NextHop{} }, "pushes", Fail, "gw:4317 speaks no TLS", "GPU_COLLECTOR_INSECURE=true"},
		"TLS there":       {func(f *Facts) { f.Collector.Sent, f.Collector.Failed, f.Collector.NextHop = 0, 9, &NextHop{TLS: true} }, "pushes", Fail, "gw:4317 speaks TLS", "ca_file"},
		"a node unpushed": {func(f *Facts) { f.Gateway.Node, f.Collector.Sent = nil, 0 }, "node", Warn, `a node "n1"`, "pushes"},
		"a slow rank":     {func(f *Facts) { f.Gateway.Node.Culprit = "rank 2 (GPU 2)" }, "ranks", Warn, "rank 2 (GPU 2) works for longer than the others", "own_duration"},
		"most not judged": {func(f *Facts) { f.Gateway.Unjudged["too_few_peers"] = 5 }, "silence", Warn, "5 of 8 nodes are without a verdict, since there are too few peers", "more active nodes"},
		"no group":        {func(f *Facts) { f.Gateway.Groups = nil }, "peers", Warn, "no group", "more active nodes"},
		"nobody judged":   {func(f *Facts) { f.Gateway.Unjudged["no_signal"] = 8 }, "silence", Warn, "8 of 8 nodes are without a verdict, since nothing that is told decides", "gpu.app.step.own_duration"},
	} {
		t.Run(name, func(t *testing.T) {
			f := well()
			tt.harm(f)
			checks := Diagnose(f)
			for _, c := range checks {
				if c.Name != tt.check {
					continue
				}
				assert.Equal(t, tt.status, c.Status, c.Text)
				assert.Contains(t, c.Text, tt.text)
				assert.Contains(t, c.Advice, tt.advice)
				assert.Equal(t, tt.status == Fail, Failed(checks))
				return
			}
			t.Fatalf("no check %s in %v", tt.check, checks)
		})
	}
}

// TestEverySilenceHasARemedy: a reason of the engine without a sentence tells nobody anything.
func TestEverySilenceHasARemedy(t *testing.T) {
	for r := unjudged.Judged + 1; r < unjudged.Count; r++ {
		f := well()
		f.Gateway.Node.Unjudged = r.String()
		for _, c := range Diagnose(f) {
			if c.Name == "verdict" {
				assert.Equal(t, Warn, c.Status)
				assert.Contains(t, c.Text, r.Why())
				assert.NotEmpty(t, r.Why(), r)
				assert.Equal(t, r.Remedy(), c.Advice)
				assert.NotEmpty(t, c.Advice, r)
			}
		}
	}
	f := well()
	f.Gateway.Node.Unjudged = "of_a_newer_gateway"
	text := ""
	var textSb110 strings.Builder
	for _, c := range Diagnose(f) {
		textSb110.WriteString(c.Text)
	}
	text += textSb110.String()
	assert.Contains(t, text, "of_a_newer_gateway")
}

func TestHost(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	assert.Equal(t, Host{}, host(root))
	// As a driver of 2025 writes it.
	write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\nGCC version:  gcc 12\n")
	write("sys/bus/pci/devices/0000:1b:00.0/vendor", "0x10de\n")
	write("sys/bus/pci/devices/0000:1b:00.0/class", "0x030200\n")
	assert.Equal(t, Host{Driver: "570.86.15", GPUs: 1}, host(root))
	write("proc/driver/nvidia/version", "garbage")
	assert.Equal(t, "of an unknown version", host(root).Driver)
}

func TestCollector(t *testing.T) {
	var text string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) }))
	defer server.Close()
	ask := func(of string) (*Collector, error) {
		text = of
		return collector(t.Context(), server.Client(), server.URL)
	}
	c, err := ask(`# TYPE otelcol_exporter_sent_metric_points counter
otelcol_exporter_sent_metric_points{exporter="otlp_grpc",server_address="gw",server_port="4317"} 90
otelcol_exporter_sent_metric_points{exporter="debug"} 7
otelcol_exporter_send_failed_metric_points{exporter="otlp_grpc",server_address="gw",server_port="4317"} 10
otelcol_scraper_scraped_metric_points{receiver="nvml",scraper="nvml"} 80
otelcol_scraper_scraped_metric_points{receiver="fabric",scraper="fabric"} 9
otelcol_scraper_errored_metric_points{receiver="nvml",scraper="nvml"} 2
otelcol_extension_straggler_threshold_responses{outcome="new",transport="grpc"} 1
otelcol_extension_straggler_threshold_responses{outcome="new",transport="http"} 1
target_info{service_name="gpu-collector-agent",service_version="v1.2.3"} 1
`)
	require.NoError(t, err)
	assert.Equal(t, &Collector{
		Name: "gpu-collector-agent", Version: "v1.2.3", Agent: true, Scraped: 80, Errored: 2, Sent: 90, Failed: 10, To: "gw:4317",
		Answers: map[string]float64{"new": 2},
	}, c)
	_, err = ask("go_goroutines 7\n")
	require.ErrorContains(t, err, "is not a collector's")
	_, err = ask("<html>")
	assert.ErrorContains(t, err, "has no metrics")
}

func TestTextAndJSON(t *testing.T) {
	checks := []Check{{"driver", OK, "loaded", ""}, {"pushes", Fail, "none", "do it"}}
	var b strings.Builder
	require.NoError(t, write(&b, checks, false))
	assert.Equal(t, "ok       driver     loaded\nfail     pushes     none\n                    -> do it\n", b.String())
	b.Reset()
	require.NoError(t, write(&b, checks, true))
	assert.JSONEq(t, `{"ok": false, "checks": [
		{"check": "driver", "status": "ok", "text": "loaded"},
		{"check": "pushes", "status": "fail", "text": "none", "advice": "do it"}]}`, b.String())
}

// TestNextHop looks at a real port of each kind.
func TestNextHop(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	strict := httptest.NewUnstartedServer(http.NotFoundHandler())
	strict.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}
	strict.Config.ErrorLog = log.New(io.Discard, "", 0)
	strict.StartTLS()
	defer strict.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()

	at := func(s *httptest.Server) *NextHop { return nextHop(t.Context(), s.Listener.Addr().String()) }
	assert.Equal(t, &NextHop{}, at(plain))
	assert.Equal(t, &NextHop{TLS: true}, at(secure))
	assert.Equal(t, &NextHop{TLS: true}, at(strict))
	h := at(gone)
	require.Error(t, h.Unreachable)
	assert.Contains(t, h.Unreachable.Error(), "connection refused")
	// RFC 6761 keeps the name from existing.
	h = nextHop(t.Context(), "gateway.invalid:4317")
	require.Error(t, h.Unresolved)
	assert.Contains(t, h.Unresolved.Error(), "gateway.invalid")
	assert.Nil(t, nextHop(t.Context(), "gateway"))
}

func TestNodeOf(t *testing.T) {
	active := "active"
	assert.Equal(t, "no_signal", nodeOf(&fleetclient.Node{}).Unjudged, "it told the engine nothing")
	assert.Empty(t, nodeOf(&fleetclient.Node{State: &active}).Unjudged)
	for want, c := range map[string]fleetclient.Culprit{
		"rank 2":                                {Rank: new(int64(2))},
		"GPU 3, GPU-5a":                         {Index: new(int64(3)), GPU: new("GPU-5a")},
		"rank 11 (local rank 3, GPU 3, GPU-5a)": {Rank: new(int64(11)), LocalRank: new(int64(3)), Index: new(int64(3)), GPU: new("GPU-5a")},
	} {
		assert.Equal(t, want, nodeOf(&fleetclient.Node{State: &active, Culprit: &c}).Culprit)
	}
}
