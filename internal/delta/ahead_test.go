// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

var stampedAt = regexp.MustCompile(`"timeUnixNano":"(\d+)"`)

// times are the timestamps of the report's points, each once.
func times(t *testing.T, msg []byte) map[time.Time]bool {
	t.Helper()
	md, err := decode(msg)
	require.NoError(t, err)
	md.ResourceMetrics().At(0).ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool { return sm.Scope().Name() == ScopeName })
	text, err := new(pmetric.JSONMarshaler).MarshalMetrics(md)
	require.NoError(t, err)
	out := map[time.Time]bool{}
	for _, m := range stampedAt.FindAllSubmatch(text, -1) {
		at, err := strconv.ParseInt(string(m[1]), 10, 64)
		require.NoError(t, err)
		out[time.Unix(0, at).UTC()] = true
	}
	return out
}

// heartbeatOf is the zero time where there is none.
func heartbeatOf(t testT, msg []byte) time.Time {
	t.Helper()
	md, err := decode(msg)
	require.NoError(t, err)
	if md.DataPointCount() == 0 {
		return time.Time{}
	}
	scopes := md.ResourceMetrics().At(0).ScopeMetrics()
	m := scopes.At(scopes.Len() - 1).Metrics().At(0)
	if m.Name() != gpusemconv.MetricNodeHeartbeat {
		return time.Time{}
	}
	dp := m.Gauge().DataPoints().At(0)
	assert.Equal(t, dp.IntValue(), dp.Timestamp().AsTime().Unix())
	return dp.Timestamp().AsTime()
}

// TestTimesToComeBecomeTheTimeOfReceipt: whoever keeps the newest point of a
// series would otherwise show it until its time has come.
func TestTimesToComeBecomeTheTimeOfReceipt(t *testing.T) {
	now := testTime.UTC()
	for ahead, want := range map[time.Duration]time.Time{
		-time.Second:         now.Add(-time.Second),
		time.Minute:          now.Add(time.Minute), // clocks differ
		time.Minute + 1:      now,
		2 * time.Minute:      now,
		4 * time.Minute:      now,
		365 * 24 * time.Hour: now,
	} {
		t.Run(ahead.String(), func(t *testing.T) {
			s := newSame()
			out := s.push(t, encode(t, mixedAt("", "n", false, now.Add(ahead))), 0, true)
			assert.Equal(t, map[time.Time]bool{want: true}, times(t, out))
			assert.Equal(t, now, heartbeatOf(t, out))

			// The clock is set right: nothing is older than what went before.
			later := mixedAt("", "n", false, now.Add(20*time.Second))
			later.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetDoubleValue(2)
			if ahead != time.Minute {
				out = s.push(t, encode(t, later), 20*time.Second, true)
				assert.Equal(t, map[time.Time]bool{now.Add(20 * time.Second): true}, times(t, out))
				assert.Equal(t, now.Add(20*time.Second), heartbeatOf(t, out))
				assert.Zero(t, s.decoded.table.Stats().Stale)
			}
		})
	}
}

// TestARelayedHeartbeatIsNotToCome: the tier below may have a wrong clock, too.
func TestARelayedHeartbeatIsNotToCome(t *testing.T) {
	for name, set := range map[string]func(pmetric.NumberDataPoint){
		"int":    func(dp pmetric.NumberDataPoint) { dp.SetIntValue(testTime.Unix() + 61) },
		"double": func(dp pmetric.NumberDataPoint) { dp.SetDoubleValue(float64(testTime.Unix()) * 2) },
	} {
		t.Run(name, func(t *testing.T) {
			md := pmetric.NewMetrics()
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("host.name", "n")
			heartbeat(rm, pcommon.NewTimestampFromTime(testTime))
			set(rm.ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0))
			assert.Equal(t, testTime.UTC(), heartbeatOf(t, newSame().push(t, encode(t, md), 0, true)))
		})
	}
}

// TestTimesOfAClockThatWasSetBackBecomeTheTimeOfReceipt, for as long as the
// sender's clock is behind what it said before, by all that a retry may be late.
func TestTimesOfAClockThatWasSetBackBecomeTheTimeOfReceipt(t *testing.T) {
	now := testTime.UTC()
	for name, first := range map[string]time.Duration{"in step": 0, "somewhat ahead": 50 * time.Second} {
		t.Run(name, func(t *testing.T) {
			s := newSame()
			s.push(t, encode(t, mixedAt("", "n", false, now.Add(first))), 0, true)
			for i, clock := range []time.Duration{-time.Hour, -time.Hour, -9 * time.Minute, 0} {
				at := time.Duration(i+1) * time.Minute
				md := mixedAt("", "n", false, now.Add(at+clock))
				points := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
				points.At(0).Gauge().DataPoints().At(0).SetDoubleValue(float64(i))
				points.RemoveIf(func(m pmetric.Metric) bool { return i < 2 && m.Name() != "m1" })
				out := s.push(t, encode(t, md), at, true)
				assert.Equal(t, now.Add(at), gaugeTime(t, out), i)
				assert.Equal(t, now.Add(at), heartbeatOf(t, out), i)
			}
			assert.Zero(t, s.decoded.table.Stats().Stale)
		})
	}
}

func gaugeTime(t *testing.T, msg []byte) time.Time {
	t.Helper()
	md, err := decode(msg)
	require.NoError(t, err)
	m := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
	require.Equal(t, "m1", m.Name())
	return m.Gauge().DataPoints().At(0).Timestamp().AsTime()
}
