// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/extension/wirediffextension/internal/metadatatest"
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

// Whoever auth turns away has no effect on the table, and leaves nothing behind.
func TestRefusedByAuth(t *testing.T) {
	s := startServer(t, func(c *Config) { c.ResyncInterval, c.TTL = time.Nanosecond, time.Hour }, "one")
	values := make([]float64, 1000)
	known := encode(t, report("known", 0, values...))
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			s.doorman.lock(false)
			require.NoError(t, push(t, known))
			before := s.ext.table.Stats()
			s.doorman.lock(true)
			var start, end runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&start)
			for i := range 200 {
				require.Error(t, push(t, known))
				require.Error(t, push(t, encode(t, report(fmt.Sprintf("stranger-%d", i), 0, values...))))
			}
			runtime.GC()
			runtime.GC() // twice: a sync.Pool keeps its victims for one cycle
			runtime.ReadMemStats(&end)
			assert.Equal(t, before, s.ext.table.Stats(), "neither nodes nor resyncs")
			assert.Less(t, int64(end.HeapAlloc)-int64(start.HeapAlloc), int64(4<<20), "of 20 MB pushed")
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
	assert.Zero(t, wired.ext.table.Stats().Nodes)
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
	assert.Zero(t, s.ext.table.Stats().Nodes)
}

func TestIrregularPushesShareTheTable(t *testing.T) {
	s := startServer(t, nil, "one")
	for name, push := range s.pushers() {
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 2))))
		wantTook(t, s, 2, 1, name)
		// An unknown field: this one is decoded first.
		require.NoError(t, push(t, append(encode(t, report(name, 0, 1, 3)), 0x78, 0x01)))
		wantTook(t, s, 1, 1, name)
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 3))))
		wantTook(t, s, 0, 1, name)
	}
}

// JSON passes, and is not forgotten over the pushes that do not.
func TestJSONPasses(t *testing.T) {
	s := startServer(t, nil, "one")
	json := func(md pmetric.Metrics) {
		body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalJSON()
		require.NoError(t, err)
		status, text := s.post(t, "/v1/metrics", "application/json; charset=utf-8", body)
		require.Equal(t, http.StatusOK, status, text)
	}
	require.NoError(t, s.http(t, encode(t, report("n", 0, 1, 2))))
	wantTook(t, s, 2, 1, "protobuf")
	for range 2 {
		json(report("n", time.Second, 1, 7))
		wantTook(t, s, 2, 0, "JSON, as it is")
	}
	require.NoError(t, s.http(t, encode(t, report("n", 2*time.Second, 1, 2))))
	assert.Equal(t, map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 2}, s.next.state)
	s.next.took()
	json(report("n", time.Second, 1, 5))
	wantTook(t, s, 2, 0, "older JSON, which the pipeline takes for the latest")
	require.NoError(t, s.http(t, encode(t, report("n", 3*time.Second, 1, 2))))
	assert.Equal(t, map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 2}, s.next.state)
	status, _ := s.post(t, "/v1/metrics", contentJSON, []byte("{"))
	assert.Equal(t, http.StatusBadRequest, status)
}

// A time to come is no more believed in JSON than in protobuf: what the next hop
// would take for the newest until then hides all that comes before.
func TestJSONWithATimeToCome(t *testing.T) {
	s := startServer(t, nil, "one")
	ahead := report("n", time.Since(time.Unix(1_700_000_000, 0))+time.Hour, 1, 2)
	body, err := pmetricotlp.NewExportRequestFromMetrics(ahead).MarshalJSON()
	require.NoError(t, err)
	status, text := s.post(t, "/v1/metrics", contentJSON, body)
	require.Equal(t, http.StatusOK, status, text)
	wantTook(t, s, 2, 0, "JSON")
	assert.WithinDuration(t, time.Now(), s.next.latest, 10*time.Second)
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
	for name, push := range s.pushers() {
		for i := range 3 {
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

// FuzzJSON has bodies in JSON: what can be read goes on with all its points and
// no time to come, what cannot goes on as it came, for the receiver to refuse.
func FuzzJSON(f *testing.F) {
	body, err := pmetricotlp.NewExportRequestFromMetrics(report("n", 0, 1, 2)).MarshalJSON()
	require.NoError(f, err)
	f.Add(body)
	f.Add(body[:len(body)/2])
	// Numbers as text and bare, both cases of names, unknown fields, no value.
	const points = `{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"n"}}]},"scopeMetrics":[{"metrics":[%s]}]}]}`
	for _, metric := range []string{
		`{"name":"m","gauge":{"dataPoints":[{"timeUnixNano":"9000000000000000000","asInt":"7"},{"timeUnixNano":1,"asDouble":"NaN"}]}}`,
		`{"name":"m","sum":{"aggregationTemporality":2,"isMonotonic":true,"data_points":[{"time_unix_nano":"9000000000000000000","flags":1}]},"new":{}}`,
		`{"name":"m","histogram":{"dataPoints":[{"timeUnixNano":"9000000000000000000","count":"1","bucketCounts":["1"]}]}},{"name":"e","gauge":{}}`,
	} {
		f.Add(fmt.Appendf(nil, points, metric))
	}
	e := newUnstarted(f)
	f.Fuzz(func(t *testing.T, msg []byte) {
		pass := func(msg []byte) ([]byte, pmetricotlp.ExportRequest, bool) {
			p := e.begin()
			defer p.end(t.Context(), false)
			out := append([]byte{}, p.observe(t.Context(), msg)...)
			req := pmetricotlp.NewExportRequest()
			return out, req, req.UnmarshalJSON(out) == nil
		}
		before := pmetricotlp.NewExportRequest()
		valid := before.UnmarshalJSON(msg) == nil
		out, after, readable := pass(append([]byte{}, msg...))
		require.Equal(t, valid, readable)
		if !valid {
			require.Equal(t, msg, out)
			return
		}
		require.Equal(t, before.Metrics().DataPointCount(), after.Metrics().DataPointCount())
		for _, rm := range after.Metrics().ResourceMetrics().All() {
			for _, sm := range rm.ScopeMetrics().All() {
				for _, m := range sm.Metrics().All() {
					if m.Type() == pmetric.MetricTypeGauge {
						for _, dp := range m.Gauge().DataPoints().All() {
							require.LessOrEqual(t, uint64(dp.Timestamp()), uint64(time.Now().Add(time.Hour).UnixNano()))
						}
					}
				}
			}
		}
		again, _, _ := pass(append([]byte{}, out...))
		require.Equal(t, out, again, "what is corrected needs it no more")
	})
}

// newUnstarted returns an extension without a receiver.
func newUnstarted(t testing.TB) *wireDiff {
	t.Helper()
	e, err := newExtension(createDefaultConfig().(*Config), extensiontest.NewNopSettings(metadata.Type))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.Background())) })
	return e
}

func TestPanicOfTheReceiverLeavesNothingBehind(t *testing.T) {
	e := newUnstarted(t)
	msg := encode(t, report("n", 0, 1))
	broken := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })
	p := e.begin()
	require.Panics(t, func() {
		defer p.end(t.Context(), false)
		p.shrink(t.Context(), msg)
		broken.ServeHTTP(nil, nil)
	})
	ctx, req := received(t.Context(), t, msg)
	require.Panics(t, func() {
		_, _ = e.intercept(ctx, req, nil, func(context.Context, any) (any, error) { panic("broken") })
	})
	e.table.Sweep(time.Hour)
	assert.Zero(t, e.table.Stats().Nodes)
}

// received is what the interceptor gets once the codec has run.
func received(ctx context.Context, t testing.TB, msg []byte) (context.Context, any) {
	t.Helper()
	a := &aside{data: make(map[message]mem.BufferSlice)}
	ctx = follower{a}.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: metricsMethod})
	req := reflect.New(metricsType.Elem()).Interface()
	require.NoError(t, codec{encoding.GetCodecV2("proto"), a}.Unmarshal(mem.BufferSlice{mem.SliceBuffer(msg)}, req))
	follower{a}.HandleRPC(ctx, &stats.InPayload{Payload: req})
	require.Empty(t, a.data)
	return ctx, req
}

// What no interceptor has taken goes back at the call's end.
func TestARefusedCallGivesItsBytesBack(t *testing.T) {
	a := &aside{data: make(map[message]mem.BufferSlice)}
	f, pool := follower{a}, &countingPool{}
	for _, method := range []string{metricsMethod, "/another/Method"} {
		ctx := f.TagRPC(t.Context(), &stats.RPCTagInfo{FullMethodName: method})
		buf := make([]byte, 4096)
		data := mem.BufferSlice{mem.NewBuffer(&buf, pool)}
		req := reflect.New(metricsType.Elem()).Interface()
		require.NoError(t, codec{encoding.GetCodecV2("proto"), a}.Unmarshal(data, req))
		data.Free() // gRPC's own
		assert.Equal(t, pool.got, pool.put, "kept for the interceptor")
		pool.got++
		f.HandleRPC(ctx, &stats.InPayload{Payload: req})
		f.HandleRPC(ctx, &stats.End{})
		assert.Equal(t, pool.got, pool.put, method)
		assert.Empty(t, a.data)
	}
}

// countingPool counts what comes back; got is the test's.
type countingPool struct{ got, put int }

func (*countingPool) Get(n int) *[]byte { b := make([]byte, n); return &b }

func (p *countingPool) Put(*[]byte) { p.put++ }

func TestHandlerErrorIsPassedOn(t *testing.T) {
	e := newUnstarted(t)
	want := status.Error(codes.ResourceExhausted, "later")
	ctx, req := received(t.Context(), t, encode(t, report("n", 0, 1)))
	_, err := e.intercept(ctx, req, nil,
		func(context.Context, any) (any, error) { return nil, want })
	require.ErrorIs(t, err, want)
	resp, err := e.intercept(t.Context(), "another type", nil,
		func(_ context.Context, req any) (any, error) { return req, nil })
	require.NoError(t, err)
	assert.Equal(t, "another type", resp)
}

func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := createDefaultConfig().(*Config)
		e, err := newExtension(cfg, extensiontest.NewNopSettings(metadata.Type))
		require.NoError(t, err)
		require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
		p := e.begin()
		p.shrink(t.Context(), encode(t, report("n", 0, 1)))
		p.end(t.Context(), true)
		assert.EqualValues(t, 1, e.table.Stats().Nodes)
		time.Sleep(cfg.TTL + cfg.TTL/sweepsPerTTL)
		synctest.Wait()
		assert.Zero(t, e.table.Stats().Nodes)
		require.NoError(t, e.Shutdown(t.Context()))
	})
}

// Two senders for each of many nodes, over both transports and a pipeline that
// refuses now and then: after one more accepted push of each, it has all.
func TestConcurrentPushes(t *testing.T) {
	const nodes, reports, gpus = 6, 40, 8
	s := startServer(t, func(c *Config) { c.ResyncInterval = time.Millisecond }, "one")
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

func TestTelemetry(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	cfg := createDefaultConfig().(*Config)
	cfg.MaxNodes, cfg.MaxSeries, cfg.ClusterShare = 1, 2, 1
	set := extensiontest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	e, err := newExtension(cfg, set)
	require.NoError(t, err)
	ctx := t.Context()
	push := func(accepted bool, msg []byte) {
		p := e.begin()
		p.shrink(ctx, msg)
		p.end(ctx, accepted)
	}
	push(true, encode(t, report("a", 10*time.Second, 1, 2)))
	push(true, encode(t, report("a", 20*time.Second, 1, 3)))
	push(true, encode(t, report("a", 0, 1, 9)))                  // two stale points and no heartbeat
	push(true, append(encode(t, report("b", 0, 1)), 0x78, 0x01)) // no room for a second node
	push(true, encode(t, report("a", 30*time.Second, 1, 3, 4)))  // no room for a third series
	push(false, encode(t, report("a", 40*time.Second, 5, 3)))    // refused
	push(false, []byte("malformed"))                             // neither read
	p := e.begin()
	body, err := pmetricotlp.NewExportRequestFromMetrics(report("a", 50*time.Second, 1)).MarshalJSON()
	require.NoError(t, err)
	p.observe(ctx, body)
	p.end(ctx, true)

	point := func(v int64) []metricdata.DataPoint[int64] { return []metricdata.DataPoint[int64]{{Value: v}} }
	read := func(how string, v int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Value: v, Attributes: attribute.NewSet(attribute.String("read", how))}
	}
	opt := metricdatatest.IgnoreTimestamp()
	metadatatest.AssertEqualExtensionWireDiffPushes(t, tel, []metricdata.DataPoint[int64]{
		read("bytes", 5), read("decoded", 1), read("json", 1), read("malformed", 1),
	}, opt)
	metadatatest.AssertEqualExtensionWireDiffReceivedPoints(t, tel, point(13), opt)
	metadatatest.AssertEqualExtensionWireDiffForwardedPoints(t, tel, point(2+1+1+1+1), opt)
	metadatatest.AssertEqualExtensionWireDiffHeartbeats(t, tel, point(4), opt)
	metadatatest.AssertEqualExtensionWireDiffStalePoints(t, tel, point(2), opt)
	metadatatest.AssertEqualExtensionWireDiffUntrackedPoints(t, tel, point(2), opt)
	metadatatest.AssertEqualExtensionWireDiffVanishedSeries(t, tel, point(0), opt)
	metadatatest.AssertEqualExtensionWireDiffNodes(t, tel, point(1), opt)
	metadatatest.AssertEqualExtensionWireDiffSeries(t, tel, point(2), opt)
	metadatatest.AssertEqualExtensionWireDiffResyncs(t, tel, point(0), opt)
	e.table.Sweep(1 << 62)
	metadatatest.AssertEqualExtensionWireDiffEvictedNodes(t, tel, point(1), opt)
	require.NoError(t, e.Shutdown(ctx))
}
