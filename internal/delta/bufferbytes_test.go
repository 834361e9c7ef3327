// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
)

// long is a node's report with points of so many bytes, and its heartbeat. Exemplars are
// of a point and not of its series.
func long(node string, first, points, text, exemplar int) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("m")
	data := m.SetEmptyGauge().DataPoints()
	for i := range points {
		dp := data.AppendEmpty()
		dp.SetIntValue(1)
		dp.Attributes().PutStr("k", fmt.Sprint(first+i, strings.Repeat("x", text)))
		if exemplar > 0 {
			dp.Exemplars().AppendEmpty().FilteredAttributes().PutStr("e", strings.Repeat("x", exemplar))
		}
	}
	heartbeat(rm, pcommon.Timestamp(testEpoch))
	return md
}

// holds is what the buffer has, as OTLP and as room.
func (b *Buffer) holds() (bytes, room int) {
	for i := range b.shards {
		for _, n := range b.shards[i].nodes {
			size := b.proto.ResourceMetricsSize(n.rm)
			bytes += size
			room += max(n.points, size/pointBytes)
		}
	}
	return bytes, room
}

// flushed empties a buffer and returns how many points went out.
func flushed(t require.TestingT, b *Buffer) (points int) {
	held, dropped := flush(b, Hop{
		Send: func(_ pmetric.Metrics, n, _ int) error { points += n; return nil },
	})
	require.NoError(t, errors.Join(held, dropped))
	require.Zero(t, b.Points())
	return points
}

// Ten times the room in long texts: in new nodes, in new series of one node, and in
// exemplars of known series.
func TestLongPointsTakeTheRoomOfSeveral(t *testing.T) {
	const room = 1000
	limits := Limits{Points: room, NodePoints: 10_000, BatchBytes: 1 << 20}
	for name, push := range map[string]func(b *Buffer, i int){
		"nodes":     func(b *Buffer, i int) { take(b, long(strconv.Itoa(i), 0, 5, 16<<10, 0)) },
		"series":    func(b *Buffer, i int) { take(b, long("n", 5*i, 5, 16<<10, 0)) },
		"exemplars": func(b *Buffer, i int) { take(b, long("n", 5*i%100, 5, 10, i/20*4<<10)) },
		"resources": func(b *Buffer, i int) { take(b, long(fmt.Sprint(i, strings.Repeat("x", 64<<10)), 0, 5, 10, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			// A heartbeat of a known node always finds room, with its resource.
			b := NewBuffer(limits, func(statetable.NodeKey) bool { return name != "resources" })
			for i := range 125 { // of 80 KiB each
				push(b, i)
				bytes, held := b.holds()
				require.LessOrEqual(t, bytes, room*pointBytes+200*pointBytes, "and the heartbeats")
				require.EqualValues(t, held, b.Points())
			}
			bytes, _ := b.holds()
			assert.Greater(t, bytes, room*pointBytes/2, "there is room")
			assert.Positive(t, b.Dropped())
			flushed(t, b)
		})
	}
	t.Run("usual points", func(t *testing.T) {
		b := NewBuffer(limits, nil)
		require.Empty(t, take(b, long("n", 0, room-1, 50, 0)))
		assert.EqualValues(t, room, b.Points(), "one each, with the heartbeat")
		assert.Equal(t, room, flushed(t, b))
	})
}

// A node whose long points find no room goes on to say that it lives.
func TestANodeWithoutRoomForLongPointsIsNotSilent(t *testing.T) {
	b := NewBuffer(Limits{Points: 10, NodePoints: 100, BatchBytes: 1 << 20}, nil)
	assert.Len(t, take(b, long("a", 0, 5, 16<<10, 0)), 1)
	assert.EqualValues(t, 5, b.Dropped())
	take(b, long("a", 0, 5, 16<<10, 0))
	assert.EqualValues(t, 1, b.Replaced(), "its heartbeat is the last one")
	assert.Equal(t, 1, flushed(t, b))
}

// Any reports, flushes and refusals: the room that is taken is that of what is held.
func TestTheBuffersRoomIsThatOfItsPoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		known := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "known")
		var id identity
		is := id.node(long(known, 0, 0, 0, 0).ResourceMetrics().At(0).Resource().Attributes())
		limits := Limits{Points: rapid.IntRange(1, 120).Draw(t, "points"), NodePoints: 20, BatchBytes: 4000}
		b := NewBuffer(limits, func(key statetable.NodeKey) bool { return known == "" || key == is })
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				take(b, long(
					rapid.SampledFrom([]string{"a", "b", strings.Repeat("c", 3000)}).Draw(t, "node"), rapid.IntRange(0, 10).Draw(t, "first"),
					rapid.IntRange(0, 15).Draw(t, "count"), rapid.SampledFrom([]int{0, 10, 5000}).Draw(t, "text"), rapid.SampledFrom([]int{0, 0, 3000}).Draw(t, "exemplar"),
				))
			},
			"flush": func(t *rapid.T) {
				left := rapid.IntRange(0, 3).Draw(t, "sent")
				permanent := rapid.Bool().Draw(t, "permanent")
				_, _ = flush(b, Hop{
					Send: func(pmetric.Metrics, int, int) error {
						if left--; left < 0 {
							return errors.New("no")
						}
						if rapid.IntRange(0, 2).Draw(t, "meanwhile") == 0 {
							take(b, long("a", rapid.IntRange(0, 10).Draw(t, "later"), 5, 5000, 0))
						}
						return nil
					},
					Permanent: func(error) bool { return permanent },
					Forget:    func(statetable.NodeKey) {},
				})
			},
			"": func(t *rapid.T) {
				_, room := b.holds()
				require.EqualValues(t, room, b.Points())
			},
		})
		flushed(t, b)
	})
}
