// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

// window is an exposition extension.
type window struct {
	component.StartFunc
	component.ShutdownFunc
	engines map[*delta.Engine]bool
}

func (w *window) Register(e *delta.Engine) func() {
	w.engines[e] = true
	return func() { delete(w.engines, e) }
}

func TestExposition(t *testing.T) {
	id, w := component.MustNewID("exposition"), &window{engines: map[*delta.Engine]bool{}}
	cfg := createDefaultConfig().(*Config)
	cfg.Exposition = &id
	p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), &hop{})
	require.NoError(t, err)
	require.EqualError(t, p.Start(t.Context(), host{}), "`exposition` is \"exposition\", which `service::extensions` does not list")
	require.EqualError(t, p.Start(t.Context(), host{id: &ear{}}), "`exposition` is \"exposition\", must be a exposition extension")
	require.NoError(t, p.Start(t.Context(), host{id: w}))
	assert.Equal(t, map[*delta.Engine]bool{p.engine: true}, w.engines)
	require.NoError(t, p.Shutdown(t.Context()))
	assert.Empty(t, w.engines)
}

// Every series that was pushed and taken is exposed with its last value while its node is
// not silent, whatever was refused or overtaken in between. What ended is not, also where
// its end was refused, or a value after it.
func TestWhatWasPushedIsExposed(t *testing.T) {
	const expiration = 5 * time.Minute
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(rt *rapid.T) {
		refused := false
		next, err := consumer.NewMetrics(func(context.Context, pmetric.Metrics) error {
			if refused {
				return errors.New("try later")
			}
			return nil
		})
		require.NoError(rt, err)
		cfg := createDefaultConfig().(*Config)
		cfg.TTL, cfg.VanishedAfter = 10*time.Hour, 0 // how series expire is vanish_test's
		p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), next)
		require.NoError(rt, err)
		require.NoError(rt, p.Start(t.Context(), componenttest.NewNopHost()))
		defer func() { require.NoError(rt, p.Shutdown(context.Background())) }()
		began, at := time.Unix(1_800_000_000, 0), time.Duration(0)
		p.engine.Now, p.engine.Epoch = func() time.Time { return began.Add(at) }, began

		model, heard := map[string]map[string]float64{}, map[string]time.Duration{}
		for range rapid.IntRange(1, 30).Draw(rt, "reports") {
			at += time.Duration(rapid.IntRange(1, 100).Draw(rt, "seconds")) * time.Second
			node := rapid.SampledFrom(names).Draw(rt, "node")
			refused = rapid.IntRange(0, 4).Draw(rt, "refused") == 0
			md := pmetric.NewMetrics()
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
			metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
			said := map[string]*float64{}
			for range rapid.IntRange(1, 5).Draw(rt, "points") {
				gpu := rapid.IntRange(0, 3).Draw(rt, "gpu")
				sum := rapid.Bool().Draw(rt, "sum")
				name := fmt.Sprintf(`{__name__="m_celsius", host_name=%q, hw_id="%d"}`, node, gpu)
				if sum {
					name = fmt.Sprintf(`{__name__="m_celsius_total", host_name=%q, hw_id="%d"}`, node, gpu)
				}
				if _, twice := said[name]; twice {
					continue
				}
				m := metrics.AppendEmpty()
				m.SetName("m")
				m.SetUnit("Cel")
				var points pmetric.NumberDataPointSlice
				if sum {
					m.SetEmptySum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
					m.Sum().SetIsMonotonic(true)
					points = m.Sum().DataPoints()
				} else {
					points = m.SetEmptyGauge().DataPoints()
				}
				dp := points.AppendEmpty()
				dp.SetTimestamp(pcommon.NewTimestampFromTime(began.Add(at)))
				dp.Attributes().PutStr("hw.id", strconv.Itoa(gpu))
				if said[name] = nil; rapid.IntRange(0, 4).Draw(rt, "ends") == 0 {
					dp.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
					continue
				}
				v := float64(rapid.IntRange(0, 3).Draw(rt, "value"))
				dp.SetDoubleValue(v)
				said[name] = &v
			}
			if err := p.ConsumeMetrics(t.Context(), md); refused && err != nil {
				for name, v := range said {
					if v == nil {
						delete(model[node], name)
					}
				}
				continue
			}
			if model[node] == nil {
				model[node] = map[string]float64{}
			}
			heard[node] = at
			for name, v := range said {
				if delete(model[node], name); v != nil {
					model[node][name] = *v
				}
			}
			model[node][fmt.Sprintf(`{__name__="gpu_node_heartbeat_seconds", host_name=%q}`, node)] = float64(began.Add(at).Unix())
		}
		want := map[string]float64{}
		for node, series := range model {
			if at-heard[node] <= expiration {
				maps.Copy(want, series)
			}
		}
		var text bytes.Buffer
		x := statetable.Exposition{Expiration: expiration}
		_, err = x.Write(&text, statetable.TableAt{Table: p.engine.Table, Now: p.engine.Time()})
		require.NoError(rt, err)
		got, err := promparse.Parse(text.Bytes(), promparse.Text)
		require.NoError(rt, err)
		require.Equal(rt, want, got.Series)
	})
}
