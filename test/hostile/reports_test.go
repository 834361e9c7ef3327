// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
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

// exportRaw sends bytes as the message of a call.
func exportRaw(ctx context.Context, conn *grpc.ClientConn, method string, body []byte, opts ...grpc.CallOption) error {
	var reply []byte
	return conn.Invoke(ctx, method, &body, &reply, append(opts, grpc.ForceCodecV2(rawCodec{}))...)
}

const (
	metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
	logsMethod    = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
	tracesMethod  = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
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
