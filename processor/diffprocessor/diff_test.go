// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
)

// stage is a processor with its next component, which keeps what it takes.
type stage struct {
	*diffProcessor
	t      *testing.T
	tel    *componenttest.Telemetry
	logged *observer.ObservedLogs

	mu     sync.Mutex
	answer func(context.Context) error // unless nil
	calls  int
	got    []pmetric.Metrics // of the calls that were not refused
}

// newStage makes a processor with the defaults that edit changes. It is not started.
func newStage(t *testing.T, edit func(*Config)) *stage {
	t.Helper()
	cfg := createDefaultConfig().(*Config)
	cfg.Table = ownerID
	cfg.ResyncInterval = 0 // its phase is drawn
	edit(cfg)
	require.NoError(t, cfg.Validate())
	logs, logged := observer.New(zap.InfoLevel)
	s := &stage{t: t, tel: componenttest.NewTelemetry(), logged: logged}
	set := processortest.NewNopSettings(metadata.Type)
	set.ID, set.TelemetrySettings, set.Logger = component.NewID(metadata.Type), s.tel.NewTelemetrySettings(), zap.New(logs)
	next, err := consumer.NewMetrics(s.take)
	require.NoError(t, err)
	p, err := NewFactory().CreateMetrics(t.Context(), set, cfg, next)
	require.NoError(t, err)
	s.diffProcessor = p.(*diffProcessor)
	t.Cleanup(func() {
		require.NoError(t, s.Shutdown(context.Background()))
		require.NoError(t, s.tel.Shutdown(context.Background()))
	})
	return s
}

// started is one that runs, with a table of its own.
func started(t *testing.T, edit func(*Config)) *stage {
	t.Helper()
	s := newStage(t, edit)
	require.NoError(t, s.Start(t.Context(), host{ownerID: &owner{nodes: 1000}}))
	return s
}

func (s *stage) take(ctx context.Context, md pmetric.Metrics) error {
	s.mu.Lock()
	s.calls++
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		if err := answer(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, md)
	return nil
}

// took returns the calls and the points since the last time.
func (s *stage) took() (calls, points int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls = s.calls
	for _, md := range s.got {
		points += md.DataPointCount()
	}
	s.calls, s.got = 0, nil
	return calls, points
}

func (s *stage) answers(with func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = with
}

// push has a node report so many points.
func (s *stage) push(node string, at time.Duration, values ...float64) {
	s.t.Helper()
	require.NoError(s.t, s.ConsumeMetrics(context.Background(), report(node, at, values...)))
}

// report makes one node's report, a point per value.
func report(node string, at time.Duration, values ...float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("m")
	points := m.SetEmptyGauge().DataPoints()
	for i, v := range values {
		dp := points.AppendEmpty()
		// From 2000-01-01 on, where the clock of testing/synctest starts.
		dp.SetTimestamp(pcommon.Timestamp(946_684_800*time.Second + at))
		dp.SetDoubleValue(v)
		dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-%d", i))
	}
	return md
}

func TestFactory(t *testing.T) {
	assert.Equal(t, component.StabilityLevelDevelopment, NewFactory().MetricsStability())
	assert.True(t, newStage(t, func(*Config) {}).Capabilities().MutatesData, "points are removed in place")
}

// An agent's reports go on as they are, over the bounds too, and the table has them.
func TestForwardAll(t *testing.T) {
	s := bounded(t, func(c *Config) { c.Forward = ForwardAll })
	for i := range 3 {
		for _, node := range []string{"a", "b"} {
			md := report(node, time.Duration(i)*10*time.Second, 1, 2)
			points := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints()
			points.At(1).Attributes().PutEmptyBytes("odd")
			want := pmetric.NewMetrics()
			md.CopyTo(want)
			require.NoError(t, s.ConsumeMetrics(t.Context(), md))
			require.NoError(t, pmetrictest.CompareMetrics(want, s.got[0]))
			s.took()
		}
	}
	require.NoError(t, s.ConsumeMetrics(t.Context(), pmetric.NewMetrics()))
	calls, _ := s.took()
	assert.Equal(t, 1, calls, "the answer to an empty report has the threshold, too")
	s.figures(map[string]int64{"nodes": 1, "series": 2, "nodes_pending": 0, "untracked_points": 6, "heartbeats": 0})
}
