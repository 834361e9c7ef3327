// SPDX-License-Identifier: Apache-2.0

package admissionextension

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/nesting"
)

// nodeReport is a node's push: 320 points of eight GPUs.
func nodeReport() pmetricotlp.ExportRequest {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", "node-1")
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "prod")
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for i := range 40 {
		m := metrics.AppendEmpty()
		m.SetName(fmt.Sprint("hw.gpu.metric.", i))
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for g := range 8 {
			p := points.AppendEmpty()
			p.SetTimestamp(1_700_000_000_000_000_000)
			p.SetDoubleValue(float64(i*g) / 3)
			p.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-%032d", g))
			p.Attributes().PutStr("hw.type", "gpu")
			p.Attributes().PutInt("gpu.index", int64(g))
		}
	}
	return pmetricotlp.NewExportRequestFromMetrics(md)
}

// BenchmarkChecks reports what a push takes, over what it takes without the checks of
// its message. The push goes to a receiver behind admission, whose pipeline does
// nothing. Its checks are timed once more beside each push, by themselves: so neither
// the network nor another process comes into the difference.
func BenchmarkChecks(b *testing.B) {
	req := nodeReport()
	proto, err := req.MarshalProto()
	require.NoError(b, err)
	text, err := req.MarshalJSON()
	require.NoError(b, err)
	e, _ := newTestExtension(b, nil)
	addrs := receive(b, e, consumertest.NewNop())
	cc := dial(b, addrs["grpc"])
	post := func(contentType string, body []byte) func() error {
		return func() error {
			r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://"+addrs["http"]+"/v1/metrics", bytes.NewReader(body))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", contentType)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("%s", resp.Status)
			}
			return errors.Join(err, resp.Body.Close())
		}
	}
	for _, tt := range []struct {
		name string
		push func() error
		body []byte
		json bool
	}{
		{"grpc", func() error { return exportRaw(b.Context(), cc, proto) }, proto, false},
		{"http", post("application/x-protobuf", proto), proto, false},
		{"json", post(contentJSON, text), text, true},
	} {
		b.Run(tt.name, func(b *testing.B) {
			var with, checks []time.Duration
			for b.Loop() {
				began := time.Now()
				require.NoError(b, tt.push())
				pushed := time.Now()
				permit, _ := e.limiter.Acquire("prod")
				paid := time.Now()
				err := e.pay(permit, tt.body, nesting.Metrics, tt.json, 0)
				checked := time.Now()
				permit.Release()
				require.NoError(b, err)
				with, checks = append(with, pushed.Sub(began)), append(checks, checked.Sub(paid))
			}
			median := func(d []time.Duration) float64 { slices.Sort(d); return float64(d[len(d)/2]) }
			b.ReportMetric(median(with)/1e3, "us/push")
			b.ReportMetric(median(checks)/1e3, "us/checks")
			b.ReportMetric(median(with)/(median(with)-median(checks)), "x")
		})
	}
}
