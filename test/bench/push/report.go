// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main // import "github.com/gpu-collector/gpu-collector/test/bench/push"

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/test/bench/harness"
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
	r := rand.New(rand.NewPCG(1, uint64(node)))
	var tenth []float64
	points := 0
	md := harness.Report(node, func() float64 {
		value := r.Float64()
		if points%10 == 0 {
			tenth = append(tenth, value)
		}
		points++
		return value
	})
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		panic(err) // pdata has no way to fail here
	}
	out := &report{msg: msg, now: harness.ReportTime}
	for _, value := range tenth { // each is there once
		at := bytes.Index(msg, binary.LittleEndian.AppendUint64(nil, math.Float64bits(value)))
		out.tenth = append(out.tenth, at)
	}
	stamp := binary.LittleEndian.AppendUint64(nil, harness.ReportTime)
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
