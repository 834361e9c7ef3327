// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"context"
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/inspector"
	"github.com/gpu-collector/gpu-collector/receiver/ncclreceiver/internal/metadata"
)

// rank is what is known of one rank of one process.
type rank struct {
	job, role, gpu, pod string
	rank, pid           int64 // -1 and 0 for unknown
	group               inspector.Membership
}

// attributes are those of a rank. Its pod is for one metric alone.
func (r *rank) attributes(of *inspector.Membership) (all []metadata.MetricAttributeOption) {
	text := func(value string, with func(string) metadata.MetricAttributeOption) {
		if value != "" {
			all = append(all, with(value))
		}
	}
	text(r.job, metadata.WithGpuJobIDMetricAttribute)
	text(r.role, metadata.WithGpuJobRoleMetricAttribute)
	text(r.gpu, metadata.WithHwIDMetricAttribute)
	text(r.pod, metadata.WithK8sPodUIDMetricAttribute)
	text(of.ID, metadata.WithGpuCommunicatorIDMetricAttribute)
	text(of.Name, metadata.WithGpuCommunicatorNameMetricAttribute)
	if r.rank >= 0 {
		all = append(all, metadata.WithGpuJobRankMetricAttribute(r.rank))
	}
	if r.pid > 0 {
		all = append(all, metadata.WithProcessPidMetricAttribute(r.pid))
	}
	if of.Size > 0 {
		all = append(all, metadata.WithGpuCommunicatorSizeMetricAttribute(of.Size))
		if of.Rank >= 0 {
			all = append(all, metadata.WithGpuCommunicatorRankMetricAttribute(of.Rank))
		}
	}
	return all
}

// tell records the metrics of all files, and returns the ranks that live.
func (s *ncclScraper) tell(ctx context.Context, now time.Time) map[rank]bool {
	ts := pcommon.NewTimestampFromTime(now)
	var all, waiting []*file
	for _, at := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[at]
		if f.process == nil {
			if name := textName.FindStringSubmatch(path.Base(at)); name != nil {
				of := rank{gpu: "GPU-" + strings.ToLower(name[1]), rank: -1}
				s.tellParts(ts, &of, f.parts)
			}
			continue
		}
		f.still = f.process.Stalled(f.written, now)
		f.units, f.parts, f.shared = f.process.Report()
		all = append(all, f)
	}
	ended := s.askRAS(ctx, now, all)
	ranks := map[rank]bool{}
	for _, f := range all {
		known := f.of != nil || s.answer != nil && slices.ContainsFunc(f.process.IDs(), s.answer.Has)
		if !known && now.Sub(f.written) >= patience { // nobody knows whether it lives
			// Which of several jobs answers is by chance.
			if ended && now.Sub(f.written) > 5*patience || now.Sub(f.modified) > oldest {
				f.close()
			}
			continue
		}
		since := int64(0)
		if f.still && known {
			since = f.written.Unix()
			waiting = append(waiting, f)
		}
		of := rank{rank: -1, pid: int64(f.pid)}
		if f.of != nil {
			of.job, of.role, of.pod, of.gpu = f.of.job, f.of.role, f.of.pod, s.gpus.GPU(f.pid, len(f.units) == 1)
			if len(f.units) == 1 {
				of.rank = f.of.rank
			}
		}
		parts := of
		parts.role, parts.pod = "", ""
		s.tellParts(ts, &parts, f.parts)
		for _, u := range f.units {
			if of.group = u.Group; ranks[of] {
				continue // without a communicator, as the one before
			}
			ranks[of] = true
			if f.shared {
				s.builder.RecordGpuCollectiveTimeShareDataPoint(ts, u.Share, of.attributes(&u.Group)...)
			}
			bare := of
			bare.pod = ""
			s.builder.RecordGpuCollectiveStalledDataPoint(ts, since, bare.attributes(&u.Group)...)
		}
	}
	s.tellLaggards(ts, waiting)
	return ranks
}

func (s *ncclScraper) tellParts(ts pcommon.Timestamp, of *rank, parts []inspector.Part) {
	for i := range parts {
		p := &parts[i]
		options := of.attributes(&p.Membership)
		if p.Bandwidth > 0 {
			s.builder.RecordGpuCommunicatorBandwidthDataPoint(ts, p.Bandwidth, p.Nodes, p.Operation, p.Floor, options...)
		}
		if p.Latency > 0 {
			s.builder.RecordGpuCommunicatorLatencyDataPoint(ts, p.Latency, p.Nodes, p.Operation, p.Floor, options...)
		}
		if p.Done > 0 {
			s.builder.RecordGpuCommunicatorOperationsDataPoint(ts, p.Done, p.Nodes, p.Operation, p.Floor, options...)
		}
	}
}

// askRAS asks at most once a minute, while something stands still. Of all agents of a job
// those ask that have the first or the last rank of a communicator. It reports whether
// jobs that the answer does not tell of have ended: another answers, or nobody listens.
func (s *ncclScraper) askRAS(ctx context.Context, now time.Time, all []*file) (ended bool) {
	outer := func(u inspector.Unit) bool {
		return u.Group.ID != "" && (u.Group.Rank == 0 || u.Group.Rank == u.Group.Size-1)
	}
	if !slices.ContainsFunc(all, func(f *file) bool { return f.still && slices.ContainsFunc(f.units, outer) }) {
		s.answer = nil
		return false
	}
	if s.cfg.RAS == nil || now.Sub(s.asked) < patience {
		return false
	}
	s.asked = now
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var err error
	if s.answer, err = s.ask(ctx, s.cfg.RAS.Endpoint); err != nil {
		s.answer = nil
		s.log.Info("a job stands still, and NCCL's RAS service does not say who is late", zap.Error(err))
	}
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}

func (s *ncclScraper) tellLaggards(ts pcommon.Timestamp, waiting []*file) {
	if s.answer == nil {
		return
	}
	names, jobs := map[string]string{}, map[string]string{}
	for _, f := range waiting {
		for _, u := range f.units {
			names[u.Group.ID] = u.Group.Name
		}
		for _, id := range f.process.IDs() {
			if jobs[id] = ""; f.of != nil {
				jobs[id] = f.of.job
			}
		}
	}
	for _, l := range s.answer.Laggards(slices.Sorted(maps.Keys(jobs))) {
		state := metadata.AttributeLaggardStateBehind
		if l.Missing {
			state = metadata.AttributeLaggardStateMissing
		}
		of := rank{job: jobs[l.Communicator], rank: -1, pid: l.PID}
		at := inspector.Membership{ID: l.Communicator, Name: names[l.Communicator], Rank: l.Rank, Size: l.Size}
		s.builder.RecordGpuCollectiveLaggardDataPoint(ts, 1, state, l.Host, of.attributes(&at)...)
	}
}

// end says of ranks that were told and live no more that their series have ended.
func (s *ncclScraper) end(ranks map[rank]bool, now time.Time, out pmetric.Metrics) {
	ts := pcommon.NewTimestampFromTime(now)
	for of := range s.told {
		if !ranks[of] {
			s.builder.RecordGpuCollectiveTimeShareDataPoint(ts, 0, of.attributes(&of.group)...)
			of.pod = ""
			s.builder.RecordGpuCollectiveStalledDataPoint(ts, 0, of.attributes(&of.group)...)
		}
	}
	s.told = ranks
	ended := s.builder.Emit(metadata.WithResource(s.resource))
	for _, rm := range ended.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				for _, dp := range m.Gauge().DataPoints().All() {
					point := pmetric.NewNumberDataPoint() // without a value
					point.SetTimestamp(dp.Timestamp())
					point.SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
					dp.Attributes().MoveTo(point.Attributes())
					point.MoveTo(dp)
				}
			}
		}
	}
	ended.ResourceMetrics().MoveAndAppendTo(out.ResourceMetrics())
}
