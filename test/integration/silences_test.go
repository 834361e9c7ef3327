// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/test/metricstore"
)

// withLogin lets ann write by the API of the fleet view.
const withLogin = `
extensions:
  basicauth: {htpasswd: {inline: "ann:pass"}}
  fleet_view: {http: {auth: {authenticator: basicauth}}}
service:
  extensions: [file_storage, basicauth, admission, straggler_threshold, exposition, fleet_view, healthcheckv2]
`

// asAnn sends a request of ann's, and reads its answer.
func asAnn(t *testing.T, method, url string, body, into any) {
	t.Helper()
	var text []byte
	if body != nil {
		var err error
		text, err = json.Marshal(body)
		require.NoError(t, err)
	}
	resp, err := send(t.Context(), method, url, text, "Content-Type", "application/json", "Authorization", "Basic YW5uOnBhc3M=")
	require.NoError(t, err)
	require.Less(t, resp.status, 300, "%s %s: %s", method, url, resp.body)
	if into != nil {
		require.NoError(t, json.Unmarshal(resp.body, into), "%s", resp.body)
	}
}

// tellEvent pushes a record of a node of cluster lab.
func tellEvent(t *testing.T, addr, node, event string, attrs map[string]any) {
	t.Helper()
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr("k8s.cluster.name", "lab")
	rl.Resource().Attributes().PutStr("host.name", node)
	lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	lr.SetEventName(event)
	lr.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	require.NoError(t, lr.Attributes().FromRaw(attrs))
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	require.NoError(t, err)
	resp := post(t, "http://"+addr+"/v1/logs", "application/x-protobuf", body)
	require.Equal(t, http.StatusOK, resp.status, "%s", resp.body)
}

// sick are reports of nodes with an unhealthy GPU each, and of its retired pages.
func sick(t *testing.T, addr string, nodes ...string) {
	t.Helper()
	md := pmetric.NewMetrics()
	for _, name := range nodes {
		metrics := node(md, name, map[string]string{"k8s.cluster.name": "lab"})
		for metric, value := range map[string]float64{"hw.gpu.info": 1, "hw.gpu.health.state": 1, "hw.gpu.memory.retired_pages": 3} {
			unit := map[bool]string{true: "{page}", false: "1"}[value == 3]
			p := gauge(metrics, metric, unit, value)
			for k, v := range map[string]string{"hw.id": "GPU-" + name, "hw.type": "gpu"} {
				p.Attributes().PutStr(k, v)
			}
			switch metric {
			case "hw.gpu.info":
				p.Attributes().PutStr("hw.serial_number", "serial-"+name)
			case "hw.gpu.health.state":
				p.Attributes().PutStr("state", "unhealthy")
			default:
				p.Attributes().PutStr("cause", "dbe")
			}
		}
	}
	_, err := grpcClient(t, addr).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
	require.NoError(t, err)
}

// alertsPrometheus scrapes a gateway and evaluates the shipped alerts, without their delays.
func alertsPrometheus(t *testing.T, target string) (addr string) {
	t.Helper()
	text, err := os.ReadFile(dashboardsDir + "/prometheus/alerts.yaml")
	require.NoError(t, err)
	rules := filepath.Join(t.TempDir(), "alerts.yaml")
	require.NoError(t, os.WriteFile(rules, regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAll(text, nil), 0o600))
	return metricstore.Prometheus(t, fmt.Sprintf(`
global: {scrape_interval: 250ms, evaluation_interval: 250ms}
rule_files: [%q]
scrape_configs:
  - {job_name: gateway, honor_labels: true, static_configs: [{targets: [%q]}]}
`, rules, target)).Addr
}

// unhealthy are the nodes for which GPUUnhealthy fires, or fired since then.
func unhealthy(t *testing.T, prom string, since time.Time) []string {
	t.Helper()
	nodes := map[string]bool{}
	for _, s := range promQuery(t, prom, `ALERTS{alertname="GPUUnhealthy", alertstate="firing"}`, since, time.Now()) {
		nodes[s.Metric["host_name"]] = true
	}
	return slices.Sorted(maps.Keys(nodes))
}

// TestASilenceMutesAndOutlivesAKill: a real Prometheus fires the shipped alerts for the nodes
// that nobody has silenced. Ledger, silences and acknowledgements are there after kill -9.
func TestASilenceMutesAndOutlivesAKill(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", ports.overlay(t), withLogin}, env: []string{"STATE_DIRECTORY=" + t.TempDir()}})
	api := "http://" + ports.fleet + "/api/v1/"
	var silence people.Silence
	asAnn(t, http.MethodPost, api+"silences", object{"cluster": "lab", "node": "n1", "reason": "psu swap", "until": time.Now().Add(time.Hour)}, &silence)
	// No node is known yet whose report could come before the silence.
	eventually(t, "the silence is a metric", func() bool {
		return len(scrape(t, ports.prom).with("gpu_straggler_silenced_seconds", labels{"host_name": "n1", "k8s_cluster_name": "lab"})) == 1
	})
	sick(t, ports.grpc, "n1", "n2")
	tellEvent(t, ports.http, "n1", "hw.gpu.xid", map[string]any{"hw.id": "GPU-n1", "gpu.xid.code": 79})
	tellEvent(t, ports.http, "n2", "gpu.straggler.episode", map[string]any{"gpu.straggler.episode.id": "e1", "gpu.straggler.phase": "onset", "gpu.straggler.subject": "node"})
	asAnn(t, http.MethodPost, api+"acknowledgements", object{"cluster": "lab", "episode_id": "e1", "reason": "a new fan"}, nil)

	began := time.Now()
	prom := alertsPrometheus(t, ports.prom)
	eventually(t, "the alert of the other node fires", func() bool { return slices.Contains(unhealthy(t, prom, began), "n2") })
	assert.Equal(t, []string{"n2"}, unhealthy(t, prom, began))

	kept := func() {
		t.Helper()
		var silences fleetapi.SilencePage
		asAnn(t, http.MethodGet, api+"silences?active=true", nil, &silences)
		require.Len(t, silences.Silences, 1)
		assert.Equal(t, []string{silence.ID, "n1", "psu swap", "ann"}, []string{silences.Silences[0].ID, silences.Silences[0].Node, silences.Silences[0].Reason, silences.Silences[0].By})
		var acks fleetapi.AcknowledgementPage
		asAnn(t, http.MethodGet, api+"acknowledgements", nil, &acks)
		require.Len(t, acks.Acknowledgements, 1)
		assert.Equal(t, []string{"e1", "ann", "a new fan"}, []string{acks.Acknowledgements[0].Episode, acks.Acknowledgements[0].By, acks.Acknowledgements[0].Reason})
		var audit fleetapi.AuditPage
		asAnn(t, http.MethodGet, api+"audit", nil, &audit)
		assert.Len(t, audit.Audit, 2)
		var board ledger.Board
		asAnn(t, http.MethodGet, api+"boards/GPU-n1", nil, &board)
		assert.Equal(t, "serial-n1", board.Serial)
		require.NotNil(t, board.Counters.RetiredDoubleBit)
		assert.InDelta(t, 3, *board.Counters.RetiredDoubleBit, 0)
		require.Len(t, board.Xids, 1)
		assert.Equal(t, int64(1), board.Xids[0].Count)
		require.Len(t, board.Places, 1)
		assert.Equal(t, "n1", board.Places[0].Node)
	}
	eventually(t, "the board of n1 has its counters and its XID", func() bool {
		var boards fleetapi.BoardPage
		asAnn(t, http.MethodGet, api+"boards?node=n1", nil, &boards)
		return len(boards.Boards) == 1 && boards.Boards[0].Counters.RetiredDoubleBit != nil && len(boards.Boards[0].Xids) == 1
	})
	kept()
	var list fleetapi.AttentionList
	asAnn(t, http.MethodGet, api+"attention?node=n1", nil, &list)
	require.Len(t, list.Items, 1)
	require.NotNil(t, list.Items[0].Silenced)
	assert.Equal(t, "psu swap", list.Items[0].Silenced.Reason)

	told := time.Now()
	eventually(t, "a second, by which words and boards are written", func() bool { return time.Since(told) > 1500*time.Millisecond })
	gateway.kill()
	gateway.restart()
	kept()
	eventually(t, "the silence is a metric again", func() bool {
		return len(scrape(t, ports.prom).with("gpu_straggler_silenced_seconds", labels{"host_name": "n1"})) == 1
	})
	back := time.Now()
	sick(t, ports.grpc, "n1", "n2")
	eventually(t, "the other alert fires again", func() bool { return slices.Contains(unhealthy(t, prom, back), "n2") })
	assert.NotContains(t, unhealthy(t, prom, began), "n1")

	asAnn(t, http.MethodDelete, api+"silences/"+silence.ID, nil, nil)
	eventually(t, "without the silence the alert fires", func() bool { return slices.Contains(unhealthy(t, prom, back), "n1") })
}
