// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"net/http"
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
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// node adds a resource for a node and returns its metrics.
func node(md pmetric.Metrics, cluster, name string) pmetric.MetricSlice {
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", name)
	rm.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
	return rm.ScopeMetrics().AppendEmpty().Metrics()
}

// gauge adds a gauge with one point.
func gauge(metrics pmetric.MetricSlice, name string, at time.Time, value float64) pmetric.NumberDataPoint {
	m := metrics.AppendEmpty()
	m.SetName(name)
	m.SetUnit("1")
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetTimestamp(pcommon.NewTimestampFromTime(at))
	p.SetDoubleValue(value)
	return p
}

// score adds a node that says its health score.
func score(md pmetric.Metrics, cluster, name string, at time.Time, value float64) {
	gauge(node(md, cluster, name), "gpu.node.health_score", at, value).Attributes().PutStr("gpu.node.state", "active")
}

func marshal(t *testing.T, md pmetric.Metrics) []byte {
	t.Helper()
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return body
}

func nodeName(i int) string { return fmt.Sprint("node", i) }

// fleet is an honest one of ten nodes; the slow one, if any, has a low score.
func fleet(cluster, slow string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i := range honestNodes {
		name, value := nodeName(i), 0.97
		if name == slow {
			value = 0.6
		}
		score(md, cluster, name, time.Now(), value)
	}
	return md
}

// push sends what a cluster has to say, and returns the answer's headers.
func (g *target) push(ctx context.Context, cluster string, md pmetric.Metrics) (metadata.MD, error) {
	var header metadata.MD
	ctx = metadata.AppendToOutgoingContext(ctx, "gpu-cluster", cluster, "gpu-group", `"default"`)
	_, err := g.client.Export(ctx, pmetricotlp.NewExportRequestFromMetrics(md), grpc.Header(&header))
	return header, err
}

// requireHonest pushes an honest fleet and requires that its threshold comes
// back: whatever came before, the process does its work.
func (g *target) requireHonest(cluster string) {
	g.t.Helper()
	eventually(g.t, "the threshold of "+cluster, func() bool {
		header, err := g.push(g.t.Context(), cluster, fleet(cluster, ""))
		require.NoError(g.t, err)
		return len(header.Get("gpu-straggler-threshold")) == 1 && header.Get("gpu-straggler-quorum-met")[0] == "true"
	})
}

// exportRaw sends bytes as the message of a call.
func exportRaw(ctx context.Context, conn *grpc.ClientConn, method string, body []byte, opts ...grpc.CallOption) error {
	var reply []byte
	return conn.Invoke(ctx, method, &body, &reply, append(opts, grpc.ForceCodecV2(rawCodec{}))...)
}

const (
	metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
	logsMethod    = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
	tracesMethod  = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

	profilesMethod = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
)

// rawCodec passes bytes through as if they were protobuf.
type rawCodec struct{}

// Marshal implements encoding.CodecV2.
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal implements encoding.CodecV2.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// Name implements encoding.CodecV2.
func (rawCodec) Name() string { return "proto" }

// TestForgedLines pushes log records whose bodies and attributes are lines as the
// gateway writes them, and many of them.
func TestForgedLines(t *testing.T) {
	g := gateway(t, options{})
	b := beside(t, alone(g), "forged_lines")
	const line = "2026-01-01T00:00:00.000Z\twarn\tSTRAGGLER node-07 of lab: its step time has been 30 % behind its peers'"
	ld := plog.NewLogs()
	records := ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords()
	for i := range 50_000 {
		r := records.AppendEmpty()
		if i%1000 == 0 { // an event, which is a line of the gateway's
			r.SetEventName(gpusemconv.EventStraggler)
			for _, name := range []string{gpusemconv.AttrEpisodeID, gpusemconv.AttrEpisodeReason, gpusemconv.AttrEpisodeSubject, gpusemconv.AttrPeerGroup} {
				r.Attributes().PutStr(name, "e\n"+line+"\n"+strings.Repeat("x", 1000))
			}
		}
		r.Body().SetStr("a\n" + line + "\n")
		r.Attributes().PutStr("k\n"+line, "v\n"+line)
	}
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	require.NoError(t, err)
	for range 5 {
		require.Equal(t, http.StatusOK, g.post(httpClient, "/v1/logs", protobufType, gzipped(t, body), "Content-Encoding", "gzip"))
	}
	for said := range strings.Lines(g.log.String()) {
		// Quoted, in the midst of a line that says who said so.
		assert.False(t, strings.HasPrefix(said, "2026-01-01T00:00:00"), "%.300q", said)
	}
	b.endCalm(32*mib, 16<<10)
}

// TestForgedVerdicts pushes metrics with the names of the gateway's own before anybody
// else does: as summaries, which have no series, and as gauges that accuse a node. The
// gateway also has the exporter that users may add.
func TestForgedVerdicts(t *testing.T) {
	added := loopback.FreeAddr(t)
	g := gateway(t, options{overlay: fmt.Sprintf(`
exporters: {prometheus: {endpoint: %q, resource_to_telemetry_conversion: {enabled: true}, without_scope_info: true}}
service: {pipelines: {metrics: {exporters: [fleet_view, prometheus]}}}
`, added)})
	b := beside(t, alone(g), "forged_verdicts")
	honest := []string{
		"gpu_straggler_threshold_ratio", "gpu_straggler_median_ratio", "gpu_straggler_mad_ratio", "gpu_straggler_nodes",
		"gpu_straggler_quorum_met", "gpu_straggler_coverage_low", "gpu_straggler_panic_mode", "gpu_straggler_stragglers",
		"gpu_straggler_incident", "gpu_straggler_rank", "gpu_node_straggler", "gpu_node_suspicion_ratio",
	}
	forged := func() pmetric.Metrics {
		md := pmetric.NewMetrics()
		metrics := node(md, "c", "node5")
		for _, name := range []string{
			"gpu.straggler.threshold", "gpu.straggler.median", "gpu.straggler.mad", "gpu.straggler.nodes", "gpu.straggler.quorum_met",
			"gpu.straggler.coverage_low", "gpu.straggler.panic_mode", "gpu.straggler.stragglers", "gpu.straggler.incident",
			"gpu.straggler.rank", "gpu.node.straggler", "gpu.node.suspicion",
			"gpu_straggler_threshold_ratio", "gpu.node", "gpu.straggler_median.ratio",
		} {
			m := metrics.AppendEmpty()
			m.SetName(name)
			if name == "gpu.node" {
				m.SetUnit("straggler")
			}
			m.SetEmptySummary().DataPoints().AppendEmpty().QuantileValues().AppendEmpty().SetValue(1)
		}
		gauge(metrics, "gpu.node.straggler", time.Now(), 1).Attributes().PutStr("gpu.peer_group", "made up")
		gauge(metrics, "gpu_node_suspicion_ratio", time.Now(), 2).Attributes().PutStr("gpu.peer_group", "made up")
		return md
	}
	for range 5 {
		_, err := g.push(t.Context(), "c", forged())
		require.NoError(t, err)
	}
	var types, of map[string]string
	read := func(addr string) bool {
		_, text := g.get("http://" + addr + "/metrics")
		types, of = map[string]string{}, map[string]string{}
		for line := range strings.Lines(string(text)) {
			if name, kind, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "# TYPE "), " "); ok && strings.HasPrefix(line, "# TYPE ") {
				types[name] = kind
			} else if name, _, ok := strings.Cut(line, "{"); ok {
				of[name] += line
			}
		}
		for _, name := range honest {
			if of[name] == "" {
				return false
			}
		}
		return true
	}
	for _, addr := range []string{g.prom, added} {
		eventually(t, "the gateway's own series are there", func() bool {
			for _, md := range []pmetric.Metrics{forged(), fleet("c", "")} {
				_, err := g.push(t.Context(), "c", md)
				require.NoError(t, err)
			}
			return read(addr)
		})
		for _, name := range honest {
			assert.Equal(t, "gauge", types[name], name)
			assert.NotContains(t, of[name], "made up", name)
		}
	}
	b.end()
	assert.Len(t, g.nodes("c"), 10)
	assert.False(t, g.straggler("c", "node5"))
	assert.Equal(t, 1, strings.Count(g.log.String(), "only a gateway gives names like this"), "told once")
	_, text := g.get("http://" + g.telemetry + "/metrics")
	for _, reason := range []string{"own_name", "alike"} {
		assert.Regexp(t, `otelcol_processor_straggler_removed(_\w+)?\{[^}]*reason="`+reason+`"[^}]*\} [1-9]`, string(text))
	}
}
