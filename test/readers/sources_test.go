// SPDX-License-Identifier: Apache-2.0

package readers

import (
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// typeOf is the name that csv_replay has for the type of a metric, false where it has none.
func typeOf(m pmetric.Metric) (name string, ok bool) {
	switch {
	case m.Type() == pmetric.MetricTypeGauge:
		return "gauge", true
	case m.Type() != pmetric.MetricTypeSum || m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityCumulative:
		return "", false
	case m.Sum().IsMonotonic():
		return "sum", true
	default:
		return "updowncounter", true
	}
}

// replay writes the points of a metric as a table and replays it. It returns the
// refusals by reason, and is false for a metric that no table can have. It takes off
// m the points that are ends of series, which a table does not have.
func replay(t *testing.T, rt *rapid.T, m pmetric.Metric) (refused [reading.NumRefusals]int64, ok bool) {
	kind, ok := typeOf(m)
	if !ok {
		return refused, false
	}
	points := metricreading.Points(m)
	points.RemoveIf(func(p pmetric.NumberDataPoint) bool { return p.Flags().NoRecordedValue() })
	if points.Len() == 0 {
		return refused, false
	}
	var keys []string
	attributes := map[string]string{}
	for _, p := range points.All() {
		for key := range p.Attributes().All() {
			if _, twice := attributes[key]; !twice {
				attributes[key] = "{" + key + "}"
				keys = append(keys, key)
			}
		}
	}
	var text strings.Builder
	lines := csv.NewWriter(&text)
	require.NoError(rt, lines.Write(append([]string{"at", "value"}, keys...)))
	for i, p := range points.All() {
		line := []string{strconv.Itoa(i), number(p)}
		for _, key := range keys {
			v, _ := p.Attributes().Get(key)
			line = append(line, v.Str())
		}
		require.NoError(rt, lines.Write(line))
	}
	lines.Flush()
	path := filepath.Join(t.TempDir(), "table.csv")
	require.NoError(rt, os.WriteFile(path, []byte(text.String()), 0o600))

	factory := csvreplayreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig().(*csvreplayreceiver.Config)
	cfg.Path = path
	cfg.Table = csvreplayreceiver.TableConfig{
		Time: csvreplayreceiver.TimeConfig{Column: "at", Unit: "ns"}, Resource: map[string]string{"host.name": "n"},
		Metrics: []csvreplayreceiver.MetricConfig{{Column: "value", Name: m.Name(), Unit: m.Unit(), Type: kind, Attributes: attributes}},
	}
	// As with a metric of a push, the type comes before the unit.
	if err := cfg.Validate(); err != nil {
		why := reading.WrongUnit
		if strings.Contains(err.Error(), "::type`: ") {
			why = reading.WrongType
		}
		refused[why] = int64(points.Len())
		return refused, true
	}
	end := make(chan struct{})
	tel := componenttest.NewTelemetry()
	set := receiver.Settings{ID: component.NewID(factory.Type()), TelemetrySettings: tel.NewTelemetrySettings()}
	core, _ := observer.New(zapcore.InfoLevel)
	set.Logger = zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if strings.HasPrefix(e.Message, "replay finished") {
			close(end)
		}
		return nil
	}))
	sink := new(consumertest.MetricsSink)
	r, err := factory.CreateMetrics(context.Background(), set, cfg, sink)
	require.NoError(rt, err)
	require.NoError(rt, r.Start(context.Background(), componenttest.NewNopHost()))
	<-end
	require.NoError(rt, r.Shutdown(context.Background()))
	counts := reader{tel: tel, counter: "otelcol_receiver_csv_replay_skipped_rows"}
	refused = counts.refused(rt)
	took := 0
	for _, md := range sink.AllMetrics() {
		took += md.DataPointCount()
	}
	skipped := 0
	for _, n := range refused {
		skipped += int(n)
	}
	require.Equal(rt, points.Len(), took+skipped, "a row is a point, or is refused for a reason of the catalogue")
	require.NoError(rt, tel.Shutdown(context.Background()))
	return refused, true
}

// number is a value as a table has it.
func number(p pmetric.NumberDataPoint) string {
	switch p.ValueType() {
	case pmetric.NumberDataPointValueTypeInt:
		return strconv.FormatInt(p.IntValue(), 10)
	case pmetric.NumberDataPointValueTypeDouble:
		return strconv.FormatFloat(p.DoubleValue(), 'g', -1, 64)
	default:
		return "NaN"
	}
}

// TestReadersTakeWhatTheSimulatorPushes: each point of healthy nodes and of all
// faults has a unit, type, value and subject that no reader refuses.
func TestReadersTakeWhatTheSimulatorPushes(t *testing.T) {
	all := readers(t, zap.NewNop())
	began := time.Now().Add(-time.Hour)
	cfg := fleetpush.Config{GPUs: 4, Load: fleetsim.Training, Seed: 11, Start: began}
	for _, f := range []fleetsim.Fault{
		{Kind: fleetsim.SlowNode, GPU: fleetsim.AllGPUs},
		{Kind: fleetsim.ThermalThrottle},
		{Kind: fleetsim.PowerLimit},
		{Kind: fleetsim.Brake},
		{Kind: fleetsim.ClockLock},
		{Kind: fleetsim.ECC, Severity: 0.9},
		{Kind: fleetsim.ECCCorrected},
		{Kind: fleetsim.XidError},
		{Kind: fleetsim.LostGPU, Until: 5 * time.Minute},
		{Kind: fleetsim.NVLink},
		{Kind: fleetsim.NVLinkErrors},
		{Kind: fleetsim.PCIe},
		{Kind: fleetsim.PCIeSlow},
		{Kind: fleetsim.CPU, GPU: fleetsim.AllGPUs},
		{Kind: fleetsim.Neighbour},
	} {
		f.From = time.Minute
		cfg.Faults = append(cfg.Faults, fleetpush.Fault{Target: fleetsim.Target{Node: cfg.Nodes}, Fault: f})
		cfg.Nodes++
	}
	fleet, err := fleetpush.New(cfg)
	require.NoError(t, err)
	names := map[string]bool{}
	for tick := range 60 {
		for node := range cfg.Nodes {
			body, err := fleet.Next(node, 1, began.Add(time.Duration(tick)*10*time.Second), nil)
			require.NoError(t, err)
			request := pmetricotlp.NewExportRequest()
			require.NoError(t, request.UnmarshalProto(body))
			for _, rm := range request.Metrics().ResourceMetrics().All() {
				for _, sm := range rm.ScopeMetrics().All() {
					for _, m := range sm.Metrics().All() {
						known := reading.ByName(m.Name())
						require.NotNil(t, known, m.Name())
						assert.Zero(t, judge(known, m).refused, m.Name())
						names[m.Name()] = true
					}
				}
			}
			for i := range all {
				require.NoError(t, all[i].ConsumeMetrics(t.Context(), request.Metrics()))
			}
		}
	}
	for i := range all {
		assert.Zero(t, all[i].refused(t), all[i].name)
	}
	for _, name := range []string{"hw.power", "hw.gpu.xid.events", "hw.gpu.health.reason", "gpu.app.step.duration", "gpu.node.health_score"} {
		assert.True(t, names[name], "the fleet pushes no %s", name)
	}
}
