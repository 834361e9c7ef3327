// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/undecoded"
)

func wantTook(t *testing.T, s *server, points, beats int, msg string) {
	t.Helper()
	gotPoints, gotBeats := s.next.took()
	assert.Equal(t, points, gotPoints, msg)
	assert.Equal(t, beats, gotBeats, "heartbeats: %s", msg)
}

func TestOnlyTheChangeArrives(t *testing.T) {
	s := startServer(t, nil, "one")
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, push(t, encode(t, report(name, 0, 1, 2, 3))))
			wantTook(t, s, 3, 1, "the first report")
			require.NoError(t, push(t, encode(t, report(name, 10*time.Second, 1, 2, 3))))
			wantTook(t, s, 0, 1, "nothing changed")
			require.NoError(t, push(t, encode(t, report(name, 20*time.Second, 1, 9, 3))))
			wantTook(t, s, 1, 1, "one value changed")
			assert.InDelta(t, 9, s.next.state[name+"/m/GPU-1"], 0)
		})
	}
	require.NoError(t, s.http(t, encode(t, report("grpc", 30*time.Second, 1, 9, 3))))
	wantTook(t, s, 0, 1, "both ways in share the table")
	assert.Equal(t, s.next.calls, s.next.resources, "nothing but the node's resource arrives")
}

func TestNothingIsCommittedThatWasRefused(t *testing.T) {
	s := startServer(t, nil, "one")
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, push(t, encode(t, report(name, 0, 1, 2))))
			wantTook(t, s, 2, 1, "the first report")
			s.next.answer(errors.New("try later"))
			for range 2 {
				require.Error(t, push(t, encode(t, report(name, time.Second, 1, 3))))
			}
			s.next.answer(nil)
			require.NoError(t, push(t, encode(t, report(name, time.Second, 1, 3))))
			wantTook(t, s, 1, 1, "the change, and not what had been accepted before")
			require.NoError(t, push(t, encode(t, report(name, 2*time.Second, 1, 3))))
			wantTook(t, s, 0, 1, "now it is known")
		})
	}
}

// kept is all that readers get of a table: its nodes with their times, and each series
// with its value, heartbeats too.
func kept(t *testing.T, table *statetable.Table) (nodes map[statetable.NodeKey]statetable.Node, text string) {
	t.Helper()
	nodes = map[statetable.NodeKey]statetable.Node{}
	latest := time.Duration(0)
	for n := range table.Nodes() {
		nodes[n.Key] = n
		latest = max(latest, n.Heard)
	}
	var out bytes.Buffer
	_, err := (&statetable.Exposition{Expiration: time.Hour}).Write(&out, statetable.TableAt{Table: table, Now: latest})
	require.NoError(t, err)
	require.Contains(t, out.String(), "gpu_node_heartbeat_seconds{")
	return nodes, out.String()
}

// Whoever auth turns away has no effect on the table, and leaves nothing behind.
func TestRefusedByAuth(t *testing.T) {
	s := startServer(t, func(s *statetable.Settings) { s.ResyncInterval, s.TTL = time.Nanosecond, time.Hour }, "one")
	values := make([]float64, 1000)
	known := encode(t, report("known", 0, values...))
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			s.doorman.lock(false)
			require.NoError(t, push(t, known))
			before := s.engine.Table.Stats()
			nodes, text := kept(t, s.engine.Table)
			s.doorman.lock(true)
			later := encode(t, report("known", time.Minute, append([]float64{1}, values[1:]...)...))
			for i := range 200 {
				require.Error(t, push(t, known))
				require.Error(t, push(t, later))
				require.Error(t, push(t, encode(t, report(fmt.Sprintf("stranger-%d", i), 0, values...))))
			}
			assert.Equal(t, before, s.engine.Table.Stats(), "neither nodes nor resyncs")
			nodesAfter, textAfter := kept(t, s.engine.Table)
			assert.Equal(t, nodes, nodesAfter, "when each was heard")
			assert.Equal(t, text, textAfter, "values and heartbeats")
		})
	}
}

func TestMalformedIsRefusedAsEver(t *testing.T) {
	plain, wired := startServer(t, nil), startServer(t, nil, "one")
	good := encode(t, report("n", 0, 1, 2))
	for name, msg := range map[string][]byte{
		"cut off":       good[:len(good)-1],
		"not a message": []byte("hello"),
		"group":         append([]byte{0x0b}, good...),
	} {
		for transport := range plain.pushers() {
			want, got := plain.pushers()[transport](t, msg), wired.pushers()[transport](t, msg)
			require.Error(t, want)
			require.Error(t, got)
			assert.Equal(t, want.Error(), got.Error(), "%s, %s", name, transport)
		}
	}
	assert.Zero(t, wired.engine.Table.Stats().Nodes)
	big := make([]byte, 2<<20)
	assert.Equal(t, plain.http(t, big), wired.http(t, big), "over the receiver's limit")
}

func TestEmptyPushIsAnswered(t *testing.T) {
	s := startServer(t, nil, "one")
	for _, push := range s.pushers() {
		require.NoError(t, push(t, nil))
		require.NoError(t, push(t, encode(t, report("n", 0))))
	}
	assert.Zero(t, s.next.calls)
	assert.Zero(t, s.engine.Table.Stats().Nodes)
}

func TestIrregularPushesShareTheTable(t *testing.T) {
	s := startServer(t, nil, "one")
	for name, push := range s.pushers() {
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 2))))
		wantTook(t, s, 2, 1, name)
		// An unknown field: the engine sees this one whole.
		require.NoError(t, push(t, append(encode(t, report(name, 0, 1, 3)), 0x78, 0x01)))
		wantTook(t, s, 1, 1, name)
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 3))))
		wantTook(t, s, 0, 1, name)
	}
}

// A push in JSON is judged behind the receiver, by the same table.
func TestJSONSharesTheTable(t *testing.T) {
	s := startServer(t, nil, "one")
	json := func(md pmetric.Metrics) {
		body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalJSON()
		require.NoError(t, err)
		status, text := s.post(t, "/v1/metrics", "application/json; charset=utf-8", body)
		require.Equal(t, http.StatusOK, status, text)
	}
	require.NoError(t, s.http(t, encode(t, report("n", 0, 1, 2))))
	wantTook(t, s, 2, 1, "protobuf")
	json(report("n", time.Second, 1, 7))
	wantTook(t, s, 1, 1, "the change")
	require.NoError(t, s.http(t, encode(t, report("n", 2*time.Second, 1, 7))))
	wantTook(t, s, 0, 1, "known")
	status, _ := s.post(t, "/v1/metrics", "application/json", []byte("{"))
	assert.Equal(t, http.StatusBadRequest, status)
}

func TestOtherRequestsPass(t *testing.T) {
	s := startServer(t, nil, "one")
	ld, td := plog.NewLogs(), ptrace.NewTraces()
	ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetStr("x")
	td.ResourceSpans().AppendEmpty().ScopeSpans().AppendEmpty().Spans().AppendEmpty().SetName("x")
	_, err := plogotlp.NewGRPCClient(s.conn).Export(t.Context(), plogotlp.NewExportRequestFromLogs(ld))
	require.NoError(t, err)
	_, err = ptraceotlp.NewGRPCClient(s.conn).Export(t.Context(), ptraceotlp.NewExportRequestFromTraces(td))
	require.NoError(t, err)
	body, err := plogotlp.NewExportRequestFromLogs(ld).MarshalProto()
	require.NoError(t, err)
	status, _ := s.post(t, "/v1/logs", contentProtobuf, body)
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, 3, s.next.other)

	status, _ = s.post(t, "/v1/metrics", "text/plain", nil)
	assert.Equal(t, http.StatusUnsupportedMediaType, status)
	status, _ = s.post(t, "/elsewhere", contentProtobuf, nil)
	assert.Equal(t, http.StatusNotFound, status)
}

func TestTwoInOneReceiver(t *testing.T) {
	s := startServer(t, nil, "one", "two")
	var now atomic.Int64
	s.engine.Now = func() time.Time { return s.engine.Epoch.Add(time.Duration(now.Load())) }
	for name, push := range s.pushers() {
		for i := range 3 {
			now.Add(int64(time.Second))
			require.NoError(t, push(t, encode(t, report(name, time.Duration(i)*time.Second, 1, 2, float64(i)))))
		}
		wantTook(t, s, 5, 3, name)
	}
}

// A message in several buffers, as gRPC has those above 32 KiB, is one in the end.
func TestMessagesOfAnySize(t *testing.T) {
	s := startServer(t, nil, "one")
	for name, push := range s.pushers() {
		for _, values := range []int{1, 400, 2000} {
			node := fmt.Sprintf("%s-%d", name, values)
			msg := encode(t, report(node, 0, make([]float64, values)...))
			require.NoError(t, push(t, msg))
			wantTook(t, s, values, 1, "new")
			require.NoError(t, push(t, msg))
			wantTook(t, s, 0, 1, "known")
		}
	}
}

func TestPanicOfTheReceiverLeavesNothingBehind(t *testing.T) {
	engine := testEngine(new(hop), nil)
	e := newAttached(t, extensiontest.NewNopSettings(metadata.Type), engine)
	msg := encode(t, report("n", 0, 1))
	wrap, err := e.GetHTTPHandler(t.Context())
	require.NoError(t, err)
	broken, err := wrap(t.Context(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") }))
	require.NoError(t, err)
	post := httptest.NewRequestWithContext(t.Context(), http.MethodPost, metricsPath, bytes.NewReader(msg))
	post.Header.Set("Content-Type", contentProtobuf)
	require.Panics(t, func() { broken.ServeHTTP(httptest.NewRecorder(), post) })
	ctx, req, codec := received(t.Context(), t, msg)
	require.Panics(t, func() {
		_, _ = e.intercept(ctx, req, export, func(context.Context, any) (any, error) { panic("broken") }, codec)
	})
	assert.Zero(t, engine.Table.Stats().Nodes)
}

// received is what the interceptor gets once the codec has run.
func received(ctx context.Context, t testing.TB, msg []byte) (context.Context, any, *undecoded.Codec) {
	t.Helper()
	codec, err := undecoded.NewCodec()
	require.NoError(t, err)
	ctx = codec.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: metricsMethod})
	orig, ok := reflect.TypeFor[pmetricotlp.ExportRequest]().FieldByName("orig")
	require.True(t, ok)
	req := reflect.New(orig.Type.Elem()).Interface()
	require.NoError(t, codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(msg)}, req))
	codec.HandleRPC(ctx, &stats.InPayload{Payload: req})
	require.NotNil(t, codec.Owned(ctx))
	return ctx, req, codec
}

// export is what gRPC tells of a push.
var export = &grpc.UnaryServerInfo{FullMethod: metricsMethod}

// Two senders for each of many nodes, over both transports and a pipeline that
// refuses now and then: after one more accepted push of each, it has all.
func TestConcurrentPushes(t *testing.T) {
	const nodes, reports, gpus = 6, 40, 8
	s := startServer(t, func(s *statetable.Settings) { s.ResyncInterval = time.Millisecond }, "one")
	want := map[string]float64{}
	var wg, flaky sync.WaitGroup
	done := make(chan struct{})
	flaky.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				s.next.answer(nil)
				return
			default:
				if i%3 == 0 {
					s.next.answer(errors.New("flaky"))
				} else {
					s.next.answer(nil)
				}
				runtime.Gosched()
			}
		}
	})
	for n := range nodes {
		node := fmt.Sprintf("n%d", n)
		for sender, push := range s.pushers() {
			wg.Go(func() {
				for i := range reports {
					values := make([]float64, gpus)
					for g := range values {
						values[g] = float64((i*7 + g*len(sender) + n) % 3)
					}
					_ = push(t, encode(t, report(node, time.Duration(i)*time.Second, values...)))
				}
			})
		}
	}
	wg.Wait()
	close(done)
	flaky.Wait()
	for n := range nodes {
		last := report(fmt.Sprintf("n%d", n), time.Hour, 0, 1, 2, 0, 1, 2, 0, 1)
		maps.Copy(want, flatten(last))
		require.NoError(t, s.grpc(t, encode(t, last)))
	}
	assert.Equal(t, want, s.next.state)
}

// A push that is refused in the pipeline, as by client_identity, changes nothing of the
// nodes that it names: neither values, nor times, nor that they were heard of. A push
// without news is refused, too.
func TestARefusedPushIsNotHeardOf(t *testing.T) {
	s := startServer(t, func(s *statetable.Settings) { s.ResyncInterval = 0 }, "one")
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			s.engine.Now = func() time.Time { return s.engine.Epoch.Add(time.Duration(now.Load())) }
			other := report("other-"+name, 0, 8)
			victim := func(at time.Duration, up float64) pmetric.Metrics { return report(name, at, up, 5) }
			both := func(at time.Duration, up float64) []byte {
				md := pmetric.NewMetrics()
				other.ResourceMetrics().At(0).CopyTo(md.ResourceMetrics().AppendEmpty())
				victim(at, up).ResourceMetrics().At(0).CopyTo(md.ResourceMetrics().AppendEmpty())
				return encode(t, md)
			}
			heard := func() (at time.Duration) {
				for n := range s.engine.Table.Nodes() {
					if names := statetable.Identify(n.Attrs); names.Node() == name {
						at = n.Heard
					}
				}
				return at
			}
			require.NoError(t, push(t, encode(t, victim(0, 1))))
			require.NoError(t, push(t, encode(t, other)))
			before := heard()
			s.next.took()

			now.Store(int64(30 * time.Second))
			s.guard = func(ctx context.Context, md pmetric.Metrics) (context.Context, error) {
				for _, rm := range md.ResourceMetrics().All() {
					if host, _ := rm.Resource().Attributes().Get("host.name"); host.Str() == name {
						return ctx, status.Error(codes.PermissionDenied, "not yours")
					}
				}
				return ctx, nil
			}
			// As it is, with a change, and far ahead of what the node itself says next.
			for _, msg := range [][]byte{encode(t, victim(0, 1)), both(20*time.Second, 1), both(50*time.Second, 0)} {
				for range 3 {
					require.Error(t, push(t, msg))
				}
			}
			wantTook(t, s, 0, 0, "refused")
			assert.Equal(t, before, heard())
			s.guard = nil
			require.NoError(t, push(t, encode(t, victim(10*time.Second, 0))))
			wantTook(t, s, 1, 1, "the node itself says that its GPU is not up, by its own clock")
			assert.Equal(t, 30*time.Second, heard())
		})
	}
}

// A push with nothing new and no heartbeat to send is shown to the pipeline all the
// same, and nothing of that comes to the next hop.
func TestAPushWithNothingNewIsShownToThePipeline(t *testing.T) {
	s := startServer(t, func(s *statetable.Settings) { s.HeartbeatInterval = time.Hour }, "one")
	asked := 0
	s.guard = func(ctx context.Context, md pmetric.Metrics) (context.Context, error) {
		asked += md.ResourceMetrics().Len()
		return ctx, nil
	}
	for name, push := range s.pushers() {
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 2))))
		wantTook(t, s, 2, 1, name)
		asked = 0
		for i := range 3 {
			require.NoError(t, push(t, encode(t, report(name, time.Duration(i)*time.Second, 1, 2))))
		}
		wantTook(t, s, 0, 0, name)
		assert.Equal(t, 3, asked)
	}
}

// detached has no value of its parent: so is the context behind a queue.
type detached struct{ context.Context }

func (detached) Value(any) any { return nil }

// A push that comes to the engine in another call, or changed, is judged there, and nothing is
// lost. The operator reads once how to put that right.
func TestUnclaimedPushes(t *testing.T) {
	edited := func(ctx context.Context, md pmetric.Metrics) context.Context {
		md.ResourceMetrics().At(0).Resource().Attributes().PutStr("site", "a")
		return ctx
	}
	dropped := func(ctx context.Context, md pmetric.Metrics) context.Context {
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().RemoveIf(func(dp pmetric.NumberDataPoint) bool {
			gpu, _ := dp.Attributes().Get("hw.id")
			return gpu.Str() == "GPU-0"
		})
		return ctx
	}
	for name, guard := range map[string]func(context.Context, pmetric.Metrics) context.Context{
		"another call": func(ctx context.Context, _ pmetric.Metrics) context.Context { return detached{ctx} },
		"edited":       edited, "dropped": dropped,
	} {
		t.Run(name, func(t *testing.T) {
			tel := componenttest.NewTelemetry()
			defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
			core, logs := observer.New(zap.WarnLevel)
			set := extensiontest.NewNopSettings(metadata.Type)
			set.TelemetrySettings = tel.NewTelemetrySettings()
			set.Logger = zap.New(core)
			next := &hop{state: map[string]float64{}}
			engine := testEngine(next, nil)
			e := newAttached(t, set, engine)
			push := func(i int, values ...float64) {
				ctx, req, codec := received(t.Context(), t, encode(t, report("n", time.Duration(i)*time.Second, values...)))
				_, err := e.intercept(ctx, req, export, func(ctx context.Context, req any) (any, error) {
					msg, err := encoding.GetCodecV2("proto").Marshal(req)
					require.NoError(t, err)
					md := decoded(t, msg.Materialize())
					ctx = guard(ctx, md)
					return req, engine.Consume(ctx, md)
				}, codec)
				require.NoError(t, err)
			}
			push(0, 1, 2, 3)
			push(1, 1, 9, 3)
			push(2, 1, 9, 4)
			want := map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 9, "n/m/GPU-2": 4}
			if name == "dropped" {
				delete(want, "n/m/GPU-0")
			}
			assert.Equal(t, want, next.state)
			require.Equal(t, 1, logs.Len())
			assert.Contains(t, logs.All()[0].Message, "remove the batch processor")
			metadatatest.AssertEqualExtensionWireDiffUnclaimedPushes(t, tel, []metricdata.DataPoint[int64]{{Value: 3}}, metricdatatest.IgnoreTimestamp())
		})
	}
}

// A report that finds no room behind the receiver comes again with the node's next push, and
// only that node's.
func TestWhatIsNotKeptComesAgain(t *testing.T) {
	s := startServer(t, nil, "one")
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			md := report(name, 0, 1, 2)
			report("full-"+name, 0, 1, 2).ResourceMetrics().MoveAndAppendTo(md.ResourceMetrics())
			msg := encode(t, md)
			s.next.missed = delta.Missed{}
			for n := range s.engine.Table.Nodes() {
				s.next.missed[n.Key] = struct{}{}
			}
			require.NoError(t, push(t, msg))
			wantTook(t, s, 4, 2, "new")
			for n := range s.engine.Table.Nodes() {
				if names := statetable.Identify(n.Attrs); names.Node() == "full-"+name {
					s.next.missed[n.Key] = struct{}{}
				}
			}
			md.ResourceMetrics().At(1).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetDoubleValue(7)
			md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetDoubleValue(7)
			msg = encode(t, md)
			require.NoError(t, push(t, msg))
			wantTook(t, s, 2, 2, "changes, one of which found no room")
			s.next.missed = nil
			require.NoError(t, push(t, msg))
			wantTook(t, s, 1, 2, "that one")
			require.NoError(t, push(t, msg))
			wantTook(t, s, 0, 2, "no more")
		})
	}
}

// A second engine is refused, and without any pushes pass as they are.
func TestAttach(t *testing.T) {
	e, err := newExtension(extensiontest.NewNopSettings(metadata.Type))
	require.NoError(t, err)
	msg := encode(t, report("n", 0, 1))
	_, _, passed := e.judge(t.Context(), msg, new([]byte))
	assert.Equal(t, msg, passed)
	first, second := testEngine(new(hop), nil), testEngine(new(hop), nil)
	detach, err := e.Attach("diff/first", first)
	require.NoError(t, err)
	_, err = e.Attach("diff/second", second)
	require.ErrorContains(t, err, "`diff/first`")
	require.ErrorContains(t, err, "`diff/second`")
	detach()
	detach, err = e.Attach("diff/second", second)
	require.NoError(t, err)
	detach()
	require.NoError(t, e.Shutdown(t.Context()))
}

func TestTelemetry(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	set := extensiontest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	engine := testEngine(&hop{state: map[string]float64{}}, nil)
	e := newAttached(t, set, engine)
	good := encode(t, report("a", 0, 1, 2))
	for _, msg := range [][]byte{good, good, append(slices.Clone(good), 0x78, 0x01), []byte("malformed")} {
		p, ctx, _ := e.judge(t.Context(), msg, new([]byte))
		p.end(ctx, false)
	}
	read := func(how string, v int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Value: v, Attributes: attribute.NewSet(attribute.String("read", how))}
	}
	metadatatest.AssertEqualExtensionWireDiffPushes(t, tel, []metricdata.DataPoint[int64]{read("bytes", 2), read("whole", 2)}, metricdatatest.IgnoreTimestamp())
}
