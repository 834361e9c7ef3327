// SPDX-License-Identifier: Apache-2.0

package ncclreceiver

import (
	"context"
	"errors"
	"maps"
	"slices"
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
	number, pid         int64 // -1 and 0 for unknown
	group               inspector.Membership
}

// attributes are those of a rank. Its pod is for one metric alone.
func (r *rank) attributes() (all []metadata.MetricAttributeOption) {
	of := &r.group
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
	if r.number >= 0 {
		all = append(all, metadata.WithGpuJobRankMetricAttribute(r.number))
	}
	if r.pid > 0 {
		all = append(all, metadata.WithProcessPidMetricAttribute(r.pid))
	}
	if of.Size > 0 {
		all = append(all, metadata.WithGpuCommunicatorSizeMetricAttribute(of.Size), metadata.WithGpuCommunicatorRankMetricAttribute(of.Rank))
	}
	return all
}

// report records the metrics of all files, and returns the ranks that live. ended is the
// result of askRAS.
func (s *ncclScraper) report(now time.Time, ended bool) map[rank]bool {
	ts := pcommon.NewTimestampFromTime(now)
	ranks, waiting := map[rank]bool{}, map[string]rank{}
	for _, f := range s.files {
		known := f.of != nil || s.answer != nil && slices.ContainsFunc(f.Parts, func(p inspector.Part) bool { return s.answer.Has(p.ID) })
		of := rank{number: -1, pid: int64(f.pid)}
		switch {
		case f.process == nil:
			continue
		case f.of != nil:
			of = f.of.rank
			of.gpu = s.gpus.GPU(f.pid, len(f.Units) == 1)
			if len(f.Units) != 1 {
				of.number = -1
			}
		case !known && now.Sub(f.written) >= patience: // it may have ended
			// Which of several jobs answers is by chance.
			if ended && now.Sub(f.written) > 5*patience || now.Sub(f.modified) > oldest {
				f.close()
			}
			continue
		}
		s.reportParts(ts, of, f.Parts)
		since := int64(0)
		if f.Stalled {
			since = f.written.Unix()
			for _, p := range f.Parts {
				waiting[p.ID] = rank{job: of.job, group: p.Membership}
			}
		}
		for _, u := range f.Units {
			if of.group = u.Group; ranks[of] {
				continue // without a communicator, as the one before
			}
			ranks[of] = true
			s.reportRank(ts, of, f.Shared, u.Share, since)
		}
	}
	if s.answer == nil {
		return ranks
	}
	for _, l := range s.answer.Laggards(slices.Sorted(maps.Keys(waiting))) {
		state := metadata.AttributeLaggardStateBehind
		if l.Missing {
			state = metadata.AttributeLaggardStateMissing
		}
		of := waiting[l.Communicator]
		of.number, of.pid = -1, l.PID
		of.group = inspector.Membership{ID: l.Communicator, Name: of.group.Name, Rank: l.Rank, Size: l.Size}
		s.builder.RecordGpuCollectiveLaggardDataPoint(ts, 1, state, l.Host, of.attributes()...)
	}
	return ranks
}

func (s *ncclScraper) reportRank(ts pcommon.Timestamp, of rank, shared bool, share float64, since int64) {
	if shared {
		s.builder.RecordGpuCollectiveTimeShareDataPoint(ts, share, of.attributes()...)
	}
	of.pod = ""
	s.builder.RecordGpuCollectiveStalledDataPoint(ts, since, of.attributes()...)
}

func (s *ncclScraper) reportParts(ts pcommon.Timestamp, of rank, parts []inspector.Part) {
	of.role, of.pod = "", ""
	for i := range parts {
		p := &parts[i]
		of.group = p.Membership
		options := of.attributes()
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
// jobs that are not in the answer have ended: another job answers, or none listens.
func (s *ncclScraper) askRAS(ctx context.Context, now time.Time) (ended bool) {
	still := false
	for _, f := range s.files {
		still = still || f.process != nil && f.Stalled && slices.ContainsFunc(f.Units, func(u inspector.Unit) bool {
			return u.Group.ID != "" && (u.Group.Rank == 0 || u.Group.Rank == u.Group.Size-1)
		})
	}
	if !still {
		s.answer = nil
	}
	if !still || s.cfg.RAS == nil || now.Sub(s.asked) < patience {
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

// end ends the series of ranks that were reported and live no more.
func (s *ncclScraper) end(ranks map[rank]bool, now time.Time, out pmetric.Metrics) {
	for of := range s.reported {
		if !ranks[of] {
			s.reportRank(pcommon.NewTimestampFromTime(now), of, true, 0, 0)
		}
	}
	s.reported = ranks
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
