// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/test/bench/harness"
)

// Connections share the pushes, as agents behind a proxy do.
const connections = 30

// run puts a number of senders before a collector and returns what they met.
func run(ctx context.Context, binary string, senders int, admission bool, span time.Duration) (level, error) {
	next, stopNext, err := harness.NextHop(ctx, nextHop)
	if err != nil {
		return level{}, err
	}
	defer stopNext()
	overrides := []string{fmt.Sprintf(config, next, permits)}
	if admission {
		overrides = append(overrides, "receivers::otlp::protocols::grpc::middlewares: [{id: admission}]")
	}
	c, err := harness.Start(ctx, harness.Setup{Name: "collector", Binary: binary, Overrides: overrides})
	if err != nil {
		return level{}, err
	}
	l, err := push(ctx, c, senders, span)
	return l, errors.Join(err, c.Close())
}

const config = `
receivers:
  otlp:
    protocols:
      grpc: {max_recv_msg_size_mib: 16}
exporters:
  otlp_grpc:
    endpoint: %q
    tls: {insecure: true}
    compression: none
    timeout: 30s
    retry_on_failure: {enabled: false}
    sending_queue: {enabled: false}
extensions:
  admission: {max_concurrent: %d, cluster_share: 1}
service:
  extensions: [admission]
  telemetry:
    metrics: {level: none}
  pipelines:
    metrics: {receivers: [otlp], exporters: [otlp_grpc]}
`

// push runs senders that push without a pause and, when refused, wait for as
// long as they are told, as the Collector's exporter does.
func push(ctx context.Context, c *harness.Collector, senders int, span time.Duration) (level, error) {
	conns := make([]*grpc.ClientConn, connections)
	for i := range conns {
		cc, err := grpc.NewClient(c.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(harness.Raw{})))
		if err != nil {
			return level{}, err
		}
		defer func() { _ = cc.Close() }()
		conns[i] = cc
	}
	body, err := pmetricotlp.NewExportRequestFromMetrics(harness.Report(1, rand.Float64)).MarshalProto()
	if err != nil {
		return level{}, err
	}
	begin := time.Now()
	measured, end := begin.Add(warmUpTime), begin.Add(warmUpTime+span)
	var mu sync.Mutex
	var l level
	var wg sync.WaitGroup
	for i := range senders {
		wg.Go(func() {
			var admitted, refused []time.Duration
			lost := 0
			// Nodes have phases of their own.
			_ = harness.Wait(ctx, time.Duration(rand.Int64N(int64(nextHop))))
			for time.Now().Before(end) && ctx.Err() == nil {
				began := time.Now()
				var reply []byte
				err := conns[i%connections].Invoke(ctx, harness.ExportMethod, &body, &reply)
				took := time.Since(began)
				keep := began.After(measured)
				if err == nil {
					if keep {
						admitted = append(admitted, took)
					}
					continue
				}
				retry, ok := retryAfter(err)
				if !ok {
					lost++
					continue
				}
				if keep {
					refused = append(refused, took)
				}
				_ = harness.Wait(ctx, min(retry, time.Until(end)))
			}
			mu.Lock()
			defer mu.Unlock()
			l.admitted = append(l.admitted, admitted...)
			l.refused = append(l.refused, refused...)
			l.lost += lost
		})
	}
	wg.Wait()
	// The peak since the process began, the first rush included.
	peak, err := c.Peak()
	l.megabytes = peak / 1e6
	return l, errors.Join(err, ctx.Err())
}

// retryAfter returns when a refused push may be repeated.
func retryAfter(err error) (time.Duration, bool) {
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted {
		return 0, false
	}
	for _, d := range s.Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration(), true
		}
	}
	return 0, false
}
