// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"maps"
	"net"
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

	"github.com/gpu-collector/gpu-collector/internal/deadband"
	"github.com/gpu-collector/gpu-collector/internal/statetable"
)

// sink is an OTLP server that keeps what it was told last, whatever the
// timestamps say. Beside each agent one hears what that agent passes on: the
// truth with the scores and the node's own verdicts.
type sink struct {
	pmetricotlp.UnimplementedGRPCServer
	addr string

	mu     sync.Mutex
	now    map[string]series    // by resource, as of its last report
	said   map[string]time.Time // when a series was in a report last
	names  map[string]string    // OTLP's by Prometheus's
	points int
	wait   <-chan struct{} // an answer waits for it
}

func newSink(t *testing.T) *sink {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &sink{addr: ln.Addr().String(), now: map[string]series{}, said: map[string]time.Time{}, names: map[string]string{}}
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
	s.mu.Lock()
	wait := s.wait
	s.mu.Unlock()
	if wait != nil {
		select {
		case <-wait:
		case <-ctx.Done():
			return pmetricotlp.NewExportResponse(), ctx.Err()
		}
	}
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	md := req.Metrics()
	s.points += md.DataPointCount()
	for _, rm := range md.ResourceMetrics().All() {
		said := series{}
		readSeries(said, rm, s.names)
		for key := range said {
			s.said[key] = now
		}
		// A node has two resources: what it reads, and what the agent makes of it.
		host, _ := rm.Resource().Attributes().Get("host.name")
		s.now[host.AsString()+","+rm.ScopeMetrics().At(0).Scope().Name()] = said
	}
	return pmetricotlp.NewExportResponse(), nil
}

// readSeries adds what the Prometheus exporter has to make of a resource, and to
// names, if any, the metrics' OTLP names by those of Prometheus.
func readSeries(into series, rm pmetric.ResourceMetrics, names map[string]string) {
	put := func(to map[string]string, attrs pcommon.Map) {
		for k, v := range attrs.All() {
			to[prometheusLabel(k)] = v.AsString()
		}
	}
	for _, sm := range rm.ScopeMetrics().All() {
		for _, m := range sm.Metrics().All() {
			var name string
			var points pmetric.NumberDataPointSlice
			if m.Type() == pmetric.MetricTypeSum {
				name, points = prometheusName(m.Name(), m.Unit(), otlptranslator.MetricTypeMonotonicCounter), m.Sum().DataPoints()
			} else {
				name, points = prometheusName(m.Name(), m.Unit(), otlptranslator.MetricTypeGauge), m.Gauge().DataPoints()
			}
			if names != nil {
				names[name] = m.Name()
			}
			for _, p := range points.All() {
				labels := map[string]string{}
				put(labels, rm.Resource().Attributes())
				put(labels, p.Attributes())
				if p.ValueType() == pmetric.NumberDataPointValueTypeInt {
					into.add(name, labels, float64(p.IntValue()))
				} else {
					into.add(name, labels, p.DoubleValue())
				}
			}
		}
	}
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
	s.mu.Lock()
	defer s.mu.Unlock()
	return deadband.Of(cache, s.names[metric])
}
