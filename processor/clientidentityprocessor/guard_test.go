// SPDX-License-Identifier: Apache-2.0

package clientidentityprocessor

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/collector/confmap/xconfmap"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/processor/clientidentityprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/processor/clientidentityprocessor/internal/metadatatest"
)

type auth map[string]any

func (a auth) GetAttribute(name string) any { return a[name] }
func (auth) GetAttributeNames() []string    { return nil }

func as(t *testing.T, user string) context.Context {
	t.Helper()
	return client.NewContext(t.Context(), client.Info{Auth: auth{"username": user}})
}

func TestConfig(t *testing.T) {
	conf, err := confmaptest.LoadConf(filepath.Join("testdata", "config.yaml"))
	require.NoError(t, err)
	for id, want := range map[string]*Config{
		"client_identity":       {ClusterAuthAttribute: "username", Foreign: "refuse"},
		"client_identity/nodes": {ClusterAuthAttribute: "username", NodeAuthAttribute: "username", Foreign: "overwrite"},
		"client_identity/own":   {Cluster: "lab", Node: "7", Foreign: "overwrite"},
	} {
		sub, err := conf.Sub(id)
		require.NoError(t, err)
		cfg := createDefaultConfig()
		require.NoError(t, sub.Unmarshal(cfg))
		require.NoError(t, xconfmap.Validate(cfg))
		assert.Equal(t, want, cfg)
	}
	err = xconfmap.Validate(&Config{Foreign: "accept"})
	require.ErrorContains(t, err, "`cluster_auth_attribute` is empty")
	require.ErrorContains(t, err, "`foreign` is \"accept\"")
	for want, cfg := range map[string]*Config{
		"must be either the names or the attributes": {ClusterAuthAttribute: "username", Cluster: "lab"},
		"or `node_auth_attribute`: must be":          {NodeAuthAttribute: "username", Cluster: "lab"},
		"`node` is set without `cluster`":            {ClusterAuthAttribute: "username", Node: "a"},
		"`cluster` is \"lab\\n\": must be 1 to":      {Cluster: "lab\n"},
		"`node` is \"\\n\": must be 1 to":            {Cluster: "lab", Node: "\n"},
	} {
		cfg.Foreign = foreignRefuse
		require.ErrorContains(t, xconfmap.Validate(cfg), want)
	}
}

// TestSettle has each resource as it comes and as it goes on. A resource
// without want has a foreign claim.
func TestSettle(t *testing.T) {
	type kv = map[string]string
	cluster := Config{ClusterAuthAttribute: "username"}
	node := Config{ClusterAuthAttribute: "username", NodeAuthAttribute: "username"}
	own := Config{Cluster: "lab", Node: "a"}
	for name, tc := range map[string]struct {
		cfg  Config
		user string
		in   kv
		want kv
		over kv // with foreign: overwrite
	}{
		"its own cluster":         {cluster, "lab", kv{"k8s.cluster.name": "lab", "host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, nil},
		"no cluster":              {cluster, "lab", kv{"host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, nil},
		"another cluster":         {cluster, "lab", kv{"k8s.cluster.name": "victim", "host.name": "a"}, nil, kv{"k8s.cluster.name": "lab", "host.name": "a"}},
		"an empty cluster":        {cluster, "lab", kv{"k8s.cluster.name": ""}, nil, kv{"k8s.cluster.name": "lab"}},
		"a tier":                  {cluster, "*", kv{"k8s.cluster.name": "any", "host.name": "a"}, kv{"k8s.cluster.name": "any", "host.name": "a"}, nil},
		"its own node":            {node, "lab/a", kv{"host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, nil},
		"no node":                 {node, "lab/a", kv{}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, nil},
		"a machine's id only":     {node, "lab/a", kv{"host.id": "victim"}, kv{"k8s.cluster.name": "lab", "host.name": "a", "host.id": "victim"}, nil},
		"another host":            {node, "lab/a", kv{"host.name": "victim"}, nil, kv{"k8s.cluster.name": "lab", "host.name": "a"}},
		"a pod on its node":       {node, "lab/a", kv{"k8s.node.name": "a", "host.name": "pod-1"}, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a"}, nil},
		"a pod on another":        {node, "lab/a", kv{"k8s.node.name": "victim", "host.name": "a"}, nil, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a"}},
		"a tier of its cluster":   {node, "lab/*", kv{"host.name": "any"}, kv{"k8s.cluster.name": "lab", "host.name": "any"}, nil},
		"everybody, its own":      {own, "", kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "gpu.job.id": "llm"}, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a", "gpu.job.id": "llm"}, nil},
		"everybody, another":      {own, "lab/victim", kv{"k8s.cluster.name": "victim", "k8s.node.name": "victim", "host.name": "victim", "gpu.job.id": "llm"}, nil, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a", "gpu.job.id": "llm"}},
		"everybody, any node":     {Config{Cluster: "lab"}, "", kv{"host.name": "b"}, kv{"k8s.cluster.name": "lab", "host.name": "b"}, nil},
		"a tier, another cluster": {node, "lab/*", kv{"host.name": "any", "k8s.cluster.name": "victim"}, nil, kv{"k8s.cluster.name": "lab", "host.name": "any"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, foreign := range []string{foreignRefuse, foreignOverwrite} {
				cfg := tc.cfg
				cfg.Foreign = foreign
				want := tc.want
				if want == nil && foreign == foreignOverwrite {
					want = tc.over
				}
				sink := new(consumertest.MetricsSink)
				p, err := NewFactory().CreateMetrics(t.Context(), processortest.NewNopSettings(metadata.Type), &cfg, sink)
				require.NoError(t, err)
				md := pmetric.NewMetrics()
				for k, v := range tc.in {
					if md.ResourceMetrics().Len() == 0 {
						md.ResourceMetrics().AppendEmpty()
					}
					md.ResourceMetrics().At(0).Resource().Attributes().PutStr(k, v)
				}
				if len(tc.in) == 0 {
					md.ResourceMetrics().AppendEmpty()
				}
				err = p.ConsumeMetrics(as(t, tc.user), md)
				if want == nil {
					assert.Equal(t, codes.PermissionDenied, status.Code(err), foreign)
					assert.Empty(t, sink.AllMetrics())
					continue
				}
				require.NoError(t, err, foreign)
				got := kv{}
				for k, v := range sink.AllMetrics()[0].ResourceMetrics().At(0).Resource().Attributes().All() {
					got[k] = v.Str()
				}
				assert.Equal(t, want, got, foreign)
			}
		})
	}
}

// TestSameNameTwice: some readers take the first attribute of a name, others the last. An
// own name as a number is no foreign claim, and goes on as every reader takes it.
func TestSameNameTwice(t *testing.T) {
	for name, tt := range map[string]struct{ user, values string }{
		"own first":    {"lab", `{"key":"k8s.cluster.name","value":{"stringValue":"lab"}},{"key":"k8s.cluster.name","value":{"stringValue":"victim"}}`},
		"own last":     {"lab", `{"key":"k8s.cluster.name","value":{"stringValue":"victim"}},{"key":"k8s.cluster.name","value":{"stringValue":"lab"}}`},
		"a number":     {"lab", `{"key":"k8s.cluster.name","value":{"intValue":"7"}}`},
		"an own one":   {"7", `{"key":"k8s.cluster.name","value":{"intValue":"7"}}`},
		"an own float": {"7", `{"key":"k8s.cluster.name","value":{"doubleValue":7}}`},
	} {
		t.Run(name, func(t *testing.T) {
			md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics([]byte(`{"resourceMetrics":[{"resource":{"attributes":[` + tt.values + `]}}]}`))
			require.NoError(t, err)
			attrs := md.ResourceMetrics().At(0).Resource().Attributes()
			id, err := (&Config{ClusterAuthAttribute: "username"}).rule().Of(as(t, tt.user))
			require.NoError(t, err)
			_, foreign := settle(attrs, id)
			assert.Equal(t, tt.user == "lab", foreign)
			assert.Equal(t, map[string]any{"k8s.cluster.name": tt.user}, attrs.AsRaw())
			assert.Equal(t, 1, attrs.Len())
		})
	}
}

// TestEverySignalIsHeld: what goes for metrics goes for logs and traces, and
// nobody is taken for somebody.
func TestEverySignalIsHeld(t *testing.T) {
	tel := componenttest.NewTelemetry()
	t.Cleanup(func() { require.NoError(t, tel.Shutdown(context.WithoutCancel(t.Context()))) })
	set := processortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	cfg := &Config{ClusterAuthAttribute: "username", Foreign: foreignRefuse}
	f := NewFactory()
	metrics, err := f.CreateMetrics(t.Context(), set, cfg, new(consumertest.MetricsSink))
	require.NoError(t, err)
	logSink := new(consumertest.LogsSink)
	logs, err := f.CreateLogs(t.Context(), set, cfg, logSink)
	require.NoError(t, err)
	traceSink := new(consumertest.TracesSink)
	traces, err := f.CreateTraces(t.Context(), set, cfg, traceSink)
	require.NoError(t, err)

	for _, c := range []component.Component{metrics, logs, traces} {
		require.NoError(t, c.Start(t.Context(), componenttest.NewNopHost()))
		t.Cleanup(func() { require.NoError(t, c.Shutdown(context.WithoutCancel(t.Context()))) })
	}
	claimed := func(r pcommon.Resource) { r.Attributes().PutStr("k8s.cluster.name", "victim") }
	push := func(ctx context.Context) []error {
		md, ld, td := pmetric.NewMetrics(), plog.NewLogs(), ptrace.NewTraces()
		claimed(md.ResourceMetrics().AppendEmpty().Resource())
		claimed(ld.ResourceLogs().AppendEmpty().Resource())
		claimed(td.ResourceSpans().AppendEmpty().Resource())
		return []error{metrics.ConsumeMetrics(ctx, md), logs.ConsumeLogs(ctx, ld), traces.ConsumeTraces(ctx, td)}
	}
	for _, ctx := range []context.Context{as(t, "lab"), as(t, ""), t.Context()} {
		for _, err := range push(ctx) {
			assert.Equal(t, codes.PermissionDenied, status.Code(err), err)
		}
	}
	assert.Empty(t, logSink.AllLogs())
	assert.Empty(t, traceSink.AllTraces())
	for _, err := range push(as(t, "victim")) {
		require.NoError(t, err)
	}
	assert.Len(t, logSink.AllLogs(), 1)
	assert.Len(t, traceSink.AllTraces(), 1)
	sum := func(v int64) []metricdata.DataPoint[int64] { return []metricdata.DataPoint[int64]{{Value: v}} }
	metadatatest.AssertEqualProcessorClientIdentityForeignResources(t, tel, sum(3), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualProcessorClientIdentityRefusedPushes(t, tel, sum(9), metricdatatest.IgnoreTimestamp())
}
