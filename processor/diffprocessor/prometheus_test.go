// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"io"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/exporter/prometheusexporter"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/loopback"
)

// gauges is a report of node "n" with one gauge, a point for each GPU.
func gauges(at time.Duration, gpus map[string]float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, "n")
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("g")
	points := m.SetEmptyGauge().DataPoints()
	for gpu, v := range gpus {
		dp := points.AppendEmpty()
		dp.SetTimestamp(pcommon.Timestamp(1_800_000_000*time.Second + at))
		dp.SetDoubleValue(v)
		dp.Attributes().PutStr("gpu", gpu)
	}
	return md
}

// The shipped exporter serves none of several GPUs that vanished together, and
// of the others the last value, also where that is held with the markers.
func TestPrometheusServesWhatIsThere(t *testing.T) {
	for name, flush := range map[string]time.Duration{"inline": 0, "conflating": time.Hour} {
		t.Run(name, func(t *testing.T) {
			address := loopback.FreeAddr(t)
			factory := prometheusexporter.NewFactory()
			cfg := factory.CreateDefaultConfig().(*prometheusexporter.Config)
			cfg.NetAddr.Endpoint = address
			exp, err := factory.CreateMetrics(t.Context(), exportertest.NewNopSettings(factory.Type()), cfg)
			require.NoError(t, err)
			require.NoError(t, exp.Start(t.Context(), componenttest.NewNopHost()))
			defer func() { require.NoError(t, exp.Shutdown(t.Context())) }()

			p := newTestProcessor(t, exp, func(c *Config) { c.FlushInterval, c.ResyncInterval = flush, 0 })
			start, at := time.Unix(1_800_000_000, 0), time.Duration(0) // as in gauges
			p.engine.Now = func() time.Time { return start.Add(at) }
			send := func() {
				if p.buffer != nil {
					p.flush(t.Context(), nil)
				}
			}
			require.NoError(t, p.ConsumeMetrics(t.Context(), gauges(at, map[string]float64{"0": 1, "1": 1, "2": 1, "3": 1})))
			send()
			served := func() map[string]string {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", http.NoBody)
				require.NoError(t, err)
				answer, err := http.DefaultClient.Do(req)
				require.NoError(t, err)
				body, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				out := map[string]string{}
				for _, m := range regexp.MustCompile(`(?m)^g\{.*gpu="(\d)".*\} (\S+)`).FindAllStringSubmatch(string(body), -1) {
					out[m[1]] = m[2]
				}
				return out
			}
			require.Equal(t, map[string]string{"0": "1", "1": "1", "2": "1", "3": "1"}, served())
			// 1, 2 and 3 vanish, 0 changes when that is told, and 4 comes.
			for ; at < 5*time.Minute; at += 10 * time.Second {
				require.NoError(t, p.ConsumeMetrics(t.Context(), gauges(at, map[string]float64{"0": 1})))
			}
			require.NoError(t, p.ConsumeMetrics(t.Context(), gauges(at, map[string]float64{"0": 2, "4": 4})))
			send()
			assert.Equal(t, map[string]string{"0": "2", "4": "4"}, served())
			// The sender itself ends one, in front of another that changes.
			md := gauges(at+time.Second, map[string]float64{"4": 0})
			points := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints()
			points.At(0).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
			gauges(at+time.Second, map[string]float64{"0": 3}).ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).
				Gauge().DataPoints().MoveAndAppendTo(points)
			require.NoError(t, p.ConsumeMetrics(t.Context(), md))
			send()
			assert.Equal(t, map[string]string{"0": "3"}, served())
			// The sender's clock is set back, and stays so.
			for i, want := range []string{"4", "5"} {
				at += 10 * time.Second
				require.NoError(t, p.ConsumeMetrics(t.Context(), gauges(at-time.Hour, map[string]float64{"0": float64(4 + i)})))
				send()
				assert.Equal(t, map[string]string{"0": want}, served())
			}
		})
	}
}
