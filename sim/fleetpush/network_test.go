// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// received is what came from each node last.
type received struct {
	mu      sync.Mutex
	last    map[string]pmetric.Metrics
	headers map[string]Headers
	peers   map[string]bool
	pushes  int
	enough  func()
	want    int
}

func (r *received) consume(ctx context.Context, md pmetric.Metrics) error {
	info := client.FromContext(ctx)
	header := func(name string) string {
		if v := info.Metadata.Get(name); len(v) == 1 {
			return v[0]
		}
		return ""
	}
	h := Headers{header(gpusemconv.HeaderCluster), header(gpusemconv.HeaderNode), header(gpusemconv.HeaderGroup)}
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := pmetric.NewMetrics()
	md.CopyTo(kept)
	r.last[h.Node], r.headers[h.Node] = kept, h
	r.peers[info.Addr.String()] = true
	if r.pushes++; r.pushes == r.want {
		r.enough()
	}
	return nil
}

// recorder notes the last body that each node sent.
type recorder struct {
	sender
	mu   sync.Mutex
	last map[string][]byte
}

func (r *recorder) send(ctx context.Context, connection int, h Headers, body []byte) result {
	res := r.sender.send(ctx, connection, h, body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last[h.Node] = body
	return res
}

// The Collector's own receiver decodes, of every compression, the same bytes as the
// fleet sent.
func TestTheCollectorsReceiverTakesThePushes(t *testing.T) {
	const nodes, connections = 9, 3
	for _, compression := range Compressions() {
		t.Run(compression, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			got := &received{last: map[string]pmetric.Metrics{}, headers: map[string]Headers{}, peers: map[string]bool{}, enough: cancel, want: 3 * nodes}
			cfg := DefaultPushConfig()
			cfg.Endpoint, cfg.Compression = listen(t, got), compression
			cfg.Interval, cfg.Connections, cfg.Timeout = 0, connections, time.Minute
			f := newFleet(t, Config{Nodes: nodes, GPUs: 2, Clusters: 3, Load: fleetsim.Training, Raw: true})
			p, err := NewPusher(cfg, f)
			require.NoError(t, err)
			sent := &recorder{sender: p.sender, last: map[string][]byte{}}
			p.sender = sent
			require.NoError(t, p.Run(ctx))

			r := p.Report()
			assert.Equal(t, r.Pushes, r.Accepted, "%v %s", r.Refusals, r.LastError)
			assert.EqualValues(t, got.pushes, r.Pushes)
			require.Len(t, got.last, nodes)
			for i := range nodes {
				assert.Equal(t, sent.last[NodeName(i)], encoded(t, got.last[NodeName(i)]))
				assert.Equal(t, f.Headers(i), got.headers[NodeName(i)])
			}
			assert.Equal(t, Headers{"fleetsim-02", "node-000008", `"job-00000//NVIDIA-H100-80GB-HBM3"`}, got.headers[NodeName(8)])
			assert.Len(t, got.peers, connections)
		})
	}
}

func listen(t *testing.T, to *received) string {
	t.Helper()
	addr := loopback.FreeAddr(t)
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{
		"grpc": map[string]any{"endpoint": addr, "include_metadata": true},
	}}).Unmarshal(cfg))
	sink, err := consumer.NewMetrics(to.consume)
	require.NoError(t, err)
	r, err := factory.CreateMetrics(t.Context(), receiver.Settings{
		ID: component.NewIDWithName(factory.Type(), addr), TelemetrySettings: componenttest.NewNopTelemetrySettings(),
	}, cfg, sink)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, r.Shutdown(context.WithoutCancel(t.Context()))) })
	return addr
}

const testGroup = "job-00000//NVIDIA-H100-80GB-HBM3"

// params is what a gateway says of the group of a fleet of one job.
func params(t *testing.T) string {
	t.Helper()
	m, err := threshold.EncodeMember(threshold.Value{
		Group: testGroup, Version: 1790000000000, Threshold: 0.8, Median: 0.9, Scale: 0.01, K: 2, Nodes: 2, QuorumMet: true, TTL: time.Minute,
	})
	require.NoError(t, err)
	return m
}

type refusing struct {
	pmetricotlp.UnimplementedGRPCServer
	params string
}

func (r *refusing) Export(ctx context.Context, _ pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs(gpusemconv.HeaderParams, r.params)); err != nil {
		return pmetricotlp.NewExportResponse(), err
	}
	s, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)})
	if err != nil {
		return pmetricotlp.NewExportResponse(), err
	}
	return pmetricotlp.NewExportResponse(), s.Err()
}

// A refusal tells when to come back, and the threshold all the same.
func TestRefusalsAreHeard(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(s, &refusing{params: params(t)})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	f := newFleet(t, Config{Nodes: 2, GPUs: 1, Load: fleetsim.Training})
	cfg := DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.Timeout = l.Addr().String(), 0, time.Minute
	p, err := NewPusher(cfg, f)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, p.Run(ctx)) })
	require.Eventually(t, func() bool { return p.Report().Pushes >= 2 }, time.Minute, 10*time.Millisecond)
	cancel()
	wg.Wait()

	r := p.Report()
	assert.Zero(t, r.Accepted)
	assert.Equal(t, map[string]int64{"ResourceExhausted": 2}, r.Refusals, "nobody comes back within the hour")
	assert.EqualValues(t, 2, r.Thresholds)
	assert.EqualValues(t, 2, r.NewThresholds)
	assert.Equal(t, 2, r.NodesWithThreshold)
	for i := range f.nodes {
		n := &f.nodes[i]
		assert.True(t, n.reachable, "a refusal is an answer")
		assert.InDelta(t, 0.8, n.received.Threshold, 0)
	}
}

func TestNobodyThere(t *testing.T) {
	f := newFleet(t, Config{Nodes: 1, GPUs: 1, Load: fleetsim.Idle})
	cfg := DefaultPushConfig()
	cfg.Endpoint, cfg.Interval = loopback.FreeAddr(t), time.Millisecond
	p, err := NewPusher(cfg, f)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, p.Run(ctx)) })
	require.Eventually(t, func() bool { return p.Report().Refusals["Unavailable"] > 0 }, time.Minute, time.Millisecond)
	cancel()
	wg.Wait()
	assert.False(t, f.nodes[0].reachable)
	assert.Zero(t, p.Report().Accepted)
}

// Bytes in headers are somebody else's.
func TestBadHeadersAreCounted(t *testing.T) {
	f := newFleet(t, Config{Nodes: 1, GPUs: 1})
	good := params(t)
	for text, want := range map[string]struct{ threshold, bad bool }{
		good:                        {threshold: true},
		`"` + testGroup + `";v="x"`: {bad: true},
		"\x00":                      {bad: true},
		`"other";v=1;q;t="0.5";m="0.9";s="0";k="2";n=1;ttl=50`: {},
	} {
		f.nodes[0].received = threshold.Received{}
		h := f.Hear(0, Answer{Accepted: true, Answered: true, Headers: func(name string) []string {
			return map[string][]string{gpusemconv.HeaderParams: {text}}[name]
		}}, start)
		assert.Equal(t, want.threshold, h.Threshold, "%q", text)
		assert.Equal(t, want.threshold, h.New, "%q", text)
		assert.Equal(t, want.bad, h.Err != nil, "%q: %v", text, h.Err)
	}
}
