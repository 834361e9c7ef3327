// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

const gpus = 8

// reports makes the pushes of a fleet. Different nodes may be asked for at once.
type reports interface {
	// next appends a node's next report to dst.
	next(node int, now time.Time, dst []byte) ([]byte, error)
	headers(node int) fleetpush.Headers
}

// simulated is a fleet in training, as its agents report it.
type simulated struct{ *fleetpush.Fleet }

func newSimulated(nodes int) (reports, error) {
	f, err := fleetpush.New(fleetpush.Config{
		Nodes: nodes, GPUs: gpus, Load: fleetsim.Training, Seed: 1, NoSteps: true, Start: time.Now().Add(-time.Hour),
	})
	return simulated{f}, err
}

func (s simulated) next(node int, now time.Time, dst []byte) ([]byte, error) {
	return s.Next(node, 1, now, dst)
}

func (s simulated) headers(node int) fleetpush.Headers { return s.Headers(node) }

// random is what test/bench/push has: 40 metrics of 8 GPUs, 320 points with
// values that do not compress, of which none moves.
type random struct {
	msg          []byte
	times, names []int // where the timestamps are, and the digits of the names
}

const (
	stamp    = 1_700_000_000_123_456_789
	nodeName = "gpu-node-00000"
)

func newRandom() (reports, error) {
	values := rand.New(rand.NewPCG(1, 1))
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	for _, name := range []string{gpusemconv.AttrHostName, gpusemconv.AttrHostID, gpusemconv.AttrK8sNodeName} {
		rm.Resource().Attributes().PutStr(name, nodeName)
	}
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("nvmlreceiver")
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range gpus {
			dp := points.AppendEmpty()
			dp.SetTimestamp(stamp)
			dp.SetDoubleValue(values.Float64())
			dp.Attributes().PutStr(gpusemconv.AttrHWID, fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	if err != nil {
		return nil, err
	}
	r := &random{
		msg:   msg,
		times: find(msg, binary.LittleEndian.AppendUint64(nil, stamp)),
		names: find(msg, []byte(nodeName)),
	}
	if len(r.times) != 40*gpus || len(r.names) != 3 {
		return nil, errors.New("the report has another form")
	}
	return r, nil
}

func (r *random) next(node int, now time.Time, dst []byte) ([]byte, error) {
	from := len(dst)
	dst = append(dst, r.msg...)
	for _, at := range r.times {
		binary.LittleEndian.PutUint64(dst[from+at:], uint64(now.UnixNano()))
	}
	for _, at := range r.names {
		copy(dst[from+at:], fmt.Sprintf("gpu-node-%05d", node))
	}
	return dst, nil
}

func (*random) headers(node int) fleetpush.Headers {
	return fleetpush.Headers{Cluster: "research-west", Node: fmt.Sprintf("gpu-node-%05d", node), Group: `"default"`}
}

func find(msg, text []byte) (at []int) {
	for from := 0; ; {
		i := bytes.Index(msg[from:], text)
		if i < 0 {
			return at
		}
		at = append(at, from+i)
		from += i + len(text)
	}
}
