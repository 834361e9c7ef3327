// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

const testGroup = "job-00000//NVIDIA-H100-80GB-HBM3"

// params is what a gateway returns for the group of a fleet of one job.
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
	params  string
	headers sync.Map // the headers of each node that pushed
}

func (r *refusing) Export(ctx context.Context, _ pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	header := func(name string) string { return strings.Join(md.Get(name), " ") }
	r.headers.Store(header(gpusemconv.HeaderNode), Headers{header(gpusemconv.HeaderCluster), header(gpusemconv.HeaderNode), header(gpusemconv.HeaderGroup)})
	if err := grpc.SetHeader(ctx, metadata.Pairs(gpusemconv.HeaderParams, r.params)); err != nil {
		return pmetricotlp.NewExportResponse(), err
	}
	s, err := status.New(codes.ResourceExhausted, "full").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)})
	if err != nil {
		return pmetricotlp.NewExportResponse(), err
	}
	return pmetricotlp.NewExportResponse(), s.Err()
}

func pushUntil(t *testing.T, cfg PushConfig, f *Fleet, enough func(Report) bool) Report {
	t.Helper()
	p, err := NewPusher(cfg, f)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, p.Run(ctx)) })
	require.Eventually(t, func() bool { return enough(p.Report()) }, time.Minute, time.Millisecond)
	cancel()
	running.Wait()
	return p.Report()
}

// A refusal has the time to wait, and the threshold all the same.
func TestRefusalsBringThresholds(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	other := &refusing{params: params(t)}
	pmetricotlp.RegisterGRPCServer(s, other)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); serving.Wait() })
	f := newFleet(t, Config{Nodes: 2, GPUs: 1})
	cfg := DefaultPushConfig()
	cfg.Endpoint, cfg.Interval, cfg.Timeout, cfg.Compression = l.Addr().String(), 0, time.Minute, "zstd"
	r := pushUntil(t, cfg, f, func(r Report) bool { return r.Pushes >= 2 })
	assert.Zero(t, r.Accepted)
	assert.Equal(t, map[string]int64{"ResourceExhausted": 2}, r.Refusals, "no node comes back within the hour")
	assert.Equal(t, 2, r.NodesWithThreshold)
	for i := range f.nodes {
		n := &f.nodes[i]
		assert.True(t, n.reachable, "a refusal is an answer")
		headers, _ := other.headers.Load(NodeName(i))
		assert.Equal(t, Headers{"fleetsim", NodeName(i), `"` + testGroup + `"`}, headers)
		assert.InDelta(t, 0.8, n.received.Threshold, 0)
	}
}

// Bytes in headers are not to be trusted.
func TestBadHeadersAreCounted(t *testing.T) {
	f := newFleet(t, Config{Nodes: 1, GPUs: 1})
	for text, want := range map[string]struct{ threshold, bad bool }{
		params(t):                   {threshold: true},
		`"` + testGroup + `";v="x"`: {bad: true},
		"\x00":                      {bad: true},
		`"other";v=1;q;t="0.5";m="0.9";s="0";k="2";n=1;ttl=50`: {},
	} {
		f.nodes[0].received = threshold.Received{}
		r := result{headers: metadata.Pairs(gpusemconv.HeaderParams, text), answered: true}
		err := f.receive(0, &r, start)
		assert.Equal(t, want.bad, err != nil, "%q: %v", text, err)
		s := newStats(1)
		s.push(time.Second, 0, &r, err)
		report := s.report(f)
		assert.Equal(t, want.threshold, report.NodesWithThreshold == 1, "%q", text)
		assert.Equal(t, want.bad, report.BadHeaders == 1 && report.LastError != "", "%q", text)
	}
}
