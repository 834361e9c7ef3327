// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main // import "github.com/gpu-collector/gpu-collector/test/bench/push"

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// report is one node's: 8 GPUs with 40 metrics each, and a timestamp that moves
// on from push to push while the values stay.
type report struct {
	msg     []byte
	times   []int // where the timestamps are
	now     uint64
	tenth   []int // where every tenth value is
	changes bool  // whether those change with each push
}

func newReport(node int) *report {
	const start = 1_700_000_000_123_456_789
	r := rand.New(rand.NewPCG(1, uint64(node)))
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	name := fmt.Sprintf("gpu-node-%04d", node)
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "research-west")
	rm.Resource().Attributes().PutStr("k8s.node.name", name)
	rm.Resource().Attributes().PutStr("host.name", name)
	rm.Resource().Attributes().PutStr("host.id", fmt.Sprintf("7c0bbb52f1d24eb9a4f16d6a8a2f%04x", node))
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("nvmlreceiver")
	var tenth []float64
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			dp := points.AppendEmpty()
			dp.SetTimestamp(pcommon.Timestamp(start))
			value := r.Float64()
			dp.SetDoubleValue(value)
			if (i*8+gpu)%10 == 0 {
				tenth = append(tenth, value)
			}
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		panic(err) // pdata has no way to fail here
	}
	out := &report{msg: msg, now: start}
	for _, value := range tenth { // each is there once
		at := bytes.Index(msg, binary.LittleEndian.AppendUint64(nil, math.Float64bits(value)))
		out.tenth = append(out.tenth, at)
	}
	stamp := binary.LittleEndian.AppendUint64(nil, start)
	for from := 0; ; {
		i := bytes.Index(msg[from:], stamp)
		if i < 0 {
			return out
		}
		out.times = append(out.times, from+i)
		from += i + len(stamp)
	}
}

// next is the same report, ten seconds later.
func (r *report) next() {
	r.now += uint64(10 * time.Second)
	for _, at := range r.times {
		binary.LittleEndian.PutUint64(r.msg[at:], r.now)
	}
	if !r.changes {
		return
	}
	for _, at := range r.tenth {
		binary.LittleEndian.PutUint64(r.msg[at:], math.Float64bits(float64(r.now%1e15)))
	}
}
