// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// factReader keeps what the metrics that pass say of each node's GPUs, so that
// an accusation can be explained. It reads whole states and differences alike:
// a point that does not come says nothing, one without a value ends a series.
// Like the observer, it is guarded by the gateway's mutex.
type factReader struct {
	store *reason.Store

	// Of the resource that is being read.
	cluster, host string
	foreign       bool
	now           time.Time
	node          *reason.Node
	failed        error
	rejected      [len(factErrors)]int64
}

// factErrors are what a reading may be rejected for.
var factErrors = [...]error{
	reason.ErrName, reason.ErrRange, reason.ErrTooManyNodes, reason.ErrClusterNodes, reason.ErrTooManyDevices, errForeignCluster,
}

func newFactReader(cfg *Config) *factReader {
	return &factReader{store: reason.New(reason.Config{MaxNodes: cfg.Gateway.MaxNodes, Retention: cfg.Gateway.Retention})}
}

// begin prepares for the metrics of a resource.
func (f *factReader) begin(ctx context.Context, ids *identifier, attrs pcommon.Map, now time.Time) {
	f.cluster, f.host = ids.cluster(ctx, attrs), ids.node(attrs)
	caller := threshold.CallerFromContext(ctx)
	f.foreign = caller.Authenticated && f.cluster != caller.Cluster
	f.now, f.node, f.failed = now, nil, nil
	if !f.foreign {
		f.store.Touch(f.cluster, f.host, now)
	}
}

// end counts what of the resource was rejected, and keeps nothing of it.
func (f *factReader) end(ctx context.Context, r *rejects) {
	for i, n := range f.rejected {
		if n > 0 {
			r.addN(ctx, factErrors[i], n)
		}
	}
	f.cluster, f.host, f.node, f.rejected = "", "", nil, [len(factErrors)]int64{}
}

// take reads a metric if it is one of those that explain anything.
func (f *factReader) take(m pmetric.Metric) {
	read, ok := factMetrics[m.Name()]
	if !ok || f.failed != nil {
		return
	}
	if m.Type() == pmetric.MetricTypeSum && m.Sum().AggregationTemporality() != pmetric.AggregationTemporalityCumulative {
		return
	}
	points := numberPoints(m)
	if points.Len() == 0 {
		return
	}
	if f.node == nil {
		if f.foreign {
			f.failed = errForeignCluster
		} else {
			f.node, f.failed = f.store.Node(f.cluster, f.host, f.now)
		}
		if f.failed != nil {
			f.reject(f.failed)
			return
		}
	}
	for i := range points.Len() {
		if err := read.point(f.node, points.At(i)); err != nil {
			f.reject(err)
		}
	}
}

func (f *factReader) reject(err error) {
	for i, known := range factErrors {
		if errors.Is(err, known) {
			f.rejected[i]++
			return
		}
	}
}

// sweep forgets nodes that are silent for longer than the retention; to be
// called at each tick.
func (f *factReader) sweep(now time.Time) { f.store.Sweep(now) }

// pointReader reads one point of a metric.
type pointReader interface {
	point(n *reason.Node, p pmetric.NumberDataPoint) error
}

// gpuFields reads points of a GPU into the field that the value of an attribute
// names, into the only one without an attribute.
type gpuFields struct {
	attribute string
	fields    []namedField
}

type namedField struct {
	value string
	field reason.Field
}

func (g *gpuFields) point(n *reason.Node, p pmetric.NumberDataPoint) error {
	attrs := p.Attributes()
	field := g.fields[0].field
	if g.attribute != "" {
		v, ok := attrs.Get(g.attribute)
		if !ok {
			return nil
		}
		if field, ok = g.find(v.Str()); !ok {
			return nil
		}
	}
	return putGPU(n, attrs, field, p)
}

func (g *gpuFields) find(value string) (reason.Field, bool) {
	for i := range g.fields {
		if g.fields[i].value == value {
			return g.fields[i].field, true
		}
	}
	return 0, false
}

func putGPU(n *reason.Node, attrs pcommon.Map, field reason.Field, p pmetric.NumberDataPoint) error {
	gpu, err := n.GPU(hwID(attrs))
	switch {
	case err != nil:
		return err
	case p.Flags().NoRecordedValue():
		n.Drop(gpu, field)
		return nil
	default:
		return n.Put(gpu, field, number(p))
	}
}

func hwID(attrs pcommon.Map) string {
	v, ok := attrs.Get(gpusemconv.AttrHWID)
	if !ok {
		return ""
	}
	return v.Str()
}

// is reports whether an attribute has the value.
func is(attrs pcommon.Map, key, value string) bool {
	v, ok := attrs.Get(key)
	return ok && v.Str() == value
}

// pointFunc is a pointReader for what does not fit a table.
type pointFunc func(n *reason.Node, p pmetric.NumberDataPoint) error

func (f pointFunc) point(n *reason.Node, p pmetric.NumberDataPoint) error { return f(n, p) }

func readUp(n *reason.Node, p pmetric.NumberDataPoint) error {
	attrs := p.Attributes()
	gpu, err := n.GPU(hwID(attrs))
	if err != nil {
		return err
	}
	up := reason.UpSilent
	if v, ok := attrs.Get(gpusemconv.AttrReason); ok {
		switch v.Str() {
		case "ok":
			up = reason.UpAnswers
		case "lost", "not_found":
			up = reason.UpLost
		}
	}
	switch {
	case p.Flags().NoRecordedValue():
		n.DropUp(gpu, up)
	case number(p) == 1:
		n.PutUp(gpu, reason.UpAnswers)
	case number(p) == 0 && up != reason.UpAnswers:
		n.PutUp(gpu, up)
	default:
		return reason.ErrRange
	}
	return nil
}

func readXid(n *reason.Node, p pmetric.NumberDataPoint) error {
	attrs := p.Attributes()
	v, ok := attrs.Get(gpusemconv.AttrXIDCode)
	if !ok || p.Flags().NoRecordedValue() {
		return nil
	}
	code := v.Int()
	if v.Type() == pcommon.ValueTypeStr {
		var err error
		if code, err = strconv.ParseInt(v.Str(), 10, 64); err != nil {
			return reason.ErrRange
		}
	}
	if code < 0 || code > 1<<15 {
		return nil // -1 stands for the codes beyond those that are told apart
	}
	gpu, err := n.GPU(hwID(attrs))
	if err != nil {
		return err
	}
	return n.PutXid(gpu, uint16(code), number(p), p.StartTimestamp().AsTime())
}

// readErrors reads the errors of GPUs' memory and of network adapters, which
// the hardware conventions have in one metric.
func readErrors(n *reason.Node, p pmetric.NumberDataPoint) error {
	attrs := p.Attributes()
	if is(attrs, gpusemconv.AttrHWType, "network") {
		if p.Flags().NoRecordedValue() {
			return nil
		}
		sub := fnv(fnv(fnvBasis, textOf(attrs, gpusemconv.AttrErrorType)), textOf(attrs, gpusemconv.AttrNetworkIODirection))
		return n.PutNetworkErrors(hwID(attrs), sub, number(p))
	}
	// Aggregate counts are of the life of the board, and the others are in all.
	if !is(attrs, gpusemconv.AttrErrorType, "uncorrected") || !is(attrs, gpusemconv.AttrMemoryLocation, "all") ||
		!is(attrs, gpusemconv.AttrECCCounter, "volatile") {
		return nil
	}
	return putGPU(n, attrs, reason.FieldECCUncorrected, p)
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

func readPower(n *reason.Node, p pmetric.NumberDataPoint) error {
	if attrs := p.Attributes(); is(attrs, gpusemconv.AttrHWType, "gpu") {
		return putGPU(n, attrs, reason.FieldPower, p)
	}
	return nil
}

func readBandwidth(n *reason.Node, p pmetric.NumberDataPoint) error {
	id := hwID(p.Attributes())
	if p.Flags().NoRecordedValue() {
		n.DropBandwidth(id)
		return nil
	}
	return n.PutBandwidth(id, number(p))
}

func readCount(n *reason.Node, p pmetric.NumberDataPoint) error {
	switch textOf(p.Attributes(), gpusemconv.AttrState) {
	case "expected":
		return putNode(n, reason.NodeGPUsExpected, p)
	case "found":
		return putNode(n, reason.NodeGPUsFound, p)
	}
	return nil
}

// readSteal reads the host's mean; those of single CPUs say little.
func readSteal(n *reason.Node, p pmetric.NumberDataPoint) error {
	attrs := p.Attributes()
	if !is(attrs, "cpu.mode", "steal") && !is(attrs, gpusemconv.AttrState, "steal") {
		return nil
	}
	for _, key := range [...]string{"cpu.logical_number", "cpu"} {
		if _, ok := attrs.Get(key); ok {
			return nil
		}
	}
	return putNode(n, reason.NodeCPUSteal, p)
}

func readHostMemory(n *reason.Node, p pmetric.NumberDataPoint) error {
	if attrs := p.Attributes(); !is(attrs, "system.memory.state", "used") && !is(attrs, gpusemconv.AttrState, "used") {
		return nil
	}
	return putNode(n, reason.NodeHostMemory, p)
}

func nodeField(field reason.NodeField) pointFunc {
	return func(n *reason.Node, p pmetric.NumberDataPoint) error { return putNode(n, field, p) }
}

func putNode(n *reason.Node, field reason.NodeField, p pmetric.NumberDataPoint) error {
	if p.Flags().NoRecordedValue() {
		n.DropNode(field)
		return nil
	}
	return n.PutNode(field, number(p))
}
