// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/detect/straggler"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/otlp"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode/words"
	"github.com/gpu-collector/gpu-collector/internal/verdict/reason"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// explainer adds to episodes what the fleet view knows: the reason, the GPU and the cost.
type explainer struct {
	views   *views
	groupBy []string
	gpus    map[fleetstate.GroupKey]int // of the active nodes at this tick, -1 where they are not known
}

func newExplainer(cfg *Config, views *views) *explainer {
	return &explainer{views: views, groupBy: cfg.GroupBy}
}

// maxAgain unexplained episodes are explained again at a tick: the facts may come late.
const maxAgain = 16

// explain completes the episodes of a report.
func (x *explainer) explain(r *straggler.Report) {
	x.gpus = make(map[fleetstate.GroupKey]int)
	for _, e := range r.Events {
		if e.Node != "" && e.Phase == episode.PhaseOnset {
			e.Holders = x.holders(e)
		}
		if e.Phase != episode.PhaseEnd && slow(e) {
			x.why(e, r)
		}
	}
	again := 0
	for _, e := range r.Open {
		if !slow(e) {
			continue
		}
		if e.Reason == string(reason.Unexplained) && again < maxAgain {
			again++
			x.why(e, r)
		}
		e.Cost = x.cost(e, r) // one that ended keeps what it cost last
	}
	for _, e := range r.Events {
		names := x.views.node(e.Cluster, e.Node).GPUName
		e.Part = words.Part(e, names)
		e.Text = words.Line(e, names)
	}
}

// slow reports whether an episode is about slowness that facts explain.
func slow(e *episode.Episode) bool {
	return e.Subject == episode.SubjectNode || e.Subject == episode.SubjectGroup
}

// why adds the reason.
func (x *explainer) why(e *episode.Episode, r *straggler.Report) {
	members := groupMembers(r.Nodes, e.Cluster, e.Group)
	since := e.Since
	if e.SinceBefore {
		since = time.Time{}
	}
	var f reason.Finding
	if e.Subject == episode.SubjectNode {
		f = reason.Explain(x.views.node(e.Cluster, e.Node), x.workers(members, false, e.Node), since, e.Updated)
	} else {
		slow := make([]*fleetstate.Node, len(e.Nodes))
		for i, name := range e.Nodes {
			slow[i] = x.views.node(e.Cluster, name)
		}
		f = reason.ExplainGroup(slow, x.workers(members, true, e.Nodes...), since, e.Updated)
	}
	e.Reason, e.Action, e.Observation, e.GPU = string(f.Reason), string(f.Action), f.Observation, cmp.Or(f.GPU, e.Culprit.GPU)
	if f.Reason == reason.Unexplained && e.Ranks > 0 {
		e.Action = string(gpuhealth.ActionInspectJob) // its own time was compared, and not its hardware
	}
	e.Shared, e.Asked, e.Evidence = int64(f.Shared), int64(f.Asked), f.Evidence
}

// groupMembers returns the part of nodes, which are in order, that is one group.
func groupMembers(nodes []straggler.NodeReport, cluster, group string) []straggler.NodeReport {
	at, _ := slices.BinarySearchFunc(nodes, group, func(n straggler.NodeReport, group string) int {
		return cmp.Or(cmp.Compare(n.Cluster, cluster), cmp.Compare(n.Group, group))
	})
	end := at
	for end < len(nodes) && nodes[end].Cluster == cluster && nodes[end].Group == group {
		end++
	}
	return nodes[at:end]
}

// workers are the views of the active nodes but these, without the stragglers where that is
// asked. An idle node is no measure of a node that works.
func (x *explainer) workers(nodes []straggler.NodeReport, healthy bool, but ...string) iter.Seq[*fleetstate.Node] {
	return func(yield func(*fleetstate.Node) bool) {
		for i := range nodes {
			n := &nodes[i]
			if n.State != nodesignal.StateActive || healthy && n.Straggler || slices.Contains(but, n.Node) {
				continue
			}
			if view := x.views.node(n.Cluster, n.Node); view != nil && !yield(view) {
				return
			}
		}
	}
}

// holders hold the culprit's GPU. Where none is known, they hold any of the node's GPUs.
func (x *explainer) holders(e *episode.Episode) []reading.Holder {
	view := x.views.node(e.Cluster, e.Node)
	if view == nil {
		return nil
	}
	list := view.Held.Of(e.Culprit.GPU)
	if len(list) == 0 {
		list = view.Held.Of("")
	}
	return list[:min(len(list), episode.MaxHolders)]
}

// cost is gap times GPUs: in a synchronous job, which steps together, all wait for the
// slowest (Greyhound, ATC '25). It is nil unless the nodes belong to a job and the
// number of GPUs of all active ones is known.
func (x *explainer) cost(e *episode.Episode, r *straggler.Report) *float64 {
	job := slices.Index(x.groupBy, gpusemconv.AttrJobID)
	gpus := 0
	switch {
	case e.Gap == nil || *e.Gap <= 0:
		return nil
	case e.Ranks > 1:
		gpus = int(e.Ranks) - 1 // each has one
	case job < 0 || job >= len(e.GroupLabels) || e.GroupLabels[job] == "":
		return nil
	default:
		gpus = x.gpusOf(fleetstate.GroupKey{Cluster: e.Cluster, Group: e.Group}, r)
	}
	if gpus <= 0 {
		return nil
	}
	cost := min(*e.Gap, 1) * float64(gpus)
	return &cost
}

// gpusOf counts the GPUs of a group's active nodes, -1 where one's are not known.
func (x *explainer) gpusOf(k fleetstate.GroupKey, r *straggler.Report) int {
	if n, known := x.gpus[k]; known {
		return n
	}
	sum := 0
	for _, n := range groupMembers(r.Nodes, k.Cluster, k.Group) {
		if n.State != nodesignal.StateActive {
			continue
		}
		gpus, known := x.views.gpus(n.Cluster, n.Node)
		if !known {
			sum = -1
			break
		}
		sum += gpus
	}
	x.gpus[k] = sum
	return sum
}

// record is an episode as the log record that docs/events.md describes.
func record(e *episode.Episode, ids *identifier, version string, now time.Time) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	ids.stamp(rl.Resource().Attributes(), e.Cluster, e.Node, e.GroupLabels)
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(version)
	otlp.Encode(e, sl.LogRecords().AppendEmpty(), now)
	return ld
}

// logEpisode writes an episode's record to the collector's own log. For many the line is the
// only thing that they read.
func logEpisode(e *episode.Episode, logger *zap.Logger) {
	fields := []zap.Field{zap.String("cluster", e.Cluster)}
	for _, f := range [...]struct{ key, text string }{{"group", e.Group}, {"node", e.Node}, {"communicator", e.CommunicatorID}} {
		if f.text != "" {
			fields = append(fields, zap.String(f.key, f.text))
		}
	}
	of := e.Culprit
	of.GPU = cmp.Or(e.GPU, of.GPU)
	fields = appendSubject(fields, of)
	if !e.SinceBefore {
		fields = append(fields, zap.String("since", e.Since.UTC().Format(time.RFC3339)))
	}
	if e.Reason != "" {
		fields = append(fields, zap.String("reason", e.Reason))
	}
	fields = append(fields, zap.String("episode", e.ID))
	if e.Phase == episode.PhaseEnd {
		logger.Info(e.Text, fields...)
	} else {
		logger.Warn(e.Text, fields...)
	}
}

// appendSubject adds what is known of the part of a node that is meant.
func appendSubject(fields []zap.Field, of nodesignal.Subject) []zap.Field {
	if n, known := of.Rank.Get(); known {
		fields = append(fields, zap.Int64("rank", n))
	}
	if n, known := of.LocalRank.Get(); known {
		fields = append(fields, zap.Int64("local_rank", n))
	}
	if of.GPU != "" {
		fields = append(fields, zap.String("gpu", of.GPU))
	}
	return fields
}
