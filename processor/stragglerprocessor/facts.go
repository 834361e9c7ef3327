// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"errors"
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
	rejected      [len(factErrors)]int64
}

// factErrors are what a reading may be rejected for besides what the catalogue
// refuses.
var factErrors = [...]error{reason.ErrName, reason.ErrTooManyNodes, reason.ErrClusterNodes, reason.ErrTooManyDevices, errForeignCluster}

func newFactReader(cfg *Config) *factReader {
	return &factReader{store: reason.New(reason.Config{MaxNodes: cfg.Gateway.MaxNodes, Retention: cfg.Gateway.Retention})}
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
	for i, n := range f.rejected {
		if n > 0 {
			r.addN(ctx, factErrors[i], n)
		}
	}
	r.refused(ctx, &f.from.Refused)
	f.from, f.point = metricreading.Resource{}, metricreading.Point{}
	f.cluster, f.host, f.node, f.rejected = "", "", nil, [len(factErrors)]int64{}
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
			f.reject(f.failed)
			return
		}
	}
	p := &f.point
	for i := range metric.Points.Len() {
		if metric.Read(metric.Points.At(i), p) != reading.Accepted {
			continue
		}
		if err := put(f.node, p); err != nil {
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

// gpuFacts are the readings of a GPU, one more than their number, by the
// catalogue's field.
var gpuFacts = [reading.NumFields]reason.Field{
	reading.RemapFailed:         1 + reason.FieldRemapFailed,
	reading.RemapPending:        1 + reason.FieldRemapPending,
	reading.RetirementPending:   1 + reason.FieldRetirementPending,
	reading.PowerBrake:          1 + reason.FieldPowerBrake,
	reading.HWThermal:           1 + reason.FieldHWThermal,
	reading.SWThermal:           1 + reason.FieldSWThermal,
	reading.HWSlowdown:          1 + reason.FieldHWSlowdown,
	reading.PowerCap:            1 + reason.FieldPowerCap,
	reading.SMClock:             1 + reason.FieldSMClock,
	reading.SMClockLimit:        1 + reason.FieldSMClockLimit,
	reading.PCIeGeneration:      1 + reason.FieldPCIeGeneration,
	reading.PCIeGenerationLimit: 1 + reason.FieldPCIeGenerationLimit,
	reading.PCIeWidth:           1 + reason.FieldPCIeWidth,
	reading.PCIeWidthLimit:      1 + reason.FieldPCIeWidthLimit,
	reading.NVLinksUp:           1 + reason.FieldNVLinksUp,
	reading.MemoryShare:         1 + reason.FieldMemory,
	reading.Temperature:         1 + reason.FieldTemperature,
	reading.Utilization:         1 + reason.FieldUtilization,
	reading.Power:               1 + reason.FieldPower,
	reading.PowerLimit:          1 + reason.FieldPowerLimit,
	reading.Processes:           1 + reason.FieldProcesses,
	reading.ECCUncorrected:      1 + reason.FieldECCUncorrected,
	reading.PCIeReplays:         1 + reason.FieldPCIeReplays,
	reading.NVLinkReplay:        1 + reason.FieldNVLinkReplay,
	reading.NVLinkRecovery:      1 + reason.FieldNVLinkRecovery,
	reading.NVLinkCRCFlit:       1 + reason.FieldNVLinkCRCFlit,
	reading.NVLinkCRCData:       1 + reason.FieldNVLinkCRCData,
	reading.NVLinkCRC:           1 + reason.FieldNVLinkCRC,
	reading.PowerBrakeTime:      1 + reason.FieldPowerBrakeTime,
	reading.HWThermalTime:       1 + reason.FieldHWThermalTime,
	reading.SWThermalTime:       1 + reason.FieldSWThermalTime,
}

// nodeFacts are those of the node.
var nodeFacts = [reading.NumFields]reason.NodeField{
	reading.CPUPressure:  1 + reason.NodeCPUPressure,
	reading.CPUSteal:     1 + reason.NodeCPUSteal,
	reading.LoadAverage:  1 + reason.NodeLoadAverage,
	reading.HostMemory:   1 + reason.NodeHostMemory,
	reading.GPUsExpected: 1 + reason.NodeGPUsExpected,
	reading.GPUsFound:    1 + reason.NodeGPUsFound,
}

// put takes a point into what is known of a node.
func put(n *reason.Node, p *metricreading.Point) error {
	if field := gpuFacts[p.Field]; field > 0 {
		gpu, err := n.GPU(p.ID)
		switch {
		case err != nil:
			return err
		case p.Ended:
			n.Drop(gpu, field-1)
		default:
			n.Put(gpu, field-1, p.Value)
		}
		return nil
	}
	if field := nodeFacts[p.Field]; field > 0 {
		if p.Ended {
			n.DropNode(field - 1)
		} else {
			n.PutNode(field-1, p.Value)
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
