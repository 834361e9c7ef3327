// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/extension/thresholdextension"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/platform/admission"
	"github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadatatest"
)

// user is an authenticated client.
type user string

func (u user) GetAttribute(name string) any {
	if name == "username" {
		return string(u)
	}
	return nil
}
func (user) GetAttributeNames() []string { return []string{"username"} }

func withUser(ctx context.Context, name string) context.Context {
	return client.NewContext(ctx, client.Info{Auth: user(name)})
}

var doormanID = component.MustNewID("doorman")

// guarded are the settings of a receiver with an authenticator.
func guarded(more settings) settings {
	auth := settings{"auth": settings{"authenticator": "doorman"}}
	s := settings{"protocols": settings{"grpc": auth, "http": auth}}
	maps.Copy(s, more)
	return s
}

const metricsMethod = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"

// halfPost begins a push whose body does not end. It returns how the answer begins.
func (s *server) halfPost(t *testing.T, path string) (answer func() string) {
	t.Helper()
	conn, err := net.Dial("tcp", s.http)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/x-protobuf\r\nContent-Length: 100\r\n\r\nx", path)
	require.NoError(t, err)
	return func() string {
		head := make([]byte, len("HTTP/1.1 429"))
		_, err = io.ReadFull(conn, head)
		require.NoError(t, err)
		return string(head)
	}
}

// TestWaitsAreDrawn in whole seconds over the range: HTTP's Retry-After has no fractions, and
// a client takes 0 for no advice at all.
func TestWaitsAreDrawn(t *testing.T) {
	s := fleet(t, nil)
	seen := map[time.Duration]bool{}
	for range 1000 {
		details := s.status(t.Context(), &admission.RefusedError{Reason: "permits"}).Details()
		seen[details[0].(*errdetails.RetryInfo).GetRetryDelay().AsDuration()] = true
	}
	assert.Equal(t, map[time.Duration]bool{1e9: true, 2e9: true, 3e9: true, 4e9: true, 5e9: true}, seen)
}

// TestARefusedPushIsRefusedBeforeItsBody, over both transports and at any path: gRPC waits
// for no message, and net/http reads what comes of a body within the timeout.
func TestARefusedPushIsRefusedBeforeItsBody(t *testing.T) {
	s := start(t, NewFactory(), &pipeline{}, nil, settings{
		"admission": settings{"max_concurrent": 1, "cluster_share": 1, "receive_timeout": "1s"},
		"protocols": settings{"http": settings{"metrics_url_path": "push"}},
	})
	permit, err := s.limiter.Acquire("")
	require.NoError(t, err)
	stream, err := s.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, metricsMethod)
	require.NoError(t, err)
	var answer []byte
	err = stream.RecvMsg(&answer)
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	assert.NotEmpty(t, status.Convert(err).Details(), "RetryInfo")
	assert.Equal(t, "HTTP/1.1 429", s.halfPost(t, "/push")())
	of := func(n int64, more ...attribute.KeyValue) []metricdata.DataPoint[int64] {
		return []metricdata.DataPoint[int64]{{Value: n, Attributes: attribute.NewSet(append(more, attribute.String("receiver", s.set.ID.String()))...)}}
	}
	metadatatest.AssertEqualReceiverFleetOtlpRefusals(t, s.tel, of(2, attribute.String("cluster", ""), attribute.String("reason", "permits")),
		metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
	metadatatest.AssertEqualReceiverFleetOtlpPermitsInUse(t, s.tel, of(1), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualReceiverFleetOtlpPermitsLimit(t, s.tel, of(1), metricdatatest.IgnoreTimestamp())
	permit.Release()
	resp, _ := s.post(t, "/push", encode(t, report("n", 0, 1)), nil)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
}

// TestAPageOfAnotherName pushes nothing: its name leads here, and its browser sends Origin.
func TestAPageOfAnotherName(t *testing.T) {
	s := fleet(t, nil)
	msg := encode(t, report("n", 0, 1))
	for origin, want := range map[string]int{"": http.StatusOK, "http://page.example.com": http.StatusMisdirectedRequest} {
		resp, _ := s.post(t, "/v1/metrics", msg, map[string]string{"Host": "page.example.com", "Origin": origin})
		assert.Equal(t, want, resp.StatusCode, origin)
	}
}

// TestAMessageThatDoesNotCome holds no permit for longer than the timeout, and its sender
// may repeat it. Another push goes on over the same connection.
func TestAMessageThatDoesNotCome(t *testing.T) {
	s := fleet(t, settings{"admission": settings{"receive_timeout": "1s"}})
	stream, err := s.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, metricsMethod)
	require.NoError(t, err)
	eventually(t, func() bool { _, n := s.limiter.InUse(); return n == 2<<20 }, "room for the largest message")
	answered := s.halfPost(t, "/v1/metrics")
	require.NoError(t, s.pushers()["grpc"](t, encode(t, report("n", 0, 1))))
	var answer []byte
	err = stream.RecvMsg(&answer)
	assert.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "not there within `receive_timeout` of the receiver, 1s")
	assert.Equal(t, "HTTP/1.1 503", answered())
	eventually(t, func() bool { n, _ := s.limiter.InUse(); return n == 0 }, "the permits are back")
	metadatatest.AssertEqualReceiverFleetOtlpReceiveTimeouts(t, s.tel, []metricdata.DataPoint[int64]{{Value: 2}}, metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
}

// TestAnAuthenticatorThatTakesLong holds no other client up on the connection: neither a push
// that comes, nor the answer to one that is done. Too many unknown clients are refused.
func TestAnAuthenticatorThatTakesLong(t *testing.T) {
	d := &doorman{wait: make(chan struct{})}
	next := &pipeline{}
	s := start(t, NewFactory(), next, host{doormanID: d}, guarded(settings{"admission": settings{"max_concurrent": 80}}))
	msg := encode(t, report("n", 0, 1))
	inside, goOn := make(chan struct{}), make(chan struct{})
	next.handle = func(context.Context) error { close(inside); <-goOn; return nil }
	done := make(chan error)
	go func() {
		_, err := s.call(t.Context(), metricsMethod, msg, "authorization", "n1")
		done <- err
	}()
	<-inside
	var slow sync.WaitGroup
	defer slow.Wait()
	release := sync.OnceFunc(func() { close(d.wait) })
	defer release() // also when the test fails
	slow.Go(func() {
		_, err := s.call(t.Context(), metricsMethod, msg, "authorization", "slow")
		assert.Equal(t, codes.Unauthenticated, status.Code(err))
	})
	slow.Go(func() {
		resp, _ := s.post(t, "/v1/metrics", msg, map[string]string{"Authorization": "slow"})
		assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
	})
	eventually(t, func() bool { d.mu.Lock(); defer d.mu.Unlock(); return d.asked == 3 }, "it is asked")
	close(goOn)
	require.NoError(t, <-done, "the answer")
	next.handle = nil
	_, err := s.call(t.Context(), metricsMethod, msg, "authorization", "n1")
	require.NoError(t, err)

	// Four at once by 80 permits, of which an address has half: one waits, a second may.
	for transport, push := range s.pushers("authorization", "slow") {
		slow.Go(func() { _ = push(t, msg) })
		want := map[string]string{"grpc": "code = ResourceExhausted desc = too many clients are being authenticated", "http": "429: "}[transport]
		eventually(t, func() bool {
			err := s.pushers("authorization", "n1")[transport](t, msg)
			return err != nil && strings.Contains(err.Error(), want)
		}, transport)
	}
}

// TestClientsPushForTheirOwnNodes: a push is its client's own, of any signal, or goes nowhere.
func TestClientsPushForTheirOwnNodes(t *testing.T) {
	identity := settings{"cluster_auth_attribute": "username", "node_auth_attribute": "username"}
	for _, foreign := range []string{foreignRefuse, foreignOverwrite} {
		identity["foreign"] = foreign
		next := &pipeline{}
		s := start(t, NewFactory(), next, host{doormanID: &doorman{}}, guarded(settings{"identity": identity}))
		for path, msg := range messages(t) {
			pb, err := msg.MarshalProto()
			require.NoError(t, err)
			_, err = s.call(t.Context(), signals[path], pb, "authorization", "lab/n")
			require.NoError(t, err, path)
			_, err = s.call(t.Context(), signals[path], pb, "authorization", "nameless")
			assert.Equal(t, codes.PermissionDenied, status.Code(err))
			require.ErrorContains(t, err, clientidentity.ErrNoNode.Error())
			if path != "/v1/metrics" {
				continue
			}
			_, err = s.call(t.Context(), signals[path], pb, "authorization", "lab/m")
			if foreign == foreignOverwrite {
				require.NoError(t, err)
			} else {
				assert.Equal(t, codes.PermissionDenied, status.Code(err))
				require.ErrorContains(t, err, "`host.name` is \"n\", which is not the client's own: must be \"m\"")
			}
		}
		last := next.metrics[len(next.metrics)-1].ResourceMetrics().At(0).Resource().Attributes().AsRaw()
		assert.Equal(t, map[string]any{"k8s.cluster.name": "lab", "host.name": map[string]string{foreignRefuse: "n", foreignOverwrite: "m"}[foreign]}, last)
	}
}

// TestTheCallerOfAPush is known to the pipeline: by its credentials, or by its claim.
func TestTheCallerOfAPush(t *testing.T) {
	next := &pipeline{}
	var caller pushheaders.Caller
	next.handle = func(ctx context.Context) error { caller = pushheaders.CallerFromContext(ctx); return nil }
	s := start(t, NewFactory(), next, nil, nil)
	for _, push := range s.pushers("gpu-cluster", "lab") {
		require.NoError(t, push(t, encode(t, report("n", 0, 1))))
		assert.Equal(t, pushheaders.Caller{Cluster: "lab"}, caller)
	}
	known := start(t, NewFactory(), next, host{doormanID: &doorman{}}, guarded(settings{
		"identity": settings{"cluster_auth_attribute": "username"}, "admission": settings{"max_concurrent": 1, "cluster_share": 1},
	}))
	for _, push := range known.pushers("gpu-cluster", "victim", "authorization", "lab") {
		require.NoError(t, push(t, encode(t, report("n", 0, 1))))
		assert.Equal(t, pushheaders.Caller{Cluster: "lab", Authenticated: true}, caller)
	}
	_, err := known.limiter.Acquire("other")
	require.NoError(t, err)
	_, err = known.call(t.Context(), metricsMethod, nil, "gpu-cluster", "victim", "authorization", "lab")
	require.Error(t, err)
	metadatatest.AssertEqualReceiverFleetOtlpRefusals(t, known.tel, []metricdata.DataPoint[int64]{{Value: 1, Attributes: attribute.NewSet(
		attribute.String("cluster", "lab"), attribute.String("reason", "permits"), known.id,
	)}}, metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
}

// TestAPushHoldsWhatItTakes: its message, decoded, and over HTTP the body as it comes.
func TestAPushHoldsWhatItTakes(t *testing.T) {
	s := fleet(t, nil)
	var held int64
	s.next.handle = func(context.Context) error { _, held = s.limiter.InUse(); return nil }
	msg := encode(t, report("n", 0, 1))
	size, err := admission.Decoded(admission.Metrics, msg, false)
	require.NoError(t, err)
	want := map[string]int{"grpc": len(msg) + size, "http": 3*len(msg) + size}
	for transport, push := range s.pushers() {
		require.NoError(t, push(t, msg))
		assert.EqualValues(t, want[transport], held, transport)
	}
}

// TestAPanicOfThePipelineLeavesNothingBehind but its report.
func TestAPanicOfThePipeline(t *testing.T) {
	next := &pipeline{handle: func(context.Context) error { panic(http.ErrAbortHandler) }}
	s := start(t, NewFactory(), next, nil, nil)
	msg := bytes.NewReader(encode(t, report("n", 0, 1)))
	_, err := http.Post("http://"+s.http+"/v1/metrics", contentProtobuf, msg) //nolint:bodyclose // there is no answer
	require.Error(t, err)
	eventually(t, func() bool { n, _ := s.limiter.InUse(); return n == 0 }, "the permit is back")
}

// TestShutdownEndsACallThatDoesNot: gRPC's GracefulStop alone would wait for it.
func TestShutdownEndsACallThatDoesNot(t *testing.T) {
	inside := make(chan struct{})
	next := &pipeline{handle: func(ctx context.Context) error { close(inside); <-ctx.Done(); return ctx.Err() }}
	s := start(t, NewFactory(), next, nil, settings{"admission": settings{"receive_timeout": "1s"}})
	done, msg := make(chan error), encode(t, report("n", 0, 1))
	go func() {
		_, err := s.call(t.Context(), metricsMethod, msg)
		done <- err
	}()
	<-inside
	require.NoError(t, s.shutdown(context.WithoutCancel(t.Context())))
	require.Error(t, <-done)
}

// TestAnswers: a push of metrics has the headers of straggler_threshold, also one that is
// refused. Its API is on the HTTP port.
func TestAnswers(t *testing.T) {
	f := thresholdextension.NewFactory()
	answers, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), f.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, answers.Start(t.Context(), host{}))
	t.Cleanup(func() { require.NoError(t, answers.Shutdown(context.WithoutCancel(t.Context()))) })
	wide, err := threshold.NewEntry(threshold.Value{Version: 1, Threshold: 0.9, QuorumMet: true, Median: 1, K: 2, Nodes: 8, TTL: time.Hour})
	require.NoError(t, err)
	answers.(threshold.Publisher).Publish(&threshold.Snapshot{At: time.Now(), TTL: time.Hour, Clusters: map[string]*threshold.Cluster{"lab": {Wide: wide}}})

	s := start(t, NewFactory(), &pipeline{}, host{component.MustNewID("straggler_threshold"): answers}, settings{"threshold_extension": "straggler_threshold"})
	for _, refusal := range []error{nil, errors.New("away")} {
		s.next.err = refusal
		for path, msg := range messages(t) {
			pb, err := msg.MarshalProto()
			require.NoError(t, err)
			md, _ := s.call(t.Context(), signals[path], pb, "gpu-cluster", "lab")
			resp, _ := s.post(t, path, pb, map[string]string{"gpu-cluster": "lab"})
			for transport, header := range map[string]http.Header{"grpc": http.Header(md), "http": resp.Header} {
				got := map[string][]string{}
				for name, values := range header {
					got[strings.ToLower(name)] = values
				}
				if path == "/v1/metrics" {
					assert.Equal(t, []string{"0.9"}, got["gpu-straggler-threshold"], transport)
					assert.NotEmpty(t, got["gpu-state-epoch"], transport)
				} else {
					assert.Empty(t, got["gpu-state-epoch"], "%s, %s", transport, path)
				}
			}
		}
	}
	resp, body := s.ask(t, http.MethodGet, "/api/v1/threshold?cluster=lab", nil, nil)
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Contains(t, string(body), "0.9")
}
