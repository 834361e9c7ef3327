// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
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
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadatatest"
)

// hop is the component behind the diff of a test.
type hop struct {
	mu      sync.Mutex
	got     []string // points that it got
	decoded int      // points that the diff got
}

// send is what a diff processor forwards to.
func (h *hop) send(_ context.Context, m otlp.Message) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, rm := range m.Metrics.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, dp := range m.Gauge().DataPoints().All() {
					h.got = append(h.got, fmt.Sprint(m.Name(), dp.Attributes().AsRaw()["hw.id"], " ", dp.DoubleValue()))
				}
			}
		}
	}
	return nil
}

// wantTook: it got so many points, and a heartbeat.
func (h *hop) wantTook(t *testing.T, points int, msg string) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	assert.Len(t, h.got, points+1, msg)
	h.got = nil
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
func compared(t testing.TB, extensions host, over settings) (*server, *otlp.Engine, *hop) {
	t.Helper()
	next := &hop{}
	set := lastvalue.Settings{
		MaxNodes: 1000, MaxSeries: 100_000, TTL: 10 * time.Minute, VanishedAfter: 3 * time.Minute,
		ResyncInterval: 2 * time.Minute, OpaqueInterval: otlp.OpaqueInterval, Rand: func(n int64) int64 { return n / 2 },
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

// TestOnlyTheChangeArrives, also of irregular pushes, with an unknown field or in JSON.
func TestOnlyTheChangeArrives(t *testing.T) {
	s, _, next := compared(t, nil, nil)
	for name, push := range s.pushers() {
		require.NoError(t, push(t, encode(t, report(name, 0, 1, 2, 3))))
		next.wantTook(t, 3, "the first report")
		require.NoError(t, push(t, encode(t, report(name, 10*time.Second, 1, 2, 3))))
		next.wantTook(t, 0, "nothing changed")
		assert.Equal(t, 1, next.decoded, "one point shows diff that the node is alive")
		require.NoError(t, push(t, encode(t, report(name, 20*time.Second, 1, 9, 3))))
		assert.Equal(t, "mGPU-1 9", next.got[0])
		next.wantTook(t, 1, "one value changed")
		require.NoError(t, push(t, append(encode(t, report(name, 30*time.Second, 1, 9, 4)), 0x78, 0x01)))
		next.wantTook(t, 1, "an unknown field")
		json, err := pmetricotlp.NewExportRequestFromMetrics(report(name, 40*time.Second, 1, 9, 5)).MarshalJSON()
		require.NoError(t, err)
		resp, _ := s.post(t, "/v1/metrics", json, map[string]string{"Content-Type": contentJSON})
		require.Equal(t, http.StatusOK, resp.StatusCode)
		next.wantTook(t, 1, "JSON")
		require.NoError(t, s.pushers()["http"](t, encode(t, report(name, 50*time.Second, 1, 9, 5))))
		next.wantTook(t, 0, "all ways in share the table")
	}
	metadatatest.AssertEqualReceiverFleetOtlpPushes(t, s.tel, []metricdata.DataPoint[int64]{
		{Value: 8, Attributes: attribute.NewSet(attribute.String("read", "bytes"))},
		{Value: 2, Attributes: attribute.NewSet(attribute.String("read", "whole"))},
	}, metricdatatest.IgnoreTimestamp(), metricdatatest.IgnoreExemplars())
}

// TestARefusedClientHasNoEffect on the table, whether the authenticator refuses it or what
// it claims.
func TestARefusedClientHasNoEffect(t *testing.T) {
	s, engine, _ := compared(t, host{doormanID: &doorman{}}, guarded(settings{
		"identity": settings{"cluster_auth_attribute": "username", "node_auth_attribute": "username"},
	}))
	md := report("n", 0, 1, 2)
	md.ResourceMetrics().At(0).Resource().Attributes().PutStr("k8s.cluster.name", "lab")
	msg := encode(t, md)
	for _, push := range s.pushers("authorization", "lab/n") {
		require.NoError(t, push(t, msg))
	}
	before := engine.Table.Stats()
	for _, user := range []string{"", "lab", "lab/m", "west/n"} {
		for _, push := range s.pushers("authorization", user) {
			require.Error(t, push(t, msg), user)
		}
	}
	assert.Equal(t, before, engine.Table.Stats())
}

// TestMessagesOfAnySize: gRPC has a message above 32 KiB in several buffers.
func TestMessagesOfAnySize(t *testing.T) {
	s, _, next := compared(t, nil, nil)
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

// TestStartNamesTheMistake in the table that the receiver names.
func TestStartNamesTheMistake(t *testing.T) {
	cfg := NewFactory().CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(settings{"table": "x"}).Unmarshal(cfg))
	for want, extensions := range map[string]host{
		"`table` is \"x\", which `service::extensions` does not list": nil,
		"`table` is \"x\": two pipelines":                             {component.MustNewID("x"): &tables{err: errors.New("two pipelines")}},
	} {
		r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, &pipeline{})
		require.NoError(t, err)
		require.EqualError(t, r.Start(t.Context(), extensions), want)
		require.NoError(t, r.Shutdown(t.Context()))
	}
}
