// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Bounds of a request for a node's past: all signals at most points are 60,000 samples.
const (
	maxPastSamples = 200_000
	// maxPastGroups bounds the groups of the node in the time range; the last ones count.
	maxPastGroups = 8
)

const (
	// scoreName is the score among the signals of a Past.
	scoreName = "score"
	// ownTimeName is a rank's time for a step without the wait for others, in seconds.
	ownTimeName = "own_time"
)

// Past is what a node reported over a time range, beside its peers.
type Past struct {
	fleetstate.Key
	Start   time.Time    `json:"since"`
	End     time.Time    `json:"until"`
	Step    float64      `json:"step_seconds" doc:"Time between two points; each is the last value that was told before it, at most 5 to 30 minutes old"`
	At      []time.Time  `json:"at" doc:"End of each point's step"`
	Signals []PastSignal `json:"signals" doc:"Their lists are as long as at, with null where nothing is known"`
}

// PastSignal is the past of the score or of a signal. The peers are those of the node's group
// at the time.
type PastSignal struct {
	Signal    string     `json:"signal" doc:"A signal, score, or of the rank that is furthest behind communication and own_time"`
	Unit      string     `json:"unit,omitempty" doc:"Of value, median and threshold, in UCUM; absent where only the job knows it"`
	Value     []*float64 `json:"value" doc:"What the node said"`
	Median    []*float64 `json:"median" doc:"Of its peers"`
	Scale     []*float64 `json:"scale" doc:"How much its peers differ; of the score there is none"`
	Threshold []*float64 `json:"threshold" doc:"Of the verdict"`
}

const pastPath = "/api/v1/nodes/{node}/past"

type getNodePastInput struct {
	NodeParam
	TimeParams
	Points int `query:"points" minimum:"2" maximum:"1000" default:"360" doc:"At most so many points"`
}

func (a *API) getNodePast(ctx context.Context, in *getNodePastInput) (*Past, error) {
	out := &Past{Key: fleetstate.Key{Cluster: in.Cluster, Node: in.Node}}
	// The history knows nodes that the view has forgotten.
	switch v, err := a.find(&in.NodeParam, a.o.Now()); {
	case err == nil:
		out.Cluster = v.Cluster
	case in.Cluster == "":
		return nil, err
	}
	q := fleethistory.Query{Limit: maxPastSamples}
	if err := a.span(&q, &in.TimeParams); err != nil {
		return nil, err
	}
	if q.End.Sub(q.Start) > maxRange {
		return nil, badParam("query.since", q.Start.Format(time.RFC3339), "must be at most 3650d before `until`, %s", q.End.Format(time.RFC3339))
	}
	// One less: the first step may begin before the start.
	seconds := math.Ceil(q.End.Sub(q.Start).Seconds() / float64(in.Points-1))
	q.Step = time.Duration(max(seconds, 1)) * time.Second
	if err := a.nodePast(ctx, &q, out); err != nil {
		return nil, historyError(err)
	}
	if err := a.someCluster([]string{out.Cluster}, len(out.At)); err != nil {
		return nil, err
	}
	return out, nil
}

// nodePast queries the node first: its groups are part of the answer.
func (a *API) nodePast(ctx context.Context, q *fleethistory.Query, out *Past) error {
	q.Clusters, q.Hosts, q.Metrics = []string{out.Cluster}, []string{out.Node}, slices.Sorted(maps.Keys(ownPast))
	own, err := fleethistory.Steps(ctx, a.o.History, q)
	if err != nil {
		return err
	}
	t := newPastTable(q)
	var groups []string // the last one last
	for i := range own {
		s := &own[i]
		switch ownPast[s.Metric] {
		case pastSteps:
			t.steps = true
		case pastGroup:
			group := fleethistory.SplitAttributes(s.Attributes)[gpusemconv.AttrPeerGroup]
			t.groups[t.row(s.At)] = group
			groups = append(slices.DeleteFunc(groups, func(g string) bool { return g == group }), group)
		default:
			t.add(s, ownPast[s.Metric], true)
		}
	}
	t.fillGroups()
	q.Hosts, q.Metrics = []string{""}, slices.Sorted(maps.Keys(peersPast))
	for _, group := range groups[max(0, len(groups)-maxPastGroups):] {
		if q.PeerGroup = group; group == "" {
			continue // nobody is its peer
		}
		peers, err := fleethistory.Steps(ctx, a.o.History, q)
		if err != nil {
			return err
		}
		for i := range peers {
			if s := &peers[i]; t.groups[t.row(s.At)] == group { // the node was among them
				t.add(s, peersPast[s.Metric], false)
			}
		}
	}
	out.Start, out.End, out.Step = q.Start, q.End, q.Step.Seconds()
	t.write(out)
	return nil
}

// The lists of a PastSignal, and other meanings of a metric.
const (
	pastValue = iota
	pastMedian
	pastScale
	pastThreshold
	numPast
	pastGroup // the group of the node
	pastSteps // the throughput is of steps
)

// The metrics of a past, those of a node and those of its group.
var (
	ownPast = map[string]int{
		gpusemconv.MetricNodeHealthScore: pastValue, gpusemconv.MetricNodeSignal: pastValue, gpusemconv.MetricAgentThreshold: pastThreshold,
		gpusemconv.MetricStragglerRankValue: pastValue, gpusemconv.MetricStragglerRankMedian: pastMedian,
		gpusemconv.MetricNodeSuspicion:      pastGroup,
		gpusemconv.MetricAppStepOwnDuration: pastSteps, gpusemconv.MetricAppStepDuration: pastSteps, gpusemconv.MetricAppStepRate: pastSteps,
	}
	peersPast = map[string]int{
		gpusemconv.MetricStragglerMedian: pastMedian, gpusemconv.MetricStragglerThreshold: pastThreshold,
		gpusemconv.MetricStragglerSignalMedian: pastMedian, gpusemconv.MetricStragglerSignalScale: pastScale,
		gpusemconv.MetricStragglerSignalThreshold: pastThreshold,
	}
)

// pastTable has a row for each step.
type pastTable struct {
	first, step int64    // the end of the first step, Unix milliseconds
	groups      []string // of the node, by row
	signals     map[string]*[numPast][]*float64
	steps       bool // the throughput is of steps
}

func newPastTable(q *fleethistory.Query) *pastTable {
	t := &pastTable{first: q.Ends(q.Start.UnixMilli()), step: q.Step.Milliseconds(), signals: map[string]*[numPast][]*float64{}}
	t.groups = make([]string, 1+(q.End.UnixMilli()-t.first)/t.step)
	return t
}

func (t *pastTable) row(at int64) int {
	return int(min(max((at-t.first)/t.step, 0), int64(len(t.groups)-1)))
}

// fillGroups extends a group until the next one, and the first one back to the start.
func (t *pastTable) fillGroups() {
	for i := 1; i < len(t.groups); i++ {
		t.groups[i] = cmp.Or(t.groups[i], t.groups[i-1])
	}
	for i := len(t.groups) - 2; i >= 0; i-- {
		t.groups[i] = cmp.Or(t.groups[i], t.groups[i+1])
	}
}

// add adds a sample to its list. The node's own value comes first: the node judges itself by
// its own threshold.
func (t *pastTable) add(sample *fleethistory.Sample, list int, own bool) {
	name, v := cmp.Or(fleethistory.SplitAttributes(sample.Attributes)[gpusemconv.AttrSignal], scoreName), sample.Value
	ofRank := sample.Metric == gpusemconv.MetricStragglerRankValue || sample.Metric == gpusemconv.MetricStragglerRankMedian
	if ofRank && name == nodesignal.Throughput.String() {
		if v <= 0 {
			return
		}
		name, v = ownTimeName, 1/v
	}
	s := t.signals[name]
	if s == nil {
		s = new([numPast][]*float64)
		for i := range s {
			s[i] = make([]*float64, len(t.groups))
		}
		t.signals[name] = s
	}
	if at := &s[list][t.row(sample.At)]; own || *at == nil {
		*at = &v
	}
}

// unit is that of a signal. A job's own measure of throughput comes first.
func (t *pastTable) unit(signal string) string {
	switch {
	case signal == ownTimeName:
		return "s"
	case signal == nodesignal.Power.String():
		return "W"
	case signal != nodesignal.Throughput.String():
		return "1"
	case t.steps:
		return "{step}/s"
	}
	return ""
}

// write leaves out the steps in which nothing is known.
func (t *pastTable) write(out *Past) {
	var rows []int
	for i := range t.groups {
		for _, s := range t.signals {
			if s[pastValue][i] != nil || s[pastMedian][i] != nil {
				rows = append(rows, i)
				break
			}
		}
	}
	out.At, out.Signals = make([]time.Time, 0, len(rows)), []PastSignal{}
	for _, i := range rows {
		out.At = append(out.At, time.UnixMilli(t.first+int64(i)*t.step).UTC())
	}
	for name, s := range t.signals {
		var lists [numPast][]*float64
		for i, list := range s {
			lists[i] = make([]*float64, 0, len(rows))
			for _, row := range rows {
				lists[i] = append(lists[i], list[row])
			}
		}
		out.Signals = append(out.Signals, PastSignal{name, t.unit(name), lists[pastValue], lists[pastMedian], lists[pastScale], lists[pastThreshold]})
	}
	slices.SortFunc(out.Signals, func(a, b PastSignal) int { return cmp.Compare(a.Signal, b.Signal) })
}
