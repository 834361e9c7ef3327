// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
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
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// onlyUnderFaults are the metrics that need not be there in this test's fleet,
// since they come with a fault that it does not have, or with a flush_interval. Each has
// its key in a component's metadata.yaml, or its name in the catalogue: the test looks it up.
var onlyUnderFaults = map[string]string{
	"otelcol_exporter_send_failed_metric_points":   collectorsOwn,
	"otelcol_processor_straggler_emit_failures":    "processor_straggler_emit_failures",
	"otelcol_processor_straggler_episodes_dropped": "processor_straggler_episodes_dropped",
	"otelcol_processor_diff_over_limit_points":     "processor_diff_over_limit_points",
	"otelcol_processor_diff_dropped_points":        "processor_diff_dropped_points",
	"gpu_straggler_missing_seconds":                gpusemconv.MetricStragglerMissing,
}

// collectorsOwn stands for the telemetry of the Collector's own packages.
const collectorsOwn = "collector"

const dashboardsDir = process.Root + "/dashboards"

type grafanaDashboard struct {
	ID            *int
	UID, Title    string
	SchemaVersion int
	Panels        []struct {
		ID          int
		Type, Title string
		About       string `json:"description"`
		Targets     []struct {
			Expr       string
			Legend     string `json:"legendFormat"`
			Datasource struct{ UID string }
		}
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboards(t *testing.T) map[string]*grafanaDashboard {
	t.Helper()
	files, err := filepath.Glob(dashboardsDir + "/grafana/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	dashboards := map[string]*grafanaDashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		d := &grafanaDashboard{}
		require.NoError(t, json.Unmarshal(text, d), file)
		dashboards[filepath.Base(file)] = d
	}
	return dashboards
}

type promRule struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T, file string) (rules []promRule) {
	t.Helper()
	text, err := os.ReadFile(dashboardsDir + "/prometheus/" + file)
	require.NoError(t, err)
	var all struct{ Groups []struct{ Rules []promRule } }
	require.NoError(t, yaml.Unmarshal(text, &all))
	for _, g := range all.Groups {
		rules = append(rules, g.Rules...)
	}
	require.NotEmpty(t, rules)
	return rules
}

// TestRulesUnitTests runs promtool, which comes with the server.
func TestRulesUnitTests(t *testing.T) {
	long(t)
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	require.NoError(t, err, "this test needs promtool: apt-get install prometheus")
	for _, args := range [][]string{{"check", "rules", "rules.yaml", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = dashboardsDir + "/prometheus"
		text, err := cmd.CombinedOutput()
		require.NoError(t, err, "promtool %v:\n%s", args, text)
	}
}

// TestAlertsHaveRunbooks follows the link of each alert.
func TestAlertsHaveRunbooks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(process.Root + "/docs/runbooks.md")
	require.NoError(t, err)
	tested, err := os.ReadFile(dashboardsDir + "/prometheus/alerts_test.yaml")
	require.NoError(t, err)
	var alerts []string
	for _, r := range readRules(t, "alerts.yaml") {
		alerts = append(alerts, r.Alert)
		assert.NotEmpty(t, r.Annotations["summary"], r.Alert)
		assert.NotEmpty(t, r.Annotations["description"], r.Alert)
		assert.Contains(t, []string{"warning", "critical"}, r.Labels["severity"], r.Alert)
		link, err := url.Parse(r.Annotations["runbook_url"])
		require.NoError(t, err)
		assert.True(t, strings.HasSuffix(link.Path, "/docs/runbooks.md"), r.Alert)
		assert.Equal(t, strings.ToLower(r.Alert), link.Fragment)
		assert.Contains(t, string(tested), `alertname="`+r.Alert+`"`, "no unit test")
	}
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (GPU\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, m[1])
	}
	assert.ElementsMatch(t, alerts, sections)
}

func TestDashboardsAreWhole(t *testing.T) {
	t.Parallel()
	uids := map[string]string{}
	for file, d := range readDashboards(t) {
		assert.Nil(t, d.ID, "%s: the id is the server's", file)
		assert.NotEmpty(t, d.Title, file)
		assert.GreaterOrEqual(t, d.SchemaVersion, 39, file)
		assert.Empty(t, uids[d.UID], "%s has the uid of another dashboard", file)
		uids[d.UID] = file
		require.NotEmpty(t, d.Templating.List, file)
		assert.Equal(t, "datasource", d.Templating.List[0].Type, file)
		ids := map[int]bool{}
		for _, p := range d.Panels {
			assert.False(t, ids[p.ID], "%s: two panels have the id %d", file, p.ID)
			ids[p.ID] = true
			assert.NotEmpty(t, p.Title, file)
			assert.Equal(t, p.Type == "row", p.About == "", "%s: the description of %s", file, p.Title)
			for _, target := range p.Targets {
				assert.Equal(t, "${datasource}", target.Datasource.UID, "%s: %s", file, p.Title)
			}
		}
	}
}

// TestGPUsHaveHostAndIndex: people find a board by these, and by its serial number. A panel
// or alert by GPU names them so, and an absent or second hw_gpu_info_ratio
// takes none away.
func TestGPUsHaveHostAndIndex(t *testing.T) {
	t.Parallel()
	summed := regexp.MustCompile(`^(topk\(10, )?(sum|max|min|avg)( by \(([^)]*)\))? ?\(`)
	ofGPUs := func(expr string) bool {
		m := summed.FindStringSubmatch(strings.TrimLeft(expr, "(\n "))
		return strings.Contains(expr, "hw_") && (m == nil || strings.Contains(m[4], "hw_id")) && !strings.HasPrefix(expr, "hw_gpu_info_ratio{")
	}
	panels := 0
	for file, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				where := file + ": " + p.Title
				if p.Type == "timeseries" || p.Type == "state-timeline" {
					assert.Equal(t, strings.Contains(target.Expr, "host_name") && !strings.HasPrefix(target.Legend, "peers'"),
						strings.HasPrefix(target.Legend, "{{host_name}}"), where)
				}
				if !ofGPUs(target.Expr) {
					continue
				}
				panels++
				assert.Regexp(t, `^\((.+)\) \* on \(hw_id\) group_left \(gpu_index\) topk by \(hw_id\) \(1, max by \(hw_id, gpu_index\) \(.*hw_gpu_info_ratio.*\)\) or on \(hw_id\) \((.+)\)$`, target.Expr, where)
				if p.Type != "table" {
					assert.Contains(t, target.Legend, "{{host_name}} GPU {{gpu_index}}", where)
				}
			}
		}
	}
	assert.Equal(t, 17, panels)
	alerts := 0
	for _, r := range readRules(t, "alerts.yaml") {
		text := r.Annotations["summary"] + r.Annotations["description"]
		if !strings.Contains(r.Expr, "hw_") {
			continue
		}
		alerts++
		for _, label := range []string{"query", ".Labels.gpu_index", ".Labels.hw_serial_number", "abels.hw_id", "$labels.host_name"} {
			assert.Contains(t, text, label, r.Alert)
		}
	}
	assert.Equal(t, 7, alerts)
}

// TestExpressionsReturnData runs every expression of the dashboards and rules
// on a real Prometheus. It scrapes the shipped configurations: the demo with its
// straggler, a node with a lost GPU, and a gateway that refuses some pushes.
func TestExpressionsReturnData(t *testing.T) {
	long(t)
	t.Parallel()
	fleet := startObservedFleet(t)
	prom := startScrapingPrometheus(t, fleet.targets)

	for file, d := range readDashboards(t) {
		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}
			m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
			require.NotNil(t, m, "%s: %s", file, v.Definition)
			process.Eventually(t, file+": there is something to choose for "+v.Name, func() bool {
				return len(labelValues(t, prom, m[2], fleet.substitute(m[1]))) > 0
			})
		}
	}
	process.Eventually(t, "the first Xid is there", func() bool {
		n, err := instantQuery(t, prom, "hw_gpu_xid_events_total")
		require.NoError(t, err)
		return n > 0
	})
	fleet.xid()
	expressions := fleet.expressions(t)
	require.Greater(t, len(expressions), 80)
	missing := maps.Clone(expressions)
	maps.DeleteFunc(missing, func(where, expr string) bool {
		_, err := instantQuery(t, prom, expr)
		require.NoError(t, err, where)
		return slices.ContainsFunc(metricsOf(expr), func(name string) bool { _, ok := onlyUnderFaults[name]; return ok })
	})
	if !process.Within(process.Patience, func() bool {
		maps.DeleteFunc(missing, func(where, expr string) bool {
			n, err := instantQuery(t, prom, expr)
			require.NoError(t, err, where)
			return n > 0
		})
		return len(missing) == 0
	}) {
		for _, where := range slices.Sorted(maps.Keys(missing)) {
			t.Errorf("no data for %s: %s", where, missing[where])
		}
	}

	// The alerts are those of this fleet's faults and no other. The unit tests look at
	// the durations; here they have not passed.
	want := []string{"GPUGatewayRefusing", "GPULost", "GPUMissing", "GPUReadingsFail", "GPUStraggler", "GPUUnhealthy", "GPUXid"}
	var pending []string
	if !process.Within(process.Patience, func() bool { pending = pendingAlerts(t, prom); return slices.Equal(pending, want) }) {
		assert.Equal(t, want, pending)
	}

	for _, r := range readRules(t, "alerts.yaml") {
		_, err := instantQuery(t, prom, r.Expr)
		require.NoError(t, err, r.Alert)
		expressions["alert "+r.Alert] = r.Expr
	}
	known, sources := labelValues(t, prom, "__name__", ""), metricSources(t)
	used := map[string]bool{}
	for where, expr := range expressions {
		names := metricsOf(expr)
		assert.NotEmpty(t, names, "%s: %s", where, expr)
		for _, name := range names {
			used[name] = true
			source, rare := onlyUnderFaults[name]
			if rare {
				assert.Contains(t, sources, source, "%s: no component emits %s", where, name)
			} else {
				assert.Contains(t, known, name, "%s names a metric that no component emits", where)
			}
		}
	}
	for name := range onlyUnderFaults {
		assert.True(t, used[name], "%s is on the list and nowhere else", name)
	}
}

// observedFleet is what the dashboards are looked at with.
type observedFleet struct {
	targets []string
	gpuNode string // the node with GPUs
	xid     func() // one more, as the first makes the series
}

func startObservedFleet(t *testing.T) *observedFleet {
	t.Helper()
	telemetry := loopback.FreeAddr(t)
	d := startDemo(t, "service: {telemetry: {metrics: {level: normal}}}\n", "service: {telemetry: {metrics: "+process.TelemetryAt(telemetry)+"}}\n")

	n := startGPUNode(t, "", fakenvml.NewH100(gpus), oftener)
	n.awaitGPUs()
	const lost, sick = 3, 5
	require.NoError(t, n.state.XID(sick, 48).SetGPU(lost, "present", 0).Write(n.stateFile))

	gateway := startGateway(t, "receivers: {fleet_otlp: {admission: {max_concurrent: 1, cluster_share: 1}}}\n")
	md := pmetric.NewMetrics()
	process.Gauge(process.Node(md, "n0", "k8s.cluster.name", "busy"), "gpu.app.step.duration", "s", 1)
	body := process.Marshal(t, md)
	done, stopped := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(done); <-stopped })
	go func() {
		defer close(stopped)
		for ticker := time.NewTicker(process.Poll * 5); ; {
			select {
			case <-done:
				ticker.Stop()
				return
			case <-ticker.C:
				pushAndBeRefused(t, gateway.HTTP, body)
			}
		}
	}()
	return &observedFleet{
		targets: []string{d.Prom, telemetry, n.Prom, n.Telemetry, gateway.Prom, gateway.Telemetry},
		gpuNode: "gpu-7",
		xid:     func() { require.NoError(t, n.state.XID(sick, 48).Write(n.stateFile)) },
	}
}

// pushAndBeRefused has a push accepted, and one refused while the only permit
// is held by a push whose body does not come.
func pushAndBeRefused(t *testing.T, addr string, body []byte) {
	t.Helper()
	push := func() int {
		resp, err := process.Send(t.Context(), nil, http.MethodPost, "http://"+addr+"/v1/metrics", body, "Content-Type", process.Protobuf, "gpu-cluster", "busy", "gpu-node", "n0")
		if err != nil {
			return 0
		}
		return resp.Status
	}
	push()
	conn, err := net.Dial("tcp", addr)
	if !assert.NoError(t, err) { //nolint:testifylint // not on the test's goroutine
		return
	}
	_, err = fmt.Fprintf(conn, "POST /v1/metrics HTTP/1.1\r\nHost: gateway\r\nContent-Type: %s\r\nContent-Length: 1000\r\n\r\n", process.Protobuf)
	assert.NoError(t, err)
	for range 100 {
		if push() == http.StatusTooManyRequests {
			break
		}
	}
	assert.NoError(t, conn.Close())
}

// substitute does what Grafana does with variables, everything selected.
func (f *observedFleet) substitute(expr string) string {
	node := "dp0-pp0"
	// The demo's nodes have no GPUs.
	if strings.Contains(expr, "hw_") || strings.Contains(expr, "cpu_pressure") {
		node = f.gpuNode
	}
	return strings.NewReplacer("$cluster", ".*", "$group", ".*", "$node", node, "$instance", ".*",
		"$__rate_interval", "30s", "$__range", "1m").Replace(expr)
}

// expressions returns those of dashboards and recording rules, by where they stand.
func (f *observedFleet) expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for file, d := range readDashboards(t) {
		for _, p := range d.Panels {
			for i, target := range p.Targets {
				expr := f.substitute(target.Expr)
				require.NotContains(t, expr, "$", "%s: %s: a variable that this test does not know", file, p.Title)
				all[fmt.Sprintf("%s, panel %d %s, query %d", file, p.ID, p.Title, i+1)] = expr
			}
		}
	}
	for _, r := range readRules(t, "rules.yaml") {
		all["recording rule "+r.Record] = r.Expr
	}
	return all
}

func startScrapingPrometheus(t *testing.T, targets []string) (addr string) {
	t.Helper()
	rules, err := filepath.Abs(dashboardsDir + "/prometheus")
	require.NoError(t, err)
	return metricstore.Prometheus(t, fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q, %q]
scrape_configs:
  - job_name: gpu-collector
    static_configs: [{targets: ["%s"]}]
`, rules+"/rules.yaml", rules+"/alerts.yaml", strings.Join(targets, `", "`))).Addr
}

// promGet decodes the data of an answer of Prometheus' API.
func promGet(t *testing.T, url string, data any) error {
	t.Helper()
	resp := process.Fetch(t, url)
	answer := struct {
		Error string
		Data  any
	}{Data: data}
	if err := json.Unmarshal(resp.Body, &answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Body, err)
	}
	if resp.Status != http.StatusOK {
		return errors.New(answer.Error)
	}
	return nil
}

// instantQuery returns how many series an expression has now.
func instantQuery(t *testing.T, addr, expr string) (int, error) {
	t.Helper()
	var data struct{ Result []any }
	err := promGet(t, "http://"+addr+"/api/v1/query?"+url.Values{"query": {expr}}.Encode(), &data)
	return len(data.Result), err
}

func labelValues(t *testing.T, addr, label, selector string) []string {
	t.Helper()
	query := ""
	if selector != "" {
		query = "?" + url.Values{"match[]": {selector}}.Encode()
	}
	var values []string
	require.NoError(t, promGet(t, "http://"+addr+"/api/v1/label/"+label+"/values"+query, &values))
	return values
}

// pendingAlerts returns the names of alerts whose expressions hold.
func pendingAlerts(t *testing.T, addr string) []string {
	t.Helper()
	var data struct {
		Alerts []struct{ Labels map[string]string }
	}
	require.NoError(t, promGet(t, "http://"+addr+"/api/v1/alerts", &data))
	var names []string
	for _, a := range data.Alerts {
		names = append(names, a.Labels["alertname"])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// metricsOf returns the metrics that an expression names: identifiers that are
// neither labels nor functions.
func metricsOf(expr string) []string {
	for _, rest := range []string{
		`#.*`, `\{[^}]*\}`, `"[^"]*"`, `\[[^\]]*\]`, `\b(by|on|ignoring|without|group_left|group_right)\s*\([^)]*\)`,
		`\b\w+\s*\(`, `\b(and|or|unless|offset|bool)\b`, `\b\d\w*`,
	} {
		expr = regexp.MustCompile(rest).ReplaceAllString(expr, " ")
	}
	names := regexp.MustCompile(`[a-zA-Z_]\w*`).FindAllString(expr, -1)
	slices.Sort(names)
	return slices.Compact(names)
}

// metricSources returns the keys of the metrics that the components emit.
func metricSources(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(process.Root + "/*/*/metadata.yaml")
	require.NoError(t, err)
	names := []string{collectorsOwn}
	for _, m := range reading.All() {
		names = append(names, m.Name)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var m struct {
			Telemetry struct{ Metrics map[string]any }
		}
		require.NoError(t, yaml.Unmarshal(text, &m), file)
		names = slices.AppendSeq(names, maps.Keys(m.Telemetry.Metrics))
	}
	return names
}
