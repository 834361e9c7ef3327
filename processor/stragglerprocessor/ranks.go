// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/rankattr"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/slowlink"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
)

// rankReader takes what the ranks of jobs tell of their communicators. Like the observer,
// it is guarded by the gateway's mutex.
type rankReader struct {
	links *slowlink.Book
	hangs *hang.Book
	job   int // place of the job among the peers, from 1 on; 0 is without jobs

	// Of the resource that is being read.
	resource pcommon.Map
	point    slowlink.Point
	now      time.Time
}

func newRankReader(cfg *Config) *rankReader {
	return &rankReader{links: cfg.links(), hangs: cfg.hangs(), job: cfg.jobPeer()}
}

func (r *rankReader) begin(id nodeKey, resource pcommon.Map, peers []string, now time.Time) {
	r.resource, r.now = resource, now
	r.point = slowlink.Point{Cluster: id.cluster, Node: id.node}
	if r.job > 0 && r.job <= len(peers) {
		r.point.Job = peers[r.job-1]
	}
}

// take reads a metric about communicators. It reports whether a rank of the node lives.
func (r *rankReader) take(from *metricreading.Resource, p *metricreading.Point, known *reading.Metric, m pmetric.Metric, refused func(error)) (any bool) {
	points, ok := from.Open(known, m)
	if !ok {
		return false
	}
	for i := range points.Len() {
		if from.Read(points.At(i), p) == reading.Accepted {
			any = any || !p.Ended
			if err := r.put(p); err != nil {
				refused(err)
			}
		}
	}
	return any
}

func (r *rankReader) put(p *metricreading.Point) error {
	a := p.Attributes()
	of := hang.Of{Communicator: textOf(a, gpusemconv.AttrCommunicatorID), Rank: intOf(a, gpusemconv.AttrCommunicatorRank)}
	switch p.Field {
	case reading.CommunicatorShare:
		if !p.Ended {
			r.links.Spend(r.point.Cluster, of.Communicator, of.Rank, p.Value)
		}
	case reading.CommunicatorBandwidth:
		if p.Ended {
			r.links.Drop(r.point.Cluster, of.Communicator, of.Rank)
			return nil
		}
		r.point.ID, r.point.Rank, r.point.Bandwidth = of.Communicator, of.Rank, p.Value
		r.point.Name = textOf(a, gpusemconv.AttrCommunicatorName)
		r.point.Kind = slowlink.Kind{
			Operation: textOf(a, gpusemconv.AttrCollectiveOperation), Size: intOf(a, gpusemconv.AttrCollectiveSize),
			Ranks: intOf(a, gpusemconv.AttrCommunicatorSize), Nodes: intOf(a, gpusemconv.AttrCommunicatorNodes),
		}
		return r.links.Add(&r.point, r.now)
	case reading.CollectiveProgress:
		if p.Ended || r.point.Job == "" {
			return nil
		}
		told := p.Timestamp().AsTime()
		done := told.Add(-time.Duration(p.Value * float64(time.Second)))
		subject := rankattr.Within(r.resource, a)
		if of.Communicator == "" {
			// Of a file that does not tell: then the rank is known by its own name.
			of.Communicator = textOf(a, gpusemconv.AttrCommunicatorName) + " of " + r.point.Node + " " + subject.String()
		}
		return r.hangs.Progress(r.point.Cluster, r.point.Job, r.point.Node, of, subject, done, told, r.now)
	case reading.CollectivePause:
		if p.Ended || r.point.Job == "" || !r.hangs.Has(r.point.Cluster, r.point.Job) {
			return nil // a process that has just begun has told nothing else
		}
		return r.hangs.Pause(r.point.Cluster, r.point.Job, rankattr.Within(r.resource, a), time.Duration(p.Value*float64(time.Second)))
	case reading.CollectiveLaggard:
		if p.Ended || p.Value == 0 {
			r.hangs.Unlag(r.point.Cluster, r.point.Job, of)
			return nil
		}
		return r.hangs.Lag(r.point.Cluster, r.point.Job, hang.Laggard{
			Of: of, Missing: textOf(a, gpusemconv.AttrLaggardState) == gpusemconv.LaggardMissing, Host: textOf(a, gpusemconv.AttrServerAddress),
		}, r.now)
	default:
	}
	return nil
}

// power takes what a push says of a node's work. Only the name of a job tells which nodes
// work together.
func (r *rankReader) power(f *found) error {
	power := f.Values.Known[nodesignal.Power]
	if tells := power || f.HasState || f.Heartbeat; r.point.Job == "" || !tells {
		return nil
	}
	return r.hangs.Power(f.Cluster, r.point.Job, f.Node, hang.Draw{
		Busy: f.State == straggler.StateActive, HasBusy: f.HasState, Watts: f.Values.V[nodesignal.Power], HasWatts: power,
	}, r.now)
}

func textOf(a pcommon.Map, key string) string {
	if v, ok := a.Get(key); ok && v.Type() == pcommon.ValueTypeStr {
		return v.Str()
	}
	return ""
}

func intOf(a pcommon.Map, key string) int64 {
	if v, ok := a.Get(key); ok && v.Type() == pcommon.ValueTypeInt {
		return v.Int()
	}
	return 0
}
