// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodereport"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/record"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// scope is the one under which the straggler processor reports.
const scope = "github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"

const product = "NVIDIA H100 80GB HBM3"

// NodeName returns the name of a node of a fleet.
func NodeName(node int) string { return fmt.Sprintf("node-%06d", node) }

func jobName(job int) string { return fmt.Sprintf("job-%05d", job) }

// scratch is what making a report needs: names, and what the agent's components keep for
// each push.
type scratch struct {
	now                        pcommon.Timestamp
	node, hostID, cluster, job string
	gpus                       []gpuhealth.Identity

	recorder *record.Recorder
	reader   *metricreading.Reader
	reading  nodescore.Reading
}

// draw draws the names of the host and its GPUs, for each report anew, so that a
// fleet does not keep them.
func (s *scratch) draw(f *Fleet, node int, now time.Time) {
	rng := rand.New(rand.NewPCG(f.cfg.Seed, uint64(node)))
	g := f.nodes[node].group
	s.now, s.node, s.cluster, s.job = pcommon.NewTimestampFromTime(now), f.cfg.NodeName(node), g.cluster, g.job
	s.hostID = fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()) // as systemd's machine id
	s.gpus = s.gpus[:0]
	for gpu := range f.cfg.GPUs {
		a, b := rng.Uint64(), rng.Uint64()
		s.gpus = append(s.gpus, gpuhealth.Identity{
			// A random UUID, as NVML's are (RFC 9562, 5.4).
			UUID:  fmt.Sprintf("GPU-%08x-%04x-4%03x-8%03x-%012x", a>>32, a>>16&0xffff, a&0xfff, b>>48&0xfff, b&0xffff_ffff_ffff),
			Index: gpu, Model: product, Serial: fmt.Sprintf("%013d", rng.Uint64N(1e13)),
			PCIBusID: fmt.Sprintf("00000000:%02X:00.0", 0x1b+gpu), VBIOS: "96.00.89.00.01", DriverVersion: "570.86.15", CUDAVersion: "12.8",
		})
	}
}

// name names the node and its job in a resource, and adds the pairs.
func (s *scratch) name(resource pcommon.Resource, pairs ...string) {
	pairs = append(pairs, gpusemconv.AttrHostName, s.node, gpusemconv.AttrClusterName, s.cluster, gpusemconv.AttrJobID, s.job)
	for i := 0; i < len(pairs); i += 2 {
		resource.Attributes().PutStr(pairs[i], pairs[i+1])
	}
}

func (f *Fleet) record(n *node, s *scratch) pmetric.Metrics {
	s.recorder.Begin(s.now, &n.history)
	census := record.Census{Expected: f.cfg.GPUs}
	for gpu := range f.cfg.GPUs {
		r := n.sim.Reading(gpu)
		sample := r.Sample(s.gpus[gpu])
		if r.Up {
			census.Found++
		}
		s.recorder.Sample(&sample)
		verdict := n.health(&sample, &r.Xids, s.now.AsTime())
		s.recorder.Verdict(&verdict)
		for _, x := range r.Xids {
			if x.Count > 0 {
				s.recorder.Xids(sample.UUID, x.Code, f.rubric.Xid(x.Code).Class, int64(x.Count))
			}
		}
	}
	census.Lost = census.Expected - census.Found
	s.recorder.Node(census, gpuhealth.Some(n.sim.Host().CPUPressure))
	resource := pcommon.NewResource()
	s.name(resource, gpusemconv.AttrK8sNodeName, s.node, gpusemconv.AttrHostID, s.hostID)
	return s.recorder.Emit(resource)
}

func (n *node) health(s *gpuhealth.Sample, xids *[fleetsim.MaxXids]fleetsim.Xid, now time.Time) gpuhealth.Verdict {
	if n.monitor == nil {
		return gpuhealth.Verdict{Score: gpuhealth.Some(100), State: gpuhealth.StateHealthy, Hardware: gpuhealth.HardwareOK}
	}
	for i, x := range xids {
		if x.Count > n.xids[s.Index][i].Count {
			n.monitor.ObserveXid(gpuhealth.XidEvent{UUID: s.UUID, Code: x.Code, Time: now})
		}
	}
	n.xids[s.Index] = *xids
	return n.monitor.Observe(s, now)
}

func (s *scratch) addStep(md pmetric.Metrics, seconds float64) {
	rm := md.ResourceMetrics().AppendEmpty()
	s.name(rm.Resource())
	nodereport.NewGauges(rm, "", s.now).Double(gpusemconv.MetricAppStepDuration, seconds)
}

// addRanks adds what the nccl receiver of a node reports. Each process has one rank.
func (f *Fleet) addRanks(n *node, md pmetric.Metrics, s *scratch) {
	rm := md.ResourceMetrics().AppendEmpty()
	s.name(rm.Resource(), gpusemconv.AttrK8sNodeName, s.node, gpusemconv.AttrHostID, s.hostID)
	metrics := rm.ScopeMetrics().AppendEmpty().Metrics()
	for nth, name := range [...]string{
		gpusemconv.MetricCollectiveTimeShare, gpusemconv.MetricCollectiveStalled,
		gpusemconv.MetricCommunicatorBandwidth, gpusemconv.MetricCommunicatorLatency, gpusemconv.MetricCommunicatorOperations,
	} {
		m, known, ofRank := metrics.AppendEmpty(), reading.ByName(name), nth < 2
		m.SetName(name)
		m.SetUnit(known.Unit)
		if m.SetEmptyGauge(); known.Kind == reading.Counter {
			m.SetEmptySum().SetIsMonotonic(true)
			m.Sum().SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		}
		for gpu, id := range s.gpus {
			k := &n.group.play.Ranks[n.index*len(s.gpus)+gpu]
			for j, t := range k.Traffic {
				if t.Count == 0 || ofRank && j+1 < len(k.Traffic) { // the last is that of all ranks
					continue
				}
				p := record.Points(m).AppendEmpty()
				p.SetStartTimestamp(pcommon.NewTimestampFromTime(f.cfg.Start))
				p.SetTimestamp(s.now)
				v := [...]float64{k.Seconds / f.cfg.Step.Seconds(), 0, t.Bandwidth, t.Seconds / float64(t.Count), float64(t.Total)}[nth]
				if p.SetDoubleValue(v); known.Integer {
					p.SetIntValue(int64(v))
				}
				attrs := p.Attributes()
				attrs.PutStr(gpusemconv.AttrJobID, s.job)
				attrs.PutInt(gpusemconv.AttrJobRank, int64(t.Rank))
				attrs.PutStr(gpusemconv.AttrHWID, id.UUID)
				attrs.PutInt(gpusemconv.AttrProcessPID, int64(1000+t.Rank))
				attrs.PutStr(gpusemconv.AttrCommunicatorID, t.ID)
				attrs.PutStr(gpusemconv.AttrCommunicatorName, t.Name)
				attrs.PutInt(gpusemconv.AttrCommunicatorRank, int64(t.CommRank))
				attrs.PutInt(gpusemconv.AttrCommunicatorSize, int64(t.Size))
				if !ofRank {
					attrs.PutInt(gpusemconv.AttrCommunicatorNodes, int64(t.Nodes))
					attrs.PutStr(gpusemconv.AttrCollectiveOperation, t.Function)
					attrs.PutInt(gpusemconv.AttrCollectiveSize, t.Bytes)
				}
			}
		}
	}
}

// judge does what the straggler processor does with a push in mode agent.
func (f *Fleet) judge(n *node, md pmetric.Metrics, s *scratch) {
	s.reading.Reset()
	var from metricreading.Resource
	var p metricreading.Point
	for _, rm := range md.ResourceMetrics().All() {
		from.Begin(s.reader, rm.Resource().Attributes(), "", "")
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			known := reading.ByName(m.Name())
			inputs := f.plan.Known(known)
			if inputs == nil {
				continue
			}
			points, _ := from.Open(known, m)
			for _, dp := range points.All() {
				if from.Read(dp, &p) != reading.Accepted {
					continue
				}
				for i := range inputs {
					if inputs[i].Field == p.Field {
						s.reading.Add(&inputs[i], nodesignal.Subject{GPU: p.ID}, p.Value) // if the series has not ended
					}
				}
			}
		}
	}
	now := s.now.AsTime()
	n.score.Observe(&s.reading, now)
	res := n.score.Evaluate(now, s.node, n.received, !n.received.At.IsZero())
	if res.Straggler && !n.slow {
		n.began(time.Duration(n.ticks)*f.cfg.Step, f.cfg.Step, res.Mode)
	}
	n.slow = res.Straggler
	rm := md.ResourceMetrics().AppendEmpty()
	s.name(rm.Resource(), gpusemconv.AttrGPUModel, f.model)
	nodereport.Append(rm, scope, s.now, &res, n.reachable)
}

// receive takes the answer to a node's push, as an agent's threshold extension does, and returns
// what was not valid in its headers.
func (f *Fleet) receive(i int, r *result, now time.Time) error {
	values, err := threshold.ParseAnswer(r.headers.Get(gpusemconv.HeaderParams), r.headers.Get(gpusemconv.HeaderVerdict), "")
	n := &f.nodes[i]
	n.group.mu.Lock()
	defer n.group.mu.Unlock()
	n.reachable = r.answered
	for j := range values {
		if values[j].Group == n.group.name {
			n.received.Update(values[j], now)
		}
	}
	return err
}
