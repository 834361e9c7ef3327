// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

// jitter gives some points of a request another value or another time.
func jitter(t *rapid.T, msg []byte) []byte {
	md, err := decode(msg)
	require.NoError(t, err)
	times := rapid.SampledFrom([]time.Duration{
		0, 0, -time.Second, time.Second, 3 * time.Second, time.Minute + time.Second, 4 * time.Minute, 365 * 24 * time.Hour,
		-4 * time.Minute, -6 * time.Minute, -time.Hour,
	})
	values := rapid.SampledFrom([]float64{0, 5, 5.5, 9, math.NaN(), 2 * float64(at/1e9)})
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				var points pmetric.NumberDataPointSlice
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					points = m.Gauge().DataPoints()
				case pmetric.MetricTypeSum:
					points = m.Sum().DataPoints()
				default:
					continue
				}
				for _, dp := range points.All() {
					dp.SetTimestamp(pcommon.Timestamp(at) + pcommon.Timestamp(times.Draw(t, "time")))
					dp.SetStartTimestamp(pcommon.Timestamp(rapid.IntRange(0, 1).Draw(t, "start")))
					dp.SetFlags(pmetric.DataPointFlags(rapid.SampledFrom([]uint32{0, 0, 0, 0, 1, 2, 3}).Draw(t, "flags")))
					if v := values.Draw(t, "value"); rapid.Bool().Draw(t, "double") {
						dp.SetDoubleValue(v)
					} else {
						dp.SetIntValue(int64(v))
					}
				}
			}
		}
	}
	return encode(t, md)
}

// drawRequest joins some forms, as they are or with other values.
func drawRequest(t *rapid.T, forms [][]byte, most int) []byte {
	msg := bytes.Join(rapid.SliceOfN(rapid.SampledFrom(forms), 1, most).Draw(t, "forms"), nil)
	if rapid.Bool().Draw(t, "jitter") {
		msg = jitter(t, msg)
	}
	return msg
}

// For any well-formed requests, in any sequence, whatever the next hop answers,
// the ways in let the same through.
func equivalence(forms [][]byte) func(*rapid.T) {
	return func(t *rapid.T) {
		most := rapid.SampledFrom([]int{1, 3}).Draw(t, "most forms")
		s := newSame(drawSettings(t), func(set *lastvalue.Settings) {
			// Where a node comes twice in a message, Consume ends after the first a series that
			// only the second has. Reduce has seen both, so that it does not end.
			if most > 1 {
				set.VanishedAfter = 0
			}
		})
		var sent [][]byte
		for range rapid.IntRange(1, 8).Draw(t, "pushes") {
			if len(sent) == 0 || rapid.Bool().Draw(t, "new request") {
				sent = append(sent, drawRequest(t, forms, most))
			}
			s.push(t, rapid.SampledFrom(sent).Draw(t, "request"), rapid.IntRange(0, 3).Draw(t, "refused") > 0)
			if rapid.Bool().Draw(t, "flush") {
				s.flush(t)
			}
			s.pass(rapid.SampledFrom([]time.Duration{time.Second, 20 * time.Second, 50 * time.Second, 2 * time.Hour}).Draw(t, "passes"))
		}
		s.end(t, rapid.SampledFrom(sent).Draw(t, "known"))
	}
}

// drawSettings has a table of limits that some requests are over, or of none, with a flush
// interval or without.
func drawSettings(t *rapid.T) func(*lastvalue.Settings) {
	nodes, series := rapid.SampledFrom([]int{8, 1}).Draw(t, "max_nodes"), rapid.SampledFrom([]int{1000, 2}).Draw(t, "max_series")
	bytes, drop := rapid.SampledFrom([]int{0, 1_500, 3_000}).Draw(t, "max_bytes"), rapid.Bool().Draw(t, "drop")
	collect := rapid.Bool().Draw(t, "collect")
	return func(s *lastvalue.Settings) {
		s.MaxNodes, s.MaxSeries, s.MaxBytes, s.DropOver, s.Collect = nodes, series, bytes, drop, collect
	}
}

// wellFormed are the forms that can be decoded, with one resource each.
func wellFormed(t testing.TB) (forms [][]byte) {
	for _, set := range []map[string][]byte{regular(t), irregular()} {
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if md, err := decode(set[name]); err == nil && md.ResourceMetrics().Len() == 1 {
				forms = append(forms, set[name])
			}
		}
	}
	return forms
}

func TestEquivalence(t *testing.T) { rapid.Check(t, equivalence(wellFormed(t))) }
