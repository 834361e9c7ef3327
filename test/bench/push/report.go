// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main // import "github.com/gpu-collector/gpu-collector/test/bench/push"

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"golang.org/x/sys/unix"

	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	"github.com/gpu-collector/gpu-collector/test/bench/figure"
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

// scan measures reading and comparing the bytes alone, beside decoding them.
func scan(w io.Writer, calls int) error {
	r := newReport(0)
	table := statetable.New(statetable.Settings{MaxNodes: 1, MaxSeries: 1000})
	wire := delta.NewWire(nil, false)
	var out []byte
	failed := false
	once := func() {
		r.next()
		failed = failed || !wire.Read(r.msg, time.Unix(0, int64(r.now)))
		wire.Report = table.Begin(0)
		out = wire.Filter(out[:0])
		wire.Report.Commit()
		wire.Reset()
	}
	once()
	once()
	if failed || len(out) > len(r.msg)/10 {
		return errors.New("the report was not taken for unchanged")
	}
	compare := micros(calls, once)
	figure.FprintOnly(w, "wire_diff_scan", compare, "us")
	figure.Fprint(w, "wire_diff_scan_allocs", testing.AllocsPerRun(1000, once), "allocs", maxScanAllocs, true)
	decode := micros(calls, func() { failed = failed || pmetricotlp.NewExportRequest().UnmarshalProto(r.msg) != nil })
	if failed {
		return errors.New("the report was not read")
	}
	figure.FprintOnly(w, "wire_diff_decode", decode, "us")
	figure.Fprint(w, "wire_diff_scan_ratio", compare/decode, "x", maxScanRatio, true)
	return nil
}

// micros returns the CPU time of f: the best of some rounds, for on a shared
// machine others take the caches away.
func micros(calls int, f func()) float64 {
	const rounds = 20
	best := time.Hour
	for range rounds {
		before := cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)
		for range calls {
			f()
		}
		best = min(best, cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)-before)
	}
	return float64(best.Nanoseconds()) / 1e3 / float64(calls)
}
