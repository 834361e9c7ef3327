// SPDX-License-Identifier: Apache-2.0

// Package delta reduces OTLP metrics to what the next hop does not have,
// by internal/delta/statetable. It has two ways in: Filter for decoded reports, and
// Wire for the bytes of a push, which it compares without decoding them. Both
// decide alike and share an Engine's table.
package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"math"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// OpaqueInterval is a table's setting of that name. A tier after this one cannot repeat
// opaque series, so they are due as often as Prometheus wants a point: within half of
// the 5 m of its query.lookback-delta.
const OpaqueInterval = 2 * time.Minute

// ScopeName is the instrumentation scope of the heartbeats.
const ScopeName = "github.com/gpu-collector/gpu-collector/processor/diffprocessor"

// Judge is what both ways in decide by. Set Report and Now before each report.
type Judge struct {
	Report *statetable.Report
	// Now is when the report came, which is the heartbeat that it gets. No timestamp that
	// goes on is more than maxOff later.
	Now time.Time
	// Bands are the deadbands, nil for none.
	Bands *deadband.Cache
	Counts
	// Nodes are those of the report's resources that have points.
	Nodes []statetable.NodeKey

	band   statetable.Band // of the metric at hand
	isBeat bool            // it is a heartbeat from another tier

	losses uint64 // of the table when the report began

	now, latest pcommon.Timestamp // Now, and the latest that is believed
	stamp       pcommon.Timestamp // of the point just judged, 0 for its own, see statetable.Report.Stamp

	// Of the resource at hand:
	newest  pcommon.Timestamp // latest timestamp of its points, without heartbeats
	clock   pcommon.Timestamp // likewise, as the sender had it
	beat    pcommon.Timestamp // its heartbeat from another tier, 0 for none
	points  int64             // that it came with
	hasBeat bool              // it came with a heartbeat, from another tier
	ended   bool              // it came with points without a value
	spoke   bool              // the node itself spoke, not only a gateway about it
	over    [statetable.Limits]int64
}

// Counts are of a report's points.
type Counts struct {
	// Received are those that came in, Forwarded and Heartbeats those that go on.
	Received, Forwarded, Heartbeats int64
	// Ahead got the time of receipt because theirs was to come.
	Ahead int64
	// Vanished are the series that the report declares gone.
	Vanished int64
	// Bytes are those of what goes on as it came in, 0 where nobody has counted. pdata
	// writes a part that its sender left out as an empty one, so it may have a few more.
	Bytes int
	// Over are the points that were dropped for want of room.
	Over []Over
}

// Over are points of a cluster that the table had no room for, by its limit.
type Over struct {
	Cluster string
	Limit   statetable.Limit
	Points  int64
}

// maxOff is how far in the future a point's time may be, and how far a heartbeat's from
// ours: far more than clocks in step differ by. A receiver keeps the newest point, so a
// point from further ahead would hide all later ones, and a silent node would not look
// silent.
const maxOff = time.Minute

// Reset lets go of the report.
func (j *Judge) Reset() {
	if cap(j.Nodes) > keepNodes {
		j.Nodes = nil
	}
	*j = Judge{Bands: j.Bands, Nodes: j.Nodes[:0]}
}

// keepNodes is how much room a report of many nodes leaves for the next.
const keepNodes = 1 << 10

func (j *Judge) open(node statetable.NodeKey) {
	j.newest, j.clock, j.beat, j.points, j.hasBeat, j.spoke = 0, 0, 0, 0, false, false
	j.now, j.latest = pcommon.NewTimestampFromTime(j.Now), latest(j.Now)
	j.ended = false
	j.over = [statetable.Limits]int64{}
	j.Nodes = append(j.Nodes, node)
	j.Report.OpenNode(node)
}

// latest is the latest timestamp that is believed in a report that comes now.
func latest(now time.Time) pcommon.Timestamp { return pcommon.NewTimestampFromTime(now.Add(maxOff)) }

func (j *Judge) close() {
	j.Received += j.points
	j.Report.CloseNode()
}

// see takes note of a metric's name, string or bytes of the message.
func see[T string | []byte](j *Judge, name T, isGauge bool) {
	j.spoke = j.spoke || !reading.OfGateway(name)
	j.band = deadband.Of(j.Bands, name)
	j.isBeat = isGauge && string(name) == gpusemconv.MetricNodeHeartbeat
	j.hasBeat = j.hasBeat || j.isBeat
}

// beatOf is the time that a heartbeat tells in seconds, 0 for none that can be.
func beatOf(kind pmetric.NumberDataPointValueType, value uint64) pcommon.Timestamp {
	seconds := float64(int64(value))
	if kind == pmetric.NumberDataPointValueTypeDouble {
		seconds = math.Float64frombits(value)
	}
	if !(seconds > 0) { // also NaN
		return 0
	}
	return pcommon.Timestamp(min(seconds*1e9, math.MaxInt64))
}

// isOff reports whether a heartbeat is not of these minutes.
func isOff(beat, latest pcommon.Timestamp) bool {
	return beat > latest || beat+2*pcommon.Timestamp(maxOff) < latest
}

// relayed takes note of a heartbeat from another tier, and returns the time that it gets.
// Where that tier's clock is off, it is that of receipt if the node has reported there
// since, and else the last one: what a tier repeats of a silent node is no sign of life.
func (j *Judge) relayed(beat pcommon.Timestamp) pcommon.Timestamp {
	last, news := j.Report.Heard(uint64(beat))
	switch {
	case !isOff(beat, j.latest):
	case news || last == 0 && beat > j.latest:
		beat = j.now
	case last != 0:
		beat = pcommon.Timestamp(last)
	}
	j.beat = max(j.beat, beat)
	return beat
}

// vanished yields the series to be declared gone, and when. Call it once the
// points are judged, and before heartbeatDue.
func (j *Judge) vanished(yield func(s *statetable.Series, at pcommon.Timestamp)) {
	if j.hasBeat {
		j.Report.Relayed()
	}
	if j.points == 0 || !j.spoke {
		return
	}
	switch {
	case !j.hasBeat:
		j.Report.Said(uint64(j.time()), uint64(j.now))
		if j.clock != 0 {
			j.Report.Behind(j.Now.Sub(j.clock.AsTime()))
		}
	case j.beat != 0:
		j.Report.Said(uint64(j.time()), uint64(j.beat))
	}
	for s := range j.Report.Vanished {
		j.Vanished++
		yield(&s, j.time())
	}
}

// repeated yields what goes out again although the resource does not hold it,
// because another tier sends only what changed. It is true as of the heartbeat.
// Call it after vanished.
func (j *Judge) repeated(yield func(s *statetable.Series, at pcommon.Timestamp)) {
	if !j.hasBeat {
		return
	}
	at := j.time()
	for s := range j.Report.Repeated(uint64(at)) {
		j.Forwarded++
		yield(&s, at)
	}
}

// time is that of the resource's report by the node's own clock, which orders all that is
// told of the node. With a heartbeat alone it is as far behind that as it was before.
func (j *Judge) time() pcommon.Timestamp {
	switch {
	case j.newest != 0:
		return min(j.newest, j.now)
	case j.beat != 0:
		return min(j.beat-pcommon.Timestamp(j.Report.Lag()), j.now)
	default:
		return j.now
	}
}

// heartbeatDue reports whether a heartbeat goes with the resource, and for
// which time: that of receipt, since a node's clock says nothing of its life. A resource
// without points says nothing, not even that the node is there.
func (j *Judge) heartbeatDue(isNode bool) (at pcommon.Timestamp, due bool) {
	if j.points == 0 || !j.spoke || j.hasBeat || !isNode || !j.Report.HeartbeatDue(uint64(j.now)) {
		return 0, false
	}
	j.Heartbeats++
	return j.now, true
}

// pass counts points that are forwarded as they are, and reports whether none is: a
// delta that is dropped is lost for good, for the next one does not include it. So
// points are dropped with their node alone.
func (j *Judge) pass(points int) bool {
	j.points += int64(points)
	if j.Report.Drops() {
		j.over[j.Report.Limit()] += int64(points)
		return true
	}
	j.Forwarded += int64(points)
	return points == 0
}

// point reports whether the point is to be removed. One without a value ends
// its series for the next hop, so the value after it is news. Its time is one
// that is believed.
func (j *Judge) point(p statetable.Point, start, at pcommon.Timestamp, flags pmetric.DataPointFlags, valid bool) bool {
	j.points++
	if j.stamp = 0; !j.isBeat {
		j.newest = max(j.newest, at)
	}
	if !valid || flags.NoRecordedValue() {
		j.ended = j.ended || flags.NoRecordedValue()
		if j.Report.Forget(p.Key) == statetable.Over {
			j.over[j.Report.Limit()]++
			return true
		}
		j.Forwarded++
		return false
	}
	p.Band, p.Heartbeat = j.band, j.isBeat
	p.Time, p.Received = uint64(at), uint64(j.now)
	p.Origin, p.Start = uint64(start), uint64(start)
	if flags != 0 {
		p.Origin, p.Start = statetable.Mix(p.Origin, uint64(flags)), 0
	}
	verdict := j.Report.Observe(&p)
	if j.stamp = pcommon.Timestamp(j.Report.Stamp()); j.stamp != 0 && !j.isBeat {
		j.newest = max(j.newest, j.stamp)
	}
	switch verdict {
	case statetable.Forward:
	case statetable.Unchanged, statetable.Stale:
		return true
	case statetable.Over:
		j.over[j.Report.Limit()]++
		return true
	}
	j.Forwarded++
	return false
}

// nameless takes back the point just judged, which is new: there is no room for its name.
func (j *Judge) nameless() {
	j.Forwarded--
	j.over[j.Report.Limit()]++
}

// isOver reports whether points of the resource at hand were over a limit, which wants
// tell.
func (j *Judge) isOver() bool { return j.over != [statetable.Limits]int64{} }

// tell notes in whose name points of the resource at hand were over a limit.
func (j *Judge) tell(resource []statetable.Attr) {
	names := statetable.Identify(resource)
	cluster := names.Cluster("", "")
	for limit, points := range j.over {
		if points == 0 {
			continue
		}
		over := Over{Cluster: cluster, Limit: statetable.Limit(limit)}
		same := func(o Over) bool { return o.Cluster == over.Cluster && o.Limit == over.Limit }
		at := slices.IndexFunc(j.Over, same)
		if at < 0 && len(j.Over) >= maxOver {
			over.Cluster = wire.Overflow
			at = slices.IndexFunc(j.Over, same)
		}
		if at < 0 {
			at = len(j.Over)
			j.Over = append(j.Over, over)
		}
		j.Over[at].Points += points
	}
}

// maxOver bounds how many of a report's clusters are told apart: a push of a hundred
// thousand made-up clusters must not compare each with all others.
const maxOver = 64
