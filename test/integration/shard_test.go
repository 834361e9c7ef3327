// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestAShardBeforeItsGateway sends on what changed. What the gateway asks of a sender
// reaches the agent, which would drop the data otherwise. What a client may do to the
// comparison is for the receiver's own tests.
func TestAShardBeforeItsGateway(t *testing.T) {
	t.Parallel()
	refusal, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
	require.NoError(t, err)
	answers, points := make(chan error, 1), make(chan int, 1)
	next := loopback.FreeAddr(t)
	(&process.NextHop{Take: func(_ context.Context, md pmetric.Metrics) error {
		points <- md.DataPointCount()
		return <-answers
	}}).Listen(t, next)
	// Pushes wait for the gateway, where the shard batches as it is shipped.
	s := startShard(t, next, "processors: {diff: {flush_interval: 0s, resync_interval: 0s}}\n", "exporters: {otlp_grpc: {compression: none}}\n")
	md := pmetric.NewMetrics()
	metrics := process.Node(md, "n0")
	for _, gpu := range []string{"GPU-0", "GPU-1"} {
		process.Gauge(metrics, "hw.temperature", "Cel", 60, "hw.id", gpu)
	}
	conn := process.Dial(t, s.GRPC)
	for _, want := range []int{3, 1} { // the heartbeat is one, and at last alone
		answers <- nil
		_, err = process.Export(t.Context(), conn, md)
		require.NoError(t, err)
		assert.Equal(t, want, <-points)
	}
	process.Eventually(t, "the pushes are compared before they are decoded", func() bool {
		return process.Scrape(t, s.Telemetry).Is(2, "otelcol_receiver_fleet_otlp_pushes", labels{"read": "bytes"})
	})

	answers <- refusal.Err()
	_, err = process.Export(t.Context(), conn, md)
	<-points
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	require.Len(t, status.Convert(err).Details(), 1)
	assert.Equal(t, 3*time.Second, status.Convert(err).Details()[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration())
	answers <- refusal.Err()
	resp := process.Post(t, s.Push(), process.Protobuf, process.Marshal(t, md))
	assert.Equal(t, http.StatusTooManyRequests, resp.Status)
	assert.Equal(t, "3", resp.Header.Get("Retry-After"))
}
