// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	otelattr "go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// store is an OTLP/gRPC server for all signals: it keeps the attributes of the resource
// by the name of each span, log record and metric.
type store struct {
	addr string

	mu    sync.Mutex
	names map[string]map[string]any
}

type (
	traceStore struct {
		ptraceotlp.UnimplementedGRPCServer
		*store
	}
	recordStore struct {
		plogotlp.UnimplementedGRPCServer
		*store
	}
	metricStore struct {
		pmetricotlp.UnimplementedGRPCServer
		*store
	}
)

func startStore(t *testing.T) *store {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &store{addr: listener.Addr().String(), names: map[string]map[string]any{}}
	server := grpc.NewServer()
	ptraceotlp.RegisterGRPCServer(server, &traceStore{store: s})
	plogotlp.RegisterGRPCServer(server, &recordStore{store: s})
	pmetricotlp.RegisterGRPCServer(server, &metricStore{store: s})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return s
}

func (s *store) keep(r pcommon.Resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = r.Attributes().AsRaw()
}

// of returns the resource of a span, record or metric, nil before it is there.
func (s *store) of(name string) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[name]
}

// await waits for that name and returns its resource.
func (s *store) await(t *testing.T, name string) map[string]any {
	t.Helper()
	eventually(t, name+" is in the store", func() bool { return s.of(name) != nil })
	return s.of(name)
}

func (s *traceStore) Export(_ context.Context, r ptraceotlp.ExportRequest) (ptraceotlp.ExportResponse, error) {
	for _, rs := range r.Traces().ResourceSpans().All() {
		for _, ss := range rs.ScopeSpans().All() {
			for _, span := range ss.Spans().All() {
				s.keep(rs.Resource(), span.Name())
			}
		}
	}
	return ptraceotlp.NewExportResponse(), nil
}

func (s *recordStore) Export(_ context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	for _, rl := range r.Logs().ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, record := range sl.LogRecords().All() {
				s.keep(rl.Resource(), record.Body().AsString())
			}
		}
	}
	return plogotlp.NewExportResponse(), nil
}

func (s *metricStore) Export(_ context.Context, r pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	for _, rm := range r.Metrics().ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				s.keep(rm.Resource(), m.Name())
			}
		}
	}
	return pmetricotlp.NewExportResponse(), nil
}

// aJob is OpenTelemetry's Go SDK as a training job has it: spans over gRPC, log records
// over HTTP, to the agent of its node.
func aJob(t *testing.T, grpcAddr, httpAddr string) {
	t.Helper()
	res := resource.NewSchemaless(
		otelattr.String("service.name", "trainer"), otelattr.String("host.name", "pod-7"),
		otelattr.String("slurm.job.id", "4711"), otelattr.String("process.command_line", "train --token=hush"))
	spans, err := otlptracegrpc.New(t.Context(), otlptracegrpc.WithEndpoint(grpcAddr), otlptracegrpc.WithInsecure())
	require.NoError(t, err)
	tp := sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithSyncer(spans))
	_, span := tp.Tracer("job").Start(t.Context(), "epoch")
	span.End()
	require.NoError(t, tp.Shutdown(t.Context()))

	records, err := otlploghttp.New(t.Context(), otlploghttp.WithEndpoint(httpAddr), otlploghttp.WithInsecure())
	require.NoError(t, err)
	lp := sdklog.NewLoggerProvider(sdklog.WithResource(res), sdklog.WithProcessor(sdklog.NewSimpleProcessor(records)))
	var record log.Record
	record.SetBody(log.StringValue("loss is 2.1"))
	lp.Logger("job").Emit(t.Context(), record)
	require.NoError(t, lp.Shutdown(t.Context()))
}

// isOfThisNode: the agent's word counts, and not the job's.
func isOfThisNode(t *testing.T, resource map[string]any) {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	assert.Equal(t, host, resource["host.name"])
	assert.Equal(t, "lab", resource["k8s.cluster.name"])
	assert.Equal(t, "trainer", resource["service.name"], "the rest is the job's own")
}

// plainStore has a gateway send without TLS.
const plainStore = "exporters:\n  otlp_grpc/jobs: {tls: {insecure: true}}\n"

// lean is the overlay of an agent without what only the full distribution has.
func (p agentPorts) lean(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf(`
receivers:
  otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}
extensions:
  healthcheckv2: {http: {endpoint: %q}}
service: {telemetry: {metrics: %s}}
`, p.grpc, p.http, p.health, telemetryReader(t, p.telemetry))
}

// TestTracesAndLogsOfAJob: an agent is the only collector that a node needs. What a job
// pushes there is in the store behind the gateway, named for its node, and counted.
func TestTracesAndLogsOfAJob(t *testing.T) {
	t.Parallel()
	lean, err := agentBinary()
	require.NoError(t, err)
	s := startStore(t)
	gateway, shard, agent := newGatewayPorts(t), newAgentPorts(t), newAgentPorts(t)
	start(t, options{
		configs: []string{"configs/gateway.yaml", gateway.overlay(t), plainStore},
		env:     []string{"GPU_COLLECTOR_JOBS_EXPORTER=otlp_grpc/jobs", "GPU_COLLECTOR_JOBS_STORE=" + s.addr},
	})
	start(t, options{configs: []string{"configs/shard.yaml", shard.lean(t)}, env: []string{
		"GPU_COLLECTOR_GATEWAY=" + gateway.grpc, "GPU_COLLECTOR_INSECURE=true",
	}})
	start(t, options{binary: lean, configs: []string{"configs/agent.yaml", agent.lean(t)}, env: []string{
		"GPU_COLLECTOR_GATEWAY=" + shard.grpc, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=lab",
	}})
	aJob(t, agent.grpc, agent.http)
	isOfThisNode(t, s.await(t, "epoch"))
	isOfThisNode(t, s.await(t, "loss is 2.1"))
	for tier, addr := range map[string]string{"agent": agent.telemetry, "shard": shard.telemetry, "gateway": gateway.telemetry} {
		for _, name := range []string{"otelcol_receiver_accepted_spans", "otelcol_exporter_sent_spans"} {
			eventually(t, tier+" counts "+name, func() bool { return scrape(t, addr).is(1, name, nil) })
		}
		eventually(t, tier+" counts log records", func() bool {
			v, _ := scrape(t, addr).value("otelcol_receiver_accepted_log_records", nil)
			return v >= 1
		})
	}
}

// TestTracesAndLogsCanBeOff, by one variable at each tier: a job is told at once, over both
// protocols, and its pipelines take, count and send nothing. All else passes.
func TestTracesAndLogsCanBeOff(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "nop"} {
		next := startStore(t)
		env := []string{
			"GPU_COLLECTOR_GATEWAY=" + next.addr, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=lab",
			"GPU_COLLECTOR_JOBS_EXPORTER=otlp_grpc/jobs", "GPU_COLLECTOR_JOBS_STORE=" + next.addr,
		}
		if value != "" {
			env = append(env, "GPU_COLLECTOR_JOBS="+value)
		}
		for _, tier := range []string{"agent", "shard", "gateway"} {
			t.Run(tier+" with GPU_COLLECTOR_JOBS="+value, func(t *testing.T) {
				t.Parallel()
				at := newAgentPorts(t)
				overlay := []string{at.lean(t)}
				if tier == "gateway" {
					g := newGatewayPorts(t)
					at = agentPorts{grpc: g.grpc, http: g.http, telemetry: g.telemetry}
					overlay = []string{g.overlay(t), plainStore}
				}
				start(t, options{configs: append([]string{"configs/" + tier + ".yaml"}, overlay...), env: env})
				jobIsTold(t, tier, at, next, value == "")
			})
		}
	}
}

// jobIsTold pushes a span, a log record and a metric to a tier that passes traces, or not.
func jobIsTold(t *testing.T, tier string, at agentPorts, next *store, on bool) {
	t.Helper()
	span, record, passed := tier+" span", tier+" record", tier == "shard" || tier == "gateway" // logs are the nodes' events too
	td, ld := ptrace.NewTraces(), plog.NewLogs()
	td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty().SetName(span)
	ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetStr(record)
	traces, logs := ptraceotlp.NewExportRequestFromTraces(td), plogotlp.NewExportRequestFromLogs(ld)

	conn, err := grpc.NewClient("passthrough:///"+at.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	answers := func(on bool, path string, body []byte, err error) {
		want, code := http.StatusNotFound, codes.Unimplemented
		if on {
			want, code = http.StatusOK, codes.OK
		}
		assert.Equal(t, code, status.Code(err), "%s over gRPC: %v", path, err)
		assert.Equal(t, want, post(t, "http://"+at.http+path, jsonType, body).status, path)
	}
	_, err = ptraceotlp.NewGRPCClient(conn).Export(t.Context(), traces)
	body, bad := traces.MarshalJSON()
	require.NoError(t, bad)
	answers(on, "/v1/traces", body, err)
	_, err = plogotlp.NewGRPCClient(conn).Export(t.Context(), logs)
	body, bad = logs.MarshalJSON()
	require.NoError(t, bad)
	answers(on || passed, "/v1/logs", body, err)
	md := pmetric.NewMetrics()
	gauge(node(md, tier, nil), "gpu.app.step.duration", "s", 0.5)
	_, err = pmetricotlp.NewGRPCClient(conn).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
	require.NoError(t, err, "metrics pass")

	counts := func(name string) bool { return len(scrape(t, at.telemetry)[name]) > 0 }
	eventually(t, "metrics are counted", func() bool { return counts("otelcol_receiver_accepted_metric_points") })
	if on {
		next.await(t, span)
		eventually(t, "spans are counted", func() bool { return counts("otelcol_exporter_sent_spans") })
	}
	if on || passed {
		next.await(t, record)
	}
	if on {
		return
	}
	for _, name := range []string{
		"otelcol_receiver_accepted_spans", "otelcol_receiver_refused_spans", "otelcol_exporter_sent_spans", "otelcol_exporter_send_failed_spans",
	} {
		assert.False(t, counts(name), name)
	}
	assert.Nil(t, next.of(span))
	if !passed {
		assert.False(t, counts("otelcol_receiver_accepted_log_records"), "of the job")
		assert.Nil(t, next.of(record))
	}
}

// TestRawAndTransformedRoutes: one agent feeds a store as it came, and a gateway
// transformed.
func TestRawAndTransformedRoutes(t *testing.T) {
	t.Parallel()
	raw, gateway, agent := startStore(t), startStore(t), newAgentPorts(t)
	start(t, options{configs: []string{"configs/agent.yaml", "configs/overlays/routes.yaml", agent.lean(t)}, env: []string{
		"GPU_COLLECTOR_GATEWAY=" + gateway.addr, "GPU_COLLECTOR_INSECURE=true", "GPU_COLLECTOR_CLUSTER=lab",
		"GPU_COLLECTOR_RAW=" + raw.addr, "GPU_COLLECTOR_RAW_INSECURE=true",
	}})
	aJob(t, agent.grpc, agent.http)
	md := pmetric.NewMetrics()
	metrics := node(md, "n0", map[string]string{"slurm.job.id": "4711", "process.command_line": "train"})
	gauge(metrics, "gpu.app.step.duration", "s", 0.5)
	_, err := grpcClient(t, agent.grpc).Export(t.Context(), pmetricotlp.NewExportRequestFromMetrics(md))
	require.NoError(t, err)

	for _, name := range []string{"epoch", "loss is 2.1", "gpu.app.step.duration"} {
		asItCame, transformed := raw.await(t, name), gateway.await(t, name)
		assert.Contains(t, asItCame, "process.command_line", name)
		assert.NotContains(t, asItCame, "gpu.job.id", name)
		assert.NotContains(t, transformed, "process.command_line", name)
		if name == "gpu.app.step.duration" {
			assert.Equal(t, "4711", transformed["gpu.job.id"])
			continue
		}
		assert.Equal(t, "pod-7", asItCame["host.name"], name)
		isOfThisNode(t, transformed)
	}
	gateway.await(t, "gpu.agent.gateway_reachable") // of the agent's straggler
	assert.Nil(t, raw.of("gpu.agent.gateway_reachable"))
}
