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
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// tier is a table with a clock of its own.
type tier struct {
	*door
	off time.Duration
}

// receive takes a push in, and returns what goes on and the node's heartbeat, 0 for none.
func (r *tier) receive(t require.TestingT, msg []byte, now time.Duration) (out []byte, beat time.Duration) {
	md, err := decode(msg)
	require.NoError(t, err)
	r.pd.Report, r.pd.Now = r.table.Begin(now), time.Unix(0, int64(testEpoch+now+r.off))
	r.pd.Filter(md)
	r.pd.Report.Commit()
	r.pd.Reset()
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() == gpusemconv.MetricNodeHeartbeat {
					beat = time.Duration(m.Gauge().DataPoints().At(0).IntValue())*time.Second - testEpoch
				}
			}
		}
	}
	out, err = (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
	require.NoError(t, err)
	return out, beat
}

// Nodes and shards with clocks that are off, drift, or are set: the heartbeat that leaves
// the gateway is by the gateway's clock, and stops when the node does, also where the
// shard repeats what it holds of a silent node.
func TestAHeartbeatIsOfTheTimeOfReceipt(t *testing.T) {
	offsets := rapid.SampledFrom([]time.Duration{
		0, -20 * time.Second, -70 * time.Second, -150 * time.Second, -time.Hour, -87_600 * time.Hour,
		20 * time.Second, 5 * time.Minute, time.Hour, 87_600 * time.Hour,
	})
	rapid.Check(t, func(t *rapid.T) {
		always := func(s *statetable.Settings) { s.HeartbeatInterval = 0 }
		shard, gateway := &tier{newDoor(false, always), 0}, &tier{newDoor(false, always), 0}
		relayed := rapid.Bool().Draw(t, "relayed")
		var node time.Duration
		now := time.Minute
		send := func(msg []byte) (beat time.Duration) {
			if relayed {
				msg, _ = shard.receive(t, msg, now)
			}
			_, beat = gateway.receive(t, msg, now)
			return beat
		}
		report := func() []byte {
			md := mixedAt("", "n", false, testTime.Add(now+node))
			if rapid.IntRange(0, 9).Draw(t, "no time") == 0 {
				md = mixedAt("", "n", false, time.Unix(0, 0))
			}
			out, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
			require.NoError(t, err)
			return out
		}
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			node = offsets.Draw(t, "node")
			off := offsets.Draw(t, "shard")
			if off < shard.off { // it has restarted, or its time had gone on
				shard = &tier{newDoor(false, always), off}
			}
			shard.off = off
			drift := time.Duration(rapid.IntRange(-2, 2).Draw(t, "drift")) * time.Second
			for i := range 20 {
				now, node = now+10*time.Second, node+drift
				// A clock of a shard that was just set counts from its second report on. Up to
				// a minute is a heartbeat's own, and may be older than one before.
				if beat := send(report()); i > 6 && (beat != 0 || !relayed) {
					assert.InDelta(t, now.Seconds(), beat.Seconds(), maxOff.Seconds(), "report %d", i)
				}
			}
		}
		if !relayed {
			return
		}
		last := now
		for range 3 {
			now += 4 * time.Minute
			shard.table.Resync("", "")
			r := shard.table.Begin(now)
			md, beats, _ := Held(r, []statetable.NodeKey{keyOf(t, report())}, 1<<20)
			r.Commit()
			require.Equal(t, 1, beats)
			out, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
			require.NoError(t, err)
			_, beat := gateway.receive(t, out, now)
			// What a shard holds that is minutes ahead is of the present once.
			assert.LessOrEqual(t, beat, last+maxOff+min(max(shard.off, 0), 5*time.Minute), "the node is silent since")
		}
	})
}

// A gateway repeats what a shard left out by the node's own clock: by the heartbeat's, the
// tier after it would take the node's changes for old.
func TestRepeatedPointsDoNotOvertakeTheNode(t *testing.T) {
	always := func(s *statetable.Settings) { s.HeartbeatInterval = 0 }
	shard, gateway, root := &tier{newDoor(false, always), 0}, &tier{newDoor(false, always), 0}, &tier{newDoor(false, always), 0}
	now := time.Minute
	push := func(value float64) {
		now += 10 * time.Second
		md := mixedAt("", "n", false, testTime.Add(now-3*time.Minute))
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetDoubleValue(value)
		md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Name() != "m1" })
		msg, err := (&pmetric.ProtoMarshaler{}).MarshalMetrics(md)
		require.NoError(t, err)
		msg, _ = shard.receive(t, msg, now)
		msg, _ = gateway.receive(t, msg, now)
		root.receive(t, msg, now)
	}
	push(1)
	push(1)
	gateway.table.Resync("", "")
	push(1)
	require.NotZero(t, gateway.table.Stats().Repeated)
	push(2)
	assert.Zero(t, root.table.Stats().Stale)
}

func keyOf(t require.TestingT, msg []byte) statetable.NodeKey {
	md, err := decode(msg)
	require.NoError(t, err)
	return new(identity).node(md.ResourceMetrics().At(0).Resource().Attributes())
}
