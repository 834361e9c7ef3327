// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

// converter makes API types of views at one point in time. The results point
// into the views, which never change.
type converter struct {
	store *fleetstate.Store
	now   time.Time
	group *fleetstate.Group // the last one looked up: neighbours share it
}

func (a *API) converter() *converter { return &converter{store: a.o.Store, now: a.o.Now()} }

func (c *converter) sighting(at time.Time) Sighting {
	return Sighting{LastSeen: at.UTC(), AgeSeconds: c.age(at)}
}

func (c *converter) age(at time.Time) float64 { return max(0, c.now.Sub(at).Seconds()) }

func (c *converter) node(v fleetstate.View, gpus bool) Node {
	n := v.Node
	group := c.peers(n)
	out := Node{
		Cluster: n.Cluster, Node: n.Node, Sighting: c.sighting(v.Seen),
		Group: n.Group, JobID: n.JobID, JobRole: n.JobRole, HostID: n.HostID,
		State: v.State, Health: n.Health.String(),
		Straggler: v.Straggler(),
		Suspicion: n.Values.Get(reading.NodeSuspicion), Rank: n.Values.Get(reading.NodeRank),
		AgentStraggler: flag(n.Values.Get(reading.AgentStraggler)), DetectionMode: n.Mode,
		GatewayReachable: flag(n.Values.Get(reading.AgentReachable)),
		Score:            n.Values.Get(reading.NodeHealthScore), Threshold: n.Values.Get(reading.AgentThreshold),
		GroupMedian: group.Get(reading.GroupMedian),
		CPUPressure: n.Values.Get(reading.CPUPressure),
		Usage:       known(&n.Usage), MaxTemperature: known(&n.MaxCelsius), Power: known(&n.Watts),
		Signals: signals(n, group), Culprit: culprit(n.Culprit),
		GPUCount: GPUCount{
			Known: len(n.GPUs), Expected: n.Values.Get(reading.GPUsExpected),
			Found: n.Values.Get(reading.GPUsFound), Lost: n.Values.Get(reading.GPUsLost),
			Pending: n.Values.Get(reading.GPUsPending),
		},
	}
	c.unjudged(&out, n)
	if gpus {
		out.GPUs = c.gpuList(n)
	}
	return out
}

// unjudged says why there is no verdict on a node, and until when.
func (c *converter) unjudged(out *Node, n *fleetstate.Node) {
	why := unjudged.Judged
	if out.State == gpusemconv.StateMissing {
		why = unjudged.Missing
	} else if x := n.Values.Get(reading.NodeUnjudged); x != nil {
		why = unjudged.Reason(*x)
	}
	out.Unjudged, out.Silence = why.String(), why.Sentence()
	if until := n.Values.Get(reading.NodeUnjudgedUntil); until != nil && why != unjudged.Judged && why != unjudged.Missing {
		if at := time.Unix(int64(*until), 0).UTC(); at.After(c.now) {
			out.UnjudgedUntil = &at
		}
	}
}

func signals(n *fleetstate.Node, g *fleetstate.Group) []Signal {
	list := make([]Signal, 0, nodesignal.Count)
	for s := range nodesignal.Count {
		if !n.Signals.Known[s] {
			continue
		}
		list = append(list, Signal{Signal: s.String(), Value: n.Signals.V[s], Median: signal(&g.Medians, s), Scale: signal(&g.Scales, s), Threshold: signal(&g.Thresholds, s)})
	}
	return list
}

// culprit returns nil for none.
func culprit(of nodesignal.Subject) *Culprit {
	if of == (nodesignal.Subject{}) {
		return nil
	}
	return &Culprit{Rank: of.Rank.Int(), LocalRank: of.LocalRank.Int(), GPU: of.GPU}
}

func signal(values *nodesignal.Values, s nodesignal.Signal) *float64 {
	if !values.Known[s] {
		return nil
	}
	return &values.V[s]
}

// peers returns the node's group, an empty one while that is not known.
func (c *converter) peers(n *fleetstate.Node) *fleetstate.Group {
	k := fleetstate.GroupKey{Cluster: n.Cluster, Group: n.Group}
	if c.group == nil || c.group.GroupKey != k {
		g, ok := c.store.Group(k)
		if !ok || n.Group == "" {
			g = &fleetstate.Group{GroupKey: k}
		}
		c.group = g
	}
	return c.group
}

// gpuList returns the GPUs in the order of their indices.
func (c *converter) gpuList(n *fleetstate.Node) []GPU {
	list := make([]GPU, len(n.GPUs))
	for i := range n.GPUs {
		list[i] = c.gpu(n, i)
	}
	slices.SortStableFunc(list, func(a, b GPU) int {
		return cmp.Or(cmp.Compare(index(a), index(b)), cmp.Compare(a.UUID, b.UUID))
	})
	return list
}

func index(g GPU) int {
	if g.Index == nil {
		return math.MaxInt
	}
	return *g.Index
}

func (c *converter) gpu(n *fleetstate.Node, i int) GPU {
	g := &n.GPUs[i]
	out := GPU{
		LastReported: g.Reported().UTC(), ReportedAgeSeconds: c.age(g.Reported()),
		Allocations: allocations(n.Held.Of(g.UUID)),
		UUID:        g.UUID, Parent: g.Parent, Model: g.Model, Serial: g.Serial, Driver: g.Driver, BusID: g.BusID,
		Up: flag(g.Get(reading.Up)), UpReason: g.UpReason,
		Health: g.Health.String(), HealthScore: g.Get(reading.Health), Action: g.Action,
		Reasons: make([]HealthReason, len(g.Reasons)), Xids: make([]Xid, len(g.Xids)),
		Throttles:         append([]string{}, g.Throttles...),
		Temperature:       g.Get(reading.Temperature),
		TemperatureLimit:  g.Get(reading.TemperatureLimit),
		TemperatureMargin: g.Get(reading.TemperatureMargin),
		MemoryTemperature: g.Get(reading.MemoryTemperature),
		Power:             g.Get(reading.Power), PowerLimit: g.Get(reading.PowerLimit),
		Utilization:    g.Get(reading.Utilization),
		TensorActivity: g.Get(reading.TensorActivity), SMActivity: g.Get(reading.SMActivity),
		SMClock: g.Get(reading.SMClock), SMClockLimit: g.Get(reading.SMClockLimit),
		MemoryUsed: g.Get(reading.MemoryUsed), MemoryLimit: g.Get(reading.MemoryLimit),
		ECC: ECC{
			Corrected: g.Get(reading.ECCCorrected), Uncorrected: g.Get(reading.ECCUncorrected),
			CorrectedTotal: g.Get(reading.ECCCorrectedTotal), UncorrectedTotal: g.Get(reading.ECCUncorrectedTotal),
		},
		RemappedRows: Rows{Corrected: g.Get(reading.RemappedCorrected), Uncorrected: g.Get(reading.RemappedUncorrected)},
		PCIeWidth:    g.Get(reading.PCIeWidth), PCIeWidthMax: g.Get(reading.PCIeWidthLimit),
		PCIeReplays: g.Get(reading.PCIeReplays),
	}
	if g.Index >= 0 {
		out.Index = &g.Index
	}
	for i, r := range g.Reasons {
		out.Reasons[i] = HealthReason(r)
	}
	for i, x := range g.Xids {
		out.Xids[i] = Xid(x)
	}
	return out
}

func allocations(holders []reading.Holder) (list []Allocation) {
	for _, h := range holders {
		list = append(list, Allocation{Job: h.Job, Pod: h.Pod, Namespace: h.Namespace, Container: h.Container})
	}
	return list
}

func (c *converter) groupView(g *fleetstate.Group) Group {
	out := Group{
		Cluster: g.Cluster, Group: g.Group, Sighting: c.sighting(g.Seen), Nodes: g.Nodes,
		Threshold: g.Get(reading.GroupThreshold), Median: g.Get(reading.GroupMedian), MAD: g.Get(reading.GroupMAD),
		QuorumMet: g.Flag(reading.GroupQuorum), CoverageLow: g.Flag(reading.GroupCoverageLow),
		PanicMode: g.Flag(reading.GroupPanic), Incident: g.Flag(reading.GroupIncident),
		Signals: []GroupSignal{}, Unjudged: map[string]int64{},
	}
	if out.Nodes == nil {
		out.Nodes = map[string]int64{}
	}
	var counts [unjudged.Count]int
	for _, n := range g.Nodes {
		counts[unjudged.Judged] += int(n)
	}
	for why := range unjudged.Count {
		if n := g.Unjudged[why.String()]; n > 0 {
			out.Unjudged[why.String()] = n
			counts[why], counts[unjudged.Judged] = int(n), counts[unjudged.Judged]-int(n)
		}
	}
	out.Silence = unjudged.Most(&counts).Sentence()
	if x := g.Get(reading.GroupDetectable); x != nil && *x > 0 {
		out.Detectable = x
	}
	if n := g.Get(reading.GroupStragglers); n != nil {
		out.Stragglers = int(*n)
	}
	for s := range nodesignal.Count {
		if g.Medians.Known[s] {
			out.Signals = append(out.Signals, GroupSignal{s.String(), g.Medians.V[s], signal(&g.Scales, s), signal(&g.Thresholds, s)})
		}
	}
	return out
}

func (c *converter) episode(e *fleetstate.Episode) Episode {
	out := Episode{
		ID: e.ID, Subject: e.Subject, Cluster: e.Cluster, Group: e.Group, Node: e.Node,
		Open: e.Open(), Since: e.Since.UTC(), SinceBefore: e.SinceBefore, Updated: e.Updated.UTC(), AgeSeconds: c.age(e.Updated), Duration: c.age(e.Since),
		Signal: e.Signal, Severity: e.Severity, Confidence: e.Confidence, Gap: e.Gap, Value: e.Value, Median: e.Median,
		Rank: e.Rank, Active: e.Active, LostGPUHours: e.LostGPUHoursPerHour, Nodes: e.Nodes, NodeCount: e.NodeCount,
		Cause: e.Cause, Reason: e.Reason, Action: e.Action, Observation: e.Observation, GPU: e.GPU, Text: e.Text, Job: e.Job, Communicator: e.Communicator, Culprit: culprit(e.Culprit),
	}
	if !e.Open() {
		ended := e.Ended.UTC()
		out.Ended, out.Duration = &ended, max(0, e.Ended.Sub(e.Since).Seconds())
	}
	out.Allocations = allocations(e.Holders)
	for _, ev := range e.Evidence {
		out.Evidence = append(out.Evidence, Evidence(ev))
	}
	return out
}

func flag(v *float64) *bool {
	if v == nil {
		return nil
	}
	b := *v != 0
	return &b
}

func known(v *float64) *float64 {
	if math.IsNaN(*v) {
		return nil
	}
	return v
}
