// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"math"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
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
	from          metricreading.Resource
	point         metricreading.Point // scratch
	cluster, host string
	foreign       bool
	now           time.Time
	node          *reason.Node
	failed        error
	rejected      map[error]int64
}

func newFactReader(cfg *Config) *factReader {
	return &factReader{rejected: make(map[error]int64), store: reason.New(reason.Config{MaxNodes: cfg.Gateway.MaxNodes, Retention: cfg.Gateway.Retention})}
}

// begin prepares for the metrics of a resource.
func (f *factReader) begin(from metricreading.Resource, id *identity, caller wire.Caller, now time.Time) {
	f.from, f.cluster, f.host = from, id.cluster, id.node
	f.foreign = caller.Authenticated && f.cluster != caller.Cluster
	f.now, f.node, f.failed = now, nil, nil
	if !f.foreign {
		f.store.Touch(f.cluster, f.host, now)
	}
}

// end counts what of the resource was rejected, and keeps nothing of it.
func (f *factReader) end(ctx context.Context, r *rejects) {
	for err, n := range f.rejected {
		r.addN(ctx, err, n)
	}
	clear(f.rejected)
	r.refused(ctx, &f.from.Refused)
	f.from, f.point = metricreading.Resource{}, metricreading.Point{}
	f.cluster, f.host, f.node = "", "", nil
}

// take reads a metric that explains something.
func (f *factReader) take(known *reading.Metric, m pmetric.Metric) {
	if f.failed != nil {
		return
	}
	metric, ok := f.from.Open(known, m)
	if !ok || metric.Points.Len() == 0 {
		return
	}
	if f.node == nil {
		if f.foreign {
			f.failed = errForeignCluster
		} else {
			f.node, f.failed = f.store.Node(f.cluster, f.host, f.now)
		}
		if f.failed != nil {
			f.rejected[f.failed]++
			return
		}
	}
	p := &f.point
	for i := range metric.Points.Len() {
		if metric.Read(metric.Points.At(i), p) != reading.Accepted {
			continue
		}
		if err := put(f.node, p); err != nil {
			f.rejected[err]++
		}
	}
}

// sweep forgets nodes that are silent for longer than the retention; to be
// called at each tick.
func (f *factReader) sweep(now time.Time) { f.store.Sweep(now) }

// put takes a point into what is known of a node.
func put(n *reason.Node, p *metricreading.Point) error {
	switch f := p.Field; {
	case reason.OfGPU(f):
		gpu, err := n.GPU(p.ID)
		switch {
		case err != nil:
			return err
		case p.Ended:
			n.Drop(gpu, f)
		default:
			n.Put(gpu, f, p.Value)
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
	case reading.Xid:
		return putXid(n, p)
	case reading.NetworkErrors:
		if p.Ended {
			return nil
		}
		sub := fnv(fnv(fnvBasis, p.Texts[0]), textOf(p.Attributes(), gpusemconv.AttrNetworkIODirection))
		return n.PutNetworkErrors(p.ID, sub, p.Value)
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

func textOf(attrs pcommon.Map, key string) string {
	if v, ok := attrs.Get(key); ok {
		return v.Str()
	}
	return ""
}

// fnvBasis and fnv are FNV-1a of 32 bits.
const fnvBasis = 2166136261

func fnv(h uint32, s string) uint32 {
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * 16777619
	}
	return (h ^ 0xff) * 16777619 // no part of UTF-8: ends a string
}
