// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpu-collector/gpu-collector/extension/admissionextension/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// receive runs the Collector's OTLP receiver behind the extension and returns
// its addresses by transport.
func receive(t testing.TB, e *admissionExtension, next consumer.Metrics) map[string]string {
	t.Helper()
	addrs := map[string]string{"grpc": loopback.FreeAddr(t), "http": loopback.FreeAddr(t)}
	f := otlpreceiver.NewFactory()
	cfg := f.CreateDefaultConfig()
	middlewares := []any{map[string]any{"id": "admission"}}
	protocols := map[string]any{}
	for name, addr := range addrs {
		protocols[name] = map[string]any{"endpoint": addr, "middlewares": middlewares}
	}
	require.NoError(t, confmap.NewFromStringMap(map[string]any{"protocols": protocols}).Unmarshal(cfg))
	r, err := f.CreateMetrics(t.Context(), receivertest.NewNopSettings(f.Type()), cfg, next)
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), host{component.NewID(metadata.Type): e}))
	t.Cleanup(func() { require.NoError(t, r.Shutdown(context.WithoutCancel(t.Context()))) })
	return addrs
}

// send returns a push by the Collector's own exporter, which returns once the
// data is there or lost.
func send(t *testing.T, transport, addr, cluster string) func() error {
	t.Helper()
	var f exporter.Factory
	settings := map[string]any{
		"tls":              map[string]any{"insecure": true},
		"headers":          map[string]any{"gpu-cluster": cluster},
		"timeout":          "2m",
		"sending_queue":    map[string]any{"enabled": false},
		"retry_on_failure": map[string]any{"initial_interval": "1ms", "max_interval": "10ms"},
	}
	if transport == "grpc" {
		f = otlpexporter.NewFactory()
		settings["endpoint"] = addr
	} else {
		f = otlphttpexporter.NewFactory()
		settings["endpoint"] = "http://" + addr
	}
	cfg := f.CreateDefaultConfig()
	require.NoError(t, confmap.NewFromStringMap(settings).Unmarshal(cfg))
	x, err := f.CreateMetrics(t.Context(), exportertest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	require.NoError(t, x.Start(t.Context(), host{}))
	t.Cleanup(func() { require.NoError(t, x.Shutdown(context.WithoutCancel(t.Context()))) })
	return func() error {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("k8s.cluster.name", cluster)
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("hw.gpu.utilization")
		m.SetEmptyGauge().DataPoints().AppendEmpty().SetDoubleValue(1)
		return x.ConsumeMetrics(t.Context(), md)
	}
}

func refusals(e *admissionExtension, reason admission.Reason) (n int64) {
	for _, c := range e.limiter.Usage().Clusters {
		n += c.Refused[reason]
	}
	return n
}

// TestRefusedPushIsRetriedNotDropped lets the Collector's own exporters run
// into the limit: they come back when they were told to, and nothing is lost.
func TestRefusedPushIsRetriedNotDropped(t *testing.T) {
	for _, transport := range []string{"grpc", "http"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			e, _ := newTestExtension(t, func(c *Config) {
				c.MaxConcurrent, c.ClusterShare = 1, 1
				c.RetryAfter = RetryAfterConfig{Min: time.Second, Max: time.Second}
			})
			inside, leave := make(chan struct{}), make(chan struct{})
			var once sync.Once
			var mu sync.Mutex
			arrived := 0
			next, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
				once.Do(func() { close(inside); <-leave })
				mu.Lock()
				defer mu.Unlock()
				arrived += md.DataPointCount()
				return nil
			})
			require.NoError(t, err)
			addr := receive(t, e, next)[transport]
			push := send(t, transport, addr, "prod")
			results := make(chan error, 5)
			go func() { results <- push() }()
			<-inside
			began := time.Now()
			for range 4 {
				go func() { results <- push() }()
			}
			require.Eventually(t, func() bool { return refusals(e, admission.ReasonPermits) >= 4 }, waitFor, tick)
			close(leave)
			for range 5 {
				require.NoError(t, <-results)
			}
			// Its own backoff is milliseconds: it waited because it was asked to.
			assert.GreaterOrEqual(t, time.Since(began), 950*time.Millisecond)
			assert.Equal(t, 5, arrived)
		})
	}
}
