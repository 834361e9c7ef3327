// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// fakeExtension stands for the threshold extension on either end.
type fakeExtension struct {
	component.StartFunc
	component.ShutdownFunc

	mu        sync.Mutex
	snap      *threshold.Snapshot
	claim     pushheaders.Claim
	received  map[string]threshold.Received
	reachable bool
}

func (f *fakeExtension) Publish(s *threshold.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snap = s
}

func (f *fakeExtension) SetClaim(c pushheaders.Claim) { f.claim = c }

func (f *fakeExtension) Reachable() bool { return f.reachable }

func (f *fakeExtension) Received(cluster, group string) (threshold.Received, bool) {
	r, ok := f.received[cluster+" "+group]
	return r, ok
}

// fleetView stands for the fleet_view extension, without its server.
type fleetView struct {
	component.StartFunc
	component.ShutdownFunc

	state *fleetstate.Store
}

func (v *fleetView) State() *fleetstate.Store    { return v.state }
func (*fleetView) History() fleethistory.History { return fleethistory.None{} }

var viewID = component.MustNewID("fleet_view")

// newFleetView returns the views, and the exporter that fills them from metrics.
func newFleetView(t *testing.T) (*fleetView, consumer.Metrics) {
	v, f := &fleetView{state: fleetstate.New(fleetstate.DefaultConfig())}, fleetviewexporter.NewFactory()
	e, err := f.CreateMetrics(t.Context(), exportertest.NewNopSettings(f.Type()), f.CreateDefaultConfig())
	require.NoError(t, err)
	require.NoError(t, e.Start(t.Context(), host{map[component.ID]component.Component{viewID: v}}))
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context()))) })
	return v, e
}

type host struct {
	ext map[component.ID]component.Component
}

func (h host) GetExtensions() map[component.ID]component.Component { return h.ext }

var extensionID = component.MustNewID("straggler_threshold")

func hostWith(f component.Component) host {
	return host{map[component.ID]component.Component{extensionID: f}}
}

// resource adds a node to md.
func resource(md pmetric.Metrics, attrs map[string]any) pmetric.ResourceMetrics {
	rm := md.ResourceMetrics().AppendEmpty()
	if err := rm.Resource().Attributes().FromRaw(attrs); err != nil {
		panic(err)
	}
	rm.ScopeMetrics().AppendEmpty()
	return rm
}

// gauge adds a point to rm; the pairs are attribute keys and values.
func gauge(rm pmetric.ResourceMetrics, name string, v float64, pairs ...string) pmetric.NumberDataPoint {
	m := rm.ScopeMetrics().At(0).Metrics().AppendEmpty()
	m.SetName(name)
	p := m.SetEmptyGauge().DataPoints().AppendEmpty()
	p.SetDoubleValue(v)
	p.SetTimestamp(pcommon.NewTimestampFromTime(time.Now()))
	for i := 0; i < len(pairs); i += 2 {
		p.Attributes().PutStr(pairs[i], pairs[i+1])
	}
	return p
}

// values flattens md to "host metric attributes..." -> value.
func values(md pmetric.Metrics) map[string]float64 {
	out := map[string]float64{}
	for _, rm := range md.ResourceMetrics().All() {
		node := ""
		if v, ok := rm.Resource().Attributes().Get("host.name"); ok {
			node = v.Str()
		}
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, p := range metricreading.Points(m).All() {
					key := []string{node, m.Name()}
					for _, v := range p.Attributes().All() {
						key = append(key, v.Str())
					}
					out[strings.Join(key, " ")] = metricreading.Number(p)
				}
			}
		}
	}
	return out
}

// rejected returns the counts by reason.
func rejected(t *testing.T, tel *componenttest.Telemetry) map[string]int64 {
	got := map[string]int64{}
	m, err := tel.GetMetric("otelcol_processor_straggler_rejected")
	if err != nil {
		return got
	}
	sum, ok := m.Data.(metricdata.Sum[int64])
	require.True(t, ok)
	for _, p := range sum.DataPoints {
		reason, _ := p.Attributes.Value("reason")
		got[reason.AsString()] = p.Value
	}
	return got
}
