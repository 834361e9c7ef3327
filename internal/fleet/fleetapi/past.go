// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// Bounds of a question about a node's past: an answer of all signals at most points has
// some 60,000 samples.
const (
	maxPastSamples = 200_000
	// maxPastGroups are the groups of a node in the time that are looked up, the last ones.
	maxPastGroups = 8
)

const (
	// scoreName is the score among the signals of a Past.
	scoreName = "score"
	// ownTimeName is what a step takes a rank without the wait for others, in seconds.
	ownTimeName = "own_time"
)

// Past is what a node said over a time, and what its peers were then.
type Past struct {
	fleetstate.Key
	Start   time.Time    `json:"since"`
	End     time.Time    `json:"until"`
	Step    float64      `json:"step_seconds" doc:"Time between two points; each is the last value that was told before it, at most 5 to 30 minutes old"`
	At      []time.Time  `json:"at" doc:"End of each point's step"`
	Signals []PastSignal `json:"signals" doc:"Their lists are as long as at, with null where nothing is known"`
}

// PastSignal is the past of the score or of a signal. The peers are those of the group
// that the node was in at the time.
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
	q := fleethistory.StepQuery{Query: fleethistory.Query{Limit: maxPastSamples}}
	if err := a.span(&q.Query, &in.TimeParams); err != nil {
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

// nodePast asks for what the node said first: its groups are part of it.
func (a *API) nodePast(ctx context.Context, q *fleethistory.StepQuery, out *Past) error {
	q.Clusters, q.Hosts = []string{out.Cluster}, []string{out.Node}
	q.Metrics = namesOf(ownPast)
	own, err := a.o.History.Steps(ctx, q)
	if err != nil {
		return err
	}
	t := newPastTable(q)
	var groups []string // the last one last
	for i := range own {
		s := &own[i]
		row, attributes := t.row(s.At), fleethistory.SplitAttributes(s.Attributes)
		switch pastMetrics[s.Metric] {
		case reading.StepOwnDuration, reading.StepDuration, reading.StepRate:
			t.steps = true
		case reading.NodeSuspicion:
			group := attributes[gpusemconv.AttrPeerGroup]
			t.groups[row] = group
			groups = append(slices.DeleteFunc(groups, func(g string) bool { return g == group }), group)
		default:
			t.add(s, row, attributes, true)
		}
	}
	t.fillGroups()
	q.Hosts = []string{""}
	q.Metrics = namesOf(peersPast)
	for _, group := range groups[max(0, len(groups)-maxPastGroups):] {
		q.Attributes = []string{fleethistory.Pair(gpusemconv.AttrPeerGroup, group)}
		peers, err := a.o.History.Steps(ctx, q)
		if err != nil {
			return err
		}
		t.addPeers(group, peers)
	}
	out.Start, out.End, out.Step = q.Start, q.End, q.Step.Seconds()
	t.write(out)
	return nil
}

// The lists of a PastSignal.
const (
	pastValue = iota
	pastMedian
	pastScale
	pastThreshold
	numPast
)

// pastTable has a row for each step.
type pastTable struct {
	first, step int64    // the end of the first step, Unix milliseconds
	groups      []string // of the node, by row
	signals     map[string]*[numPast][]*float64
	steps       bool // the throughput is of steps
}

func newPastTable(q *fleethistory.StepQuery) *pastTable {
	t := &pastTable{first: q.Ends(q.Start.UnixMilli()), step: q.Step.Milliseconds(), signals: map[string]*[numPast][]*float64{}}
	t.groups = make([]string, 1+(q.End.UnixMilli()-t.first)/t.step)
	return t
}

func (t *pastTable) row(at int64) int {
	return int(min(max((at-t.first)/t.step, 0), int64(len(t.groups)-1)))
}

func (t *pastTable) lists(signal string) *[numPast][]*float64 {
	s := t.signals[signal]
	if s == nil {
		s = new([numPast][]*float64)
		for i := range s {
			s[i] = make([]*float64, len(t.groups))
		}
		t.signals[signal] = s
	}
	return s
}

// fillGroups lets a group last until the next one, and the first one begin at the start.
func (t *pastTable) fillGroups() {
	for i := 1; i < len(t.groups); i++ {
		t.groups[i] = cmp.Or(t.groups[i], t.groups[i-1])
	}
	for i := len(t.groups) - 2; i >= 0; i-- {
		t.groups[i] = cmp.Or(t.groups[i], t.groups[i+1])
	}
}

// pastLists are the lists that a field is in.
var pastLists = map[reading.Field]int{
	reading.NodeHealthScore: pastValue, reading.AgentThreshold: pastThreshold, reading.NodeSignal: pastValue,
	reading.RankShare: pastValue, reading.RankShareMedian: pastMedian,
	reading.GroupMedian: pastMedian, reading.GroupThreshold: pastThreshold,
	reading.SignalMedian: pastMedian, reading.SignalScale: pastScale, reading.SignalThreshold: pastThreshold,
}

// pastMetrics are the metrics that a past is made of, by name. Each says one field.
var pastMetrics = func() map[string]reading.Field {
	out := map[string]reading.Field{}
	for _, f := range slices.Concat(ownPast, peersPast) {
		m, _ := reading.Of(f)
		out[m.Name] = f
	}
	return out
}()

var (
	ownPast   = []reading.Field{reading.NodeHealthScore, reading.NodeSignal, reading.AgentThreshold, reading.NodeSuspicion, reading.StepOwnDuration, reading.StepDuration, reading.StepRate, reading.RankShare, reading.RankShareMedian}
	peersPast = []reading.Field{reading.GroupMedian, reading.GroupThreshold, reading.SignalMedian, reading.SignalScale, reading.SignalThreshold}
)

func namesOf(fields []reading.Field) (names []string) {
	for _, f := range fields {
		m, _ := reading.Of(f)
		names = append(names, m.Name)
	}
	return names
}

// addPeers adds what the peers were while the node was among them.
func (t *pastTable) addPeers(group string, samples []fleethistory.Sample) {
	for i := range samples {
		s := &samples[i]
		row := t.row(s.At)
		if t.groups[row] != group {
			continue
		}
		t.add(s, row, fleethistory.SplitAttributes(s.Attributes), false)
	}
}

// add adds a sample to its list. What the node says itself goes before, such as its threshold of
// the score: it is the one it judges by.
func (t *pastTable) add(s *fleethistory.Sample, row int, attributes map[string]string, own bool) {
	f, signal, v := pastMetrics[s.Metric], cmp.Or(attributes[gpusemconv.AttrSignal], scoreName), s.Value
	if (f == reading.RankShare || f == reading.RankShareMedian) && signal == nodesignal.Throughput.String() {
		if v <= 0 {
			return
		}
		signal, v = ownTimeName, 1/v
	}
	if list := t.lists(signal)[pastLists[f]]; own || list[row] == nil {
		list[row] = &v
	}
}

// unit is that of a signal. A job's own measure of throughput goes before all others.
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
