// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadata"
)

// hop is the component behind the diff of a test: it keeps the last value of each series.
type hop struct {
	mu            sync.Mutex
	points, beats int
	decoded       int // points that the diff got
	state         map[string]float64
	refuse        error
}

// send is what a diff processor forwards to.
func (h *hop) send(_ context.Context, m otlp.Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refuse != nil {
		return h.refuse
	}
	for _, rm := range m.Metrics.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get("host.name")
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, dp := range m.Gauge().DataPoints().All() {
					if m.Name() == gpusemconv.MetricNodeHeartbeat {
						h.beats++
						continue
					}
					gpu, _ := dp.Attributes().Get("hw.id")
					h.points++
					h.state[node.Str()+"/"+gpu.Str()] = dp.DoubleValue()
				}
			}
		}
	}
	return nil
}

func (h *hop) answer(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refuse = err
}

func (h *hop) wantTook(t *testing.T, points int, msg string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Equal(t, points, h.points, msg)
	assert.Equal(t, 1, h.beats, "heartbeats: %s", msg)
	h.points, h.beats = 0, 0
}

// tables is an exposition extension with one table.
type tables struct {
	component.StartFunc
	component.ShutdownFunc
	otlp.Owner
	engine *otlp.Engine
	err    error
}

func (x *tables) Follows(string) (*otlp.Engine, error) { return x.engine, x.err }

// compared starts a receiver that compares, and behind it what a diff processor has.
func compared(t testing.TB, extensions host, over settings, edit func(*lastvalue.Settings)) (*server, *otlp.Engine, *hop) {
	t.Helper()
	next := &hop{state: map[string]float64{}}
	set := lastvalue.Settings{
		MaxNodes: 1000, MaxSeries: 100_000, TTL: 10 * time.Minute, VanishedAfter: 3 * time.Minute,
		ResyncInterval: 2 * time.Minute, OpaqueInterval: otlp.OpaqueInterval, Rand: func(n int64) int64 { return n / 2 },
	}
	if edit != nil {
		edit(&set)
	}
	engine := otlp.NewEngine(set)
	with := host{component.MustNewID("exposition"): &tables{engine: engine}}
	maps.Copy(with, extensions)
	both := settings{"table": "exposition"}
	maps.Copy(both, over)
	s := start(t, NewFactory(), &pipeline{}, with, both)
	diff, err := consumer.NewMetrics(func(ctx context.Context, md pmetric.Metrics) error {
		next.mu.Lock()
		next.decoded = md.DataPointCount()
		next.mu.Unlock()
		_, err := engine.Consume(ctx, md, next.send)
		return err
	})
	require.NoError(t, err)
	s.metrics = diff
	return s, engine, next
}

func TestOnlyTheChangeArrives(t *testing.T) {
	s, _, next := compared(t, nil, nil, nil)
	for name, push := range s.pushers() {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, push(t, encode(t, report(name, 0, 1, 2, 3))))
			next.wantTook(t, 3, "the first report")
			require.NoError(t, push(t, encode(t, report(name, 10*time.Second, 1, 2, 3))))
			next.wantTook(t, 0, "nothing changed")
			assert.Equal(t, 1, next.decoded, "one point tells diff that the node is alive")
			require.NoError(t, push(t, encode(t, report(name, 20*time.Second, 1, 9, 3))))
			next.wantTook(t, 1, "one value changed")
			assert.InDelta(t, 9, next.state[name+"/GPU-1"], 0)
		})
	}
	require.NoError(t, s.pushers()["http"](t, encode(t, report("grpc", 30*time.Second, 1, 9, 3))))
	next.wantTook(t, 0, "both ways in share the table")
}

func TestNothingIsCommittedThatWasRefused(t *testing.T) {
	s, _, next := compared(t, nil, nil, nil)
	for name, push := range s.pushers() {
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 2))))
		next.wantTook(t, 2, "the first report")
		next.answer(errors.New("try later"))
		for range 2 {
			require.Error(t, push(t, encode(t, report(name, time.Second, 1, 3))))
		}
		next.answer(nil)
		require.NoError(t, push(t, encode(t, report(name, time.Second, 1, 3))))
		next.wantTook(t, 1, "the change, and not what had been accepted before")
	}
}

// TestARefusedClientHasNoEffect on the table, whether the authenticator refuses it or what
// it claims.
func TestARefusedClientHasNoEffect(t *testing.T) {
	s, engine, _ := compared(t, host{doormanID: &doorman{}}, guarded(settings{
		"identity": settings{"cluster_auth_attribute": "username", "node_auth_attribute": "username"},
	}), nil)
	md := report("n", 0, 1, 2)
	md.ResourceMetrics().At(0).Resource().Attributes().PutStr("k8s.cluster.name", "lab")
	msg := encode(t, md)
	for _, push := range s.pushers("authorization", "lab/n") {
		require.NoError(t, push(t, msg))
	}
	before := engine.Table.Stats()
	for _, who := range []string{"", "lab", "lab/m", "west/n"} {
		for _, push := range s.pushers("authorization", who) {
			require.Error(t, push(t, msg), who)
		}
	}
	assert.Equal(t, before, engine.Table.Stats())
}

// TestIrregularPushesShareTheTable: an unknown field, or JSON.
func TestIrregularPushesShareTheTable(t *testing.T) {
	s, _, next := compared(t, nil, nil, nil)
	for name, push := range s.pushers() {
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 2))))
		next.wantTook(t, 2, name)
		require.NoError(t, push(t, append(encode(t, report(name, 0, 1, 3)), 0x78, 0x01)))
		next.wantTook(t, 1, name)
		json, err := pmetricotlp.NewExportRequestFromMetrics(report(name, time.Second, 1, 4)).MarshalJSON()
		require.NoError(t, err)
		resp, _ := s.post(t, "/v1/metrics", json, map[string]string{"Content-Type": contentJSON})
		require.Equal(t, http.StatusOK, resp.StatusCode)
		next.wantTook(t, 1, name)
		require.NoError(t, push(t, encode(t, report(name, 2*time.Second, 1, 4))))
		next.wantTook(t, 0, name)
	}
}

// TestMessagesOfAnySize: gRPC has a message above 32 KiB in several buffers.
func TestMessagesOfAnySize(t *testing.T) {
	s, _, next := compared(t, nil, nil, nil)
	for name, push := range s.pushers() {
		for _, values := range []int{1, 400, 2000} {
			msg := encode(t, report(fmt.Sprintf("%s-%d", name, values), 0, make([]float64, values)...))
			require.NoError(t, push(t, msg))
			next.wantTook(t, values, "new")
			require.NoError(t, push(t, msg))
			next.wantTook(t, 0, "known")
		}
	}
}

// TestConcurrentPushes: two senders for each of many nodes, and a pipeline that refuses now
// and then. After one more accepted push of each, it has all.
func TestConcurrentPushes(t *testing.T) {
	const nodes, reports, gpus = 6, 40, 8
	s, _, next := compared(t, nil, nil, func(s *lastvalue.Settings) { s.ResyncInterval = time.Millisecond })
	var senders, flaky sync.WaitGroup
	done := make(chan struct{})
	flaky.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				next.answer(nil)
				return
			default:
				next.answer(map[bool]error{true: errors.New("flaky")}[i%3 == 0])
				runtime.Gosched()
			}
		}
	})
	for n := range nodes {
		for sender, push := range s.pushers() {
			senders.Go(func() {
				for i := range reports {
					values := make([]float64, gpus)
					for g := range values {
						values[g] = float64((i*7 + g*len(sender) + n) % 3)
					}
					_ = push(t, encode(t, report(fmt.Sprintf("n%d", n), time.Duration(i)*time.Second, values...)))
				}
			})
		}
	}
	senders.Wait()
	close(done)
	flaky.Wait()
	want := map[string]float64{}
	for n := range nodes {
		node := fmt.Sprintf("n%d", n)
		values := make([]float64, gpus)
		for g := range values {
			values[g] = float64(g % 3)
			want[fmt.Sprintf("%s/GPU-%d", node, g)] = values[g]
		}
		require.NoError(t, s.pushers()["grpc"](t, encode(t, report(node, time.Hour, values...))))
	}
	assert.Equal(t, want, next.state)
}

// TestStartSaysWhatIsWrong with the extensions that the receiver names.
func TestStartSaysWhatIsWrong(t *testing.T) {
	for key, want := range map[string]string{
		"threshold_extension": "`threshold_extension` is \"x\", which `service::extensions` does not list",
		"table":               "`table` is \"x\", which `service::extensions` does not list",
	} {
		err := tryStart(t, settings{key: "x"}, nil)
		require.EqualError(t, err, want)
	}
	err := tryStart(t, settings{"table": "x"}, host{component.MustNewID("x"): &tables{err: errors.New("two pipelines")}})
	require.EqualError(t, err, "`table` is \"x\": two pipelines")
}

func tryStart(t *testing.T, over settings, extensions host) error {
	t.Helper()
	cfg := NewFactory().CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(over).Unmarshal(cfg))
	r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, &pipeline{})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Shutdown(t.Context())) }()
	return r.Start(t.Context(), extensions)
}
