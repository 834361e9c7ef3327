// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"hash/maphash"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

// factReader keeps what the metrics that pass say of each node's GPUs, so that
// an accusation can be explained. It reads whole states and differences alike:
// a point that does not come says nothing, one without a value ends a series.
// Like the observer, it is guarded by the gateway's mutex.
type factReader struct {
	store *reason.Store

	// Of the resource that is being read.
	from     metricreading.Resource
	id       nodeKey
	foreign  bool
	now      time.Time
	node     *reason.Node
	vague    []pmetric.Metric // read last: the others name the GPUs
	failed   error
	rejected map[error]int64
}

func newFactReader(cfg *Config) *factReader {
	return &factReader{rejected: make(map[error]int64), store: reason.New(cfg.facts())}
}

// begin prepares for the metrics of a resource.
func (f *factReader) begin(id nodeKey, caller wire.Caller, now time.Time) {
	f.id, f.now = id, now
	f.foreign = caller.Authenticated && id.cluster != caller.Cluster
}

// end tells what of the resource was rejected, and keeps nothing of it. Refused says that
// it has points that no reader takes.
func (f *factReader) end(ctx context.Context, rejected func(error, int64)) (refused bool) {
	var p metricreading.Point
	for _, m := range f.vague {
		f.read(&p, reading.ByName(m.Name()), m)
	}
	clear(f.vague)
	f.vague = f.vague[:0]
	if f.node == nil && !f.foreign {
		f.store.Touch(f.id.cluster, f.id.node, f.now)
	}
	if len(f.rejected) > 0 {
		for err, n := range f.rejected {
			rejected(err, n)
		}
		clear(f.rejected)
	}
	refused = f.from.Refused != [reading.NumRefusals]int64{}
	f.from.End(ctx)
	f.id, f.node, f.failed = nodeKey{}, nil, nil
	return refused
}

// take reads a metric that explains something.
func (f *factReader) take(p *metricreading.Point, known *reading.Metric, m pmetric.Metric) {
	if known.Vague() {
		f.vague = append(f.vague, m)
	} else {
		f.read(p, known, m)
	}
}

func (f *factReader) read(p *metricreading.Point, known *reading.Metric, m pmetric.Metric) {
	if f.failed != nil {
		f.from.Check(known, m)
		return
	}
	points, ok := f.from.Open(known, m)
	if !ok || points.Len() == 0 {
		return
	}
	if f.node == nil {
		if f.foreign {
			f.failed = errForeignCluster
		} else {
			f.node, f.failed = f.store.Node(f.id.cluster, f.id.node, f.now)
		}
		if f.failed != nil {
			f.rejected[f.failed]++
			f.from.Check(known, m)
			return
		}
	}
	for i := range points.Len() {
		if f.from.Read(points.At(i), p) != reading.Accepted {
			continue
		}
		if err := put(f.node, p); err != nil {
			f.rejected[err]++
		}
	}
}

// put takes a point into what is known of a node.
func put(n *reason.Node, p *metricreading.Point) error {
	switch f := p.Field; {
	case reason.OfGPU(f):
		if (p.Vague || p.Ended) && !n.Has(p.ID) {
			return nil // neither makes a GPU
		}
		gpu, err := n.GPU(p.ID)
		switch {
		case err != nil:
			return err
		case p.Ended:
			n.Drop(gpu, f)
		default:
			if n.Put(gpu, f, p.Value); p.StartTimestamp() != 0 {
				n.Started(gpu, f, p.StartTimestamp().AsTime())
			}
		}
		return nil
	case reason.OfNode(f):
		if p.Ended {
			n.DropNode(f)
		} else {
			n.PutNode(f, p.Value)
		}
		return nil
	}
	switch p.Field {
	case reading.Up:
		return putUp(n, p)
	case reading.Allocation:
		return putHolder(n, p)
	case reading.Xid:
		return putXid(n, p)
	case reading.NetworkErrors:
		if p.Ended {
			return nil
		}
		var direction string
		if v, ok := p.Attributes().Get(gpusemconv.AttrNetworkIODirection); ok {
			direction = v.Str()
		}
		return n.PutNetworkErrors(p.ID, uint32(maphash.Comparable(seed, [2]string{p.Texts[0], direction})), p.Value)
	case reading.NetworkBandwidth:
		if p.Ended {
			n.DropBandwidth(p.ID)
			return nil
		}
		return n.PutBandwidth(p.ID, p.Value)
	default:
		return nil
	}
}

func putUp(n *reason.Node, p *metricreading.Point) error {
	if p.Ended && !n.Has(p.ID) {
		return nil
	}
	gpu, err := n.GPU(p.ID)
	if err != nil {
		return err
	}
	up := reason.UpSilent
	switch p.Texts[0] {
	case "ok":
		up = reason.UpAnswers
	case "lost", "not_found":
		up = reason.UpLost
	}
	switch {
	case p.Ended:
		n.DropUp(gpu, up)
	case p.Value != 0:
		n.PutUp(gpu, reason.UpAnswers)
	case up != reason.UpAnswers:
		n.PutUp(gpu, up)
	}
	return nil
}

func putHolder(n *reason.Node, p *metricreading.Point) error {
	on := p.Value >= 1
	if !on && !n.Has(p.ID) {
		return nil
	}
	gpu, err := n.GPU(p.ID)
	if err != nil {
		return err
	}
	return n.SetHolder(gpu, p.Holder(), on)
}

func putXid(n *reason.Node, p *metricreading.Point) error {
	code, ok := p.Xid()
	if !ok || p.Ended || code < 0 || code > math.MaxInt16 {
		return nil // -1 stands for the codes beyond those that are told apart
	}
	gpu, err := n.GPU(p.ID)
	if err != nil {
		return err
	}
	return n.PutXid(gpu, uint16(code), p.Value, p.StartTimestamp().AsTime())
}

var seed = maphash.MakeSeed()
