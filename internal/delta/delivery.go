// SPDX-License-Identifier: Apache-2.0

package delta // import "github.com/gpu-collector/gpu-collector/internal/delta"

import (
	"errors"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// maxRefusals is how many batches in a row may be refused for good until they
// are no longer halved: one bad point among 30,000 takes 15 halvings, and where
// everything is refused it should not be sent over and over.
const maxRefusals = 32

// Hop is where a buffer's batches go.
type Hop struct {
	// Send delivers a batch, and may do with it what it wants.
	Send func(md pmetric.Metrics, points, heartbeats int) error
	// Reads is whether Send leaves a batch as it is.
	Reads bool
	// Enough, unless nil, is asked between batches whether the rest waits for the
	// next Flush, with what came meanwhile.
	Enough func() bool
	// Permanent reports whether the error is for good.
	Permanent func(error) bool
	// Sent, unless nil, is called for nodes that were delivered.
	Sent func(statetable.NodeKey)
	// Forget is called for each node that lost points.
	Forget func(statetable.NodeKey)
}

// batch is nodes that are sent together, or the points of one node from and up
// to a place in their order.
type batch struct {
	nodes    []*bufferNode
	from, to int
	bytes    int // as OTLP, 0 where it is not known
}

// delivery is one Flush.
type delivery struct {
	Hop
	maxBytes int
	proto    pmetric.ProtoMarshaler
	refusals int // in a row
	given    int // points given up
	dropped  error
}

// next is the batch that nodes begin with: as many as fit, and at least one.
func (d *delivery) next(nodes []*bufferNode) batch {
	n, size, exact := 0, 0, true
	for n < len(nodes) {
		more := sizeIn(nodes[n].size(&d.proto))
		if n > 0 && size+more > d.maxBytes {
			break
		}
		size += more
		exact = exact && !nodes[n].markers // which are divided
		n++
	}
	b := whole(nodes[:n])
	if exact && size <= d.maxBytes { // else it is measured once more
		b.bytes = size
	}
	return b
}

// sizeIn is what a resource of so many bytes adds to a message: its field's tag,
// its length and itself.
func sizeIn(bytes int) int { return protowire.SizeTag(1) + protowire.SizeBytes(bytes) }

func whole(nodes []*bufferNode) batch { return batch{nodes: nodes, to: nodes[0].points} }

// halves are the batch in two, if it can be.
func (b batch) halves() (first, second batch, ok bool) {
	if half := len(b.nodes) / 2; half > 0 {
		return whole(b.nodes[:half]), whole(b.nodes[half:]), true
	}
	half := b.from + (b.to-b.from)/2
	return batch{nodes: b.nodes, from: b.from, to: half}, batch{nodes: b.nodes, from: half, to: b.to}, half > b.from
}

// isPart reports whether the batch is not all of its node.
func (b batch) isPart() bool { return len(b.nodes) == 1 && b.to-b.from < b.nodes[0].points }

// done has its nodes be done with, at the end of the last part.
func (b batch) done() {
	if b.to == b.nodes[0].points {
		for _, n := range b.nodes {
			n.done = true
		}
	}
}

// metrics is what the batch holds. A part of a node is a copy; whole nodes are
// without it until restore.
func (b batch) metrics() pmetric.Metrics {
	md := pmetric.NewMetrics()
	md.ResourceMetrics().EnsureCapacity(len(b.nodes))
	for _, n := range b.nodes {
		rm := md.ResourceMetrics().AppendEmpty()
		if b.isPart() {
			n.rm.CopyTo(rm)
			markersLast(rm)
			heartbeatLast(rm)
			keepPoints(rm, b.from, b.to)
		} else {
			n.rm.MoveTo(rm)
			if n.markers {
				markersLast(rm)
			}
		}
	}
	return md
}

var errChanged = errors.New("the next component changed values that it refused, although it declares that it only reads them")

// restore gives whole nodes back what they hold: md, or what was encoded of it before
// somebody might have changed it.
func (b batch) restore(md pmetric.Metrics, encoded []byte) (err error) {
	if b.isPart() {
		return nil
	}
	if encoded != nil {
		if md, err = (&pmetric.ProtoUnmarshaler{}).UnmarshalMetrics(encoded); err != nil {
			return err
		}
	}
	if md.IsReadOnly() { // several took it
		own := pmetric.NewMetrics()
		md.CopyTo(own)
		md = own
	}
	if md.ResourceMetrics().Len() != len(b.nodes) {
		return errChanged
	}
	for i, n := range b.nodes {
		md.ResourceMetrics().At(i).MoveTo(n.rm)
		n.index = nil
	}
	return nil
}

// heartbeatLast has the heartbeat go with a node's last part: by it the next tier
// knows that what it was not told is as before, see statetable.Report.Repeated.
func heartbeatLast(rm pmetric.ResourceMetrics) {
	rm.ScopeMetrics().Sort(func(a, b pmetric.ScopeMetrics) bool {
		return a.Scope().Name() != ScopeName && b.Scope().Name() == ScopeName
	})
}

// deliver sends the batch, in pieces where it is too large or refused for good,
// and returns an error where it is to be tried again. The next hop refuses a
// message as a whole, for its size or for one node in it.
//
// Where the next hop may change a batch, deliver encodes it before it sends it. That
// takes less time than a copy, and only a refusal reads it.
func (d *delivery) deliver(b batch) error {
	md := b.metrics()
	points := md.DataPointCount()
	first, second, divisible := b.halves()
	if b.bytes == 0 {
		b.bytes = d.proto.MetricsSize(md)
	}
	if divisible && b.bytes > d.maxBytes {
		if err := b.restore(md, nil); err != nil {
			return d.giveUp(b, points, err) // nothing is decoded here
		}
		return d.both(first, second)
	}
	var encoded []byte
	if !d.Reads {
		var err error
		if encoded, err = d.proto.MarshalMetrics(md); err != nil {
			return d.giveUp(b, points, err) // pdata has no way to fail here
		}
	}
	refused := d.Send(md, points, heartbeats(md))
	if refused == nil {
		d.refusals = 0
		b.done()
		return nil
	}
	if err := b.restore(md, encoded); err != nil {
		return d.giveUp(b, points, err)
	}
	if !d.Permanent(refused) {
		return refused
	}
	if d.refusals++; divisible && d.refusals < maxRefusals {
		return d.both(first, second)
	}
	return d.giveUp(b, points, refused)
}

func (d *delivery) giveUp(b batch, points int, err error) error {
	if d.dropped == nil {
		d.dropped = err
	}
	d.given += points
	for _, n := range b.nodes {
		d.Forget(n.key)
	}
	b.done()
	return nil
}

func (d *delivery) both(first, second batch) error {
	if err := d.deliver(first); err != nil {
		return err
	}
	return d.deliver(second)
}

// heartbeats counts those in md, which Send may change.
func heartbeats(md pmetric.Metrics) int {
	count := 0
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			if sm.Scope().Name() != ScopeName {
				continue
			}
			for _, m := range sm.Metrics().All() {
				if m.Name() == gpusemconv.MetricNodeHeartbeat {
					count += metricreading.Count(m)
				}
			}
		}
	}
	return count
}

// keepPoints removes the points before from, and from to on.
func keepPoints(rm pmetric.ResourceMetrics, from, to int) {
	i := -1
	rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
		sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
			removePoints(m, func(pmetric.DataPointFlags) bool {
				i++
				return i < from || i >= to
			})
			return metricreading.Count(m) == 0
		})
		return sm.Metrics().Len() == 0
	})
}
