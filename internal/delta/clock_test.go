// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

func always(s *statetable.Settings) { s.HeartbeatInterval = 0 }

// Nodes and shards with clocks that are off, drift, or are set: the heartbeat that leaves
// the gateway is by the gateway's clock, and stops when the node does, also where the
// shard repeats what it holds of a silent node.
func TestAHeartbeatIsOfTheTimeOfReceipt(t *testing.T) {
	offsets := rapid.SampledFrom([]time.Duration{
		0, -20 * time.Second, -70 * time.Second, -150 * time.Second, -time.Hour, -87_600 * time.Hour,
		20 * time.Second, 5 * time.Minute, time.Hour, 87_600 * time.Hour,
	})
	rapid.Check(t, func(t *rapid.T) {
		shard, gateway := newDoor(always), newDoor(always)
		relayed := rapid.Bool().Draw(t, "relayed")
		now := time.Minute
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			node, off := offsets.Draw(t, "node"), offsets.Draw(t, "shard")
			if off < shard.off { // it has restarted, or its time had gone on
				shard = newDoor(always)
			}
			shard.off = off
			drift := time.Duration(rapid.IntRange(-2, 2).Draw(t, "drift")) * time.Second
			for i := range 20 {
				now, node = now+10*time.Second, node+drift
				at := testTime.Add(now + node)
				if rapid.IntRange(0, 9).Draw(t, "no time") == 0 {
					at = time.Unix(0, 0)
				}
				msg := encode(t, mixedAt("", "n", false, at))
				if relayed {
					msg = shard.push(t, msg, false, now, true)
				}
				// A clock of a shard that was just set counts from its second report on. Up to
				// a minute is a heartbeat's own, and may be older than one before.
				beat := heartbeatOf(t, gateway.push(t, msg, false, now, true))
				if i > 6 && (!relayed || !beat.IsZero()) {
					assert.WithinDuration(t, testTime.Add(now), beat, maxOff, "report %d", i)
				}
			}
		}
		if !relayed {
			return
		}
		// What a shard repeats may be minutes ahead: the gateway takes that for now, once.
		last := testTime.Add(now + maxOff + min(max(shard.off, 0), 5*time.Minute))
		for range 3 {
			now += 4 * time.Minute
			shard.table.Resync("", "")
			r := shard.table.Begin(now)
			for n := range shard.table.Nodes() {
				md, beats, _ := Held(r, []statetable.NodeKey{n.Key}, 1<<20)
				require.Equal(t, 1, beats)
				beat := heartbeatOf(t, gateway.push(t, encode(t, md), false, now, true))
				assert.False(t, beat.After(last), "the node is silent since")
			}
			r.Commit()
		}
	})
}

// Either way in hears a clock that is off, and none in points without a time.
func TestBothDoorsHearAClock(t *testing.T) {
	for _, viaWire := range []bool{false, true} {
		for at, want := range map[time.Duration]int{-150 * time.Second: 1, 0: 0} {
			var told []statetable.Clock
			d := newDoor(always, func(s *statetable.Settings) {
				s.OnClock = func(c *statetable.Clock) { told = append(told, *c) }
			})
			for i := range 5 {
				now := time.Minute + time.Duration(i)*10*time.Second
				stamp := time.Unix(0, 0)
				if want > 0 {
					stamp = testTime.Add(now + at)
				}
				d.push(t, encode(t, mixedAt("", "n", true, stamp)), viaWire, now, true)
			}
			require.Equal(t, viaWire, d.scans > 0)
			require.Len(t, told, want, "by its bytes: %v", viaWire)
		}
	}
}

// A gateway repeats what a shard left out by the node's own clock: by the heartbeat's, the
// tier after it would take the node's changes for old.
func TestRepeatedPointsDoNotOvertakeTheNode(t *testing.T) {
	tiers := []*door{newDoor(always), newDoor(always), newDoor(always)}
	gateway, root := tiers[1], tiers[2]
	for i, value := range []float64{1, 1, 1, 2} {
		if i == 2 {
			gateway.table.Resync("", "")
		}
		now := time.Minute + time.Duration(i)*10*time.Second
		md := mixedAt("", "n", false, testTime.Add(now-3*time.Minute))
		metrics := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
		metrics.At(0).Gauge().DataPoints().At(0).SetDoubleValue(value)
		metrics.RemoveIf(func(m pmetric.Metric) bool { return m.Name() != "m1" })
		msg := encode(t, md)
		for _, tier := range tiers {
			msg = tier.push(t, msg, false, now, true)
		}
	}
	require.NotZero(t, gateway.table.Stats().Repeated)
	assert.Zero(t, root.table.Stats().Stale)
}
