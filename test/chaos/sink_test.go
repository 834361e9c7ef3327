// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/otlptranslator"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // what exporters compress with

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

// sink is an OTLP server that keeps what it was told last, whatever the
// timestamps say. Beside each agent one hears what that agent passes on: the
// truth with the scores and the node's own verdicts.
type sink struct {
	pmetricotlp.UnimplementedGRPCServer
	addr string

	mu     sync.Mutex
	now    map[string]series    // by resource, as of its last report
	newest map[string]stamped   // by series, of all reports
	said   map[string]time.Time // when a series was in a report last
	names  map[string]string    // OTLP's by Prometheus's
	points int
	delay  time.Duration // until it answers; less than 0 is never
}

type stamped struct {
	value
	at pcommon.Timestamp
}

func newSink(t *testing.T) *sink {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &sink{addr: ln.Addr().String(), now: map[string]series{}, newest: map[string]stamped{}, said: map[string]time.Time{}, names: map[string]string{}}
	srv := grpc.NewServer()
	pmetricotlp.RegisterGRPCServer(srv, s)
	var done sync.WaitGroup
	done.Go(func() { _ = srv.Serve(ln) })
	t.Cleanup(func() {
		srv.Stop()
		done.Wait()
	})
	return s
}

// Export implements pmetricotlp.GRPCServer.
func (s *sink) Export(ctx context.Context, req pmetricotlp.ExportRequest) (pmetricotlp.ExportResponse, error) {
	if err := s.dawdle(ctx); err != nil {
		return pmetricotlp.NewExportResponse(), err
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	md := req.Metrics()
	s.points += md.DataPointCount()
	for _, rm := range md.ResourceMetrics().All() {
		said := series{}
		s.read(rm, said)
		for key := range said {
			s.said[key] = now
		}
		// A node has two resources: what it reads, and what the agent makes of it.
		if host, ok := rm.Resource().Attributes().Get("host.name"); ok {
			s.now[host.Str()+","+rm.ScopeMetrics().At(0).Scope().Name()] = said
		}
	}
	return pmetricotlp.NewExportResponse(), nil
}

// dawdle waits for as long as an answer takes.
func (s *sink) dawdle(ctx context.Context) error {
	s.mu.Lock()
	delay := s.delay
	s.mu.Unlock()
	if delay == 0 {
		return nil
	}
	var over <-chan time.Time
	if delay > 0 {
		over = time.After(delay)
	}
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// setDelay makes every answer take a time, less than 0 for ever.
func (s *sink) setDelay(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// read takes in a resource, and adds its series to a report.
func (s *sink) read(rm pmetric.ResourceMetrics, said series) {
	eachPoint(rm, func(m pmetric.Metric, metric string, labels map[string]string, p pmetric.NumberDataPoint) {
		s.names[metric] = m.Name()
		key := said.add(metric, labels, numberOf(p))
		switch last, ok := s.newest[key]; {
		case p.Flags().NoRecordedValue():
			delete(said, key)
			delete(s.newest, key)
		case !ok || p.Timestamp() >= last.at:
			s.newest[key] = stamped{said[key], p.Timestamp()}
		}
	})
}

// eachPoint calls f with each point of a resource, and the metric and labels
// that the Prometheus exporter has to make of it.
func eachPoint(rm pmetric.ResourceMetrics, f func(pmetric.Metric, string, map[string]string, pmetric.NumberDataPoint)) {
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			kind := otlptranslator.MetricType(otlptranslator.MetricTypeGauge)
			var points pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeSum {
				kind, points = otlptranslator.MetricTypeMonotonicCounter, m.Sum().DataPoints()
			} else {
				points = m.Gauge().DataPoints()
			}
			for _, p := range points.All() {
				labels := map[string]string{}
				for _, attrs := range []pcommon.Map{rm.Resource().Attributes(), p.Attributes()} {
					for k, v := range attrs.All() {
						labels[prometheusLabel(k)] = v.AsString()
					}
				}
				f(m, prometheusName(m.Name(), m.Unit(), kind), labels, p)
			}
		}
	}
}

func numberOf(p pmetric.NumberDataPoint) float64 {
	if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
		return float64(p.IntValue())
	}
	return p.DoubleValue()
}

// state returns the newest value of every series.
func (s *sink) state() series {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := series{}
	for key, x := range s.newest {
		all[key] = x.value
	}
	return all
}

// current returns what was said last of every resource.
func (s *sink) current() series {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := series{}
	for _, said := range s.now {
		maps.Copy(all, said)
	}
	return all
}

// saidWithin reports whether a series was in a report lately.
func (s *sink) saidWithin(key string, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.said[key]
	return ok && time.Since(at) <= d
}

// count returns how many points came since the last reset.
func (s *sink) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.points)
}

func (s *sink) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.points = 0
}

// band returns how far the value of a Prometheus metric may be from the truth.
func (s *sink) band(cache *deadband.Cache, metric string) statetable.Band {
	return deadband.Of(cache, s.otlpName(metric))
}

// otlpName is the name that a Prometheus metric had before.
func (s *sink) otlpName(metric string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.names[metric]
}

// hasNode reports whether a node has said anything.
func (s *sink) hasNode(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for resource := range s.now {
		if strings.HasPrefix(resource, name+",") {
			return true
		}
	}
	return false
}
