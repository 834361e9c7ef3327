// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
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
		Key: n.Key, Sighting: c.sighting(v.Seen),
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
		Signals: signals(n, group),
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
	if share := n.Values.Get(reading.RankShare); share != nil {
		list = append(list, Signal{Signal: nodesignal.Communication.String(), Value: *share, Median: n.Values.Get(reading.RankShareMedian)})
	}
	if rate := n.Values.Get(reading.RankRate); rate != nil && *rate > 0 {
		own := Signal{Signal: ownTimeName, Value: 1 / *rate}
		if m := n.Values.Get(reading.RankRateMedian); m != nil && *m > 0 {
			own.Median = new(1 / *m)
		}
		list = append(list, own)
	}
	return list
}

// signal returns nil for a value that is not known.
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
		Allocations: n.Held.Of(g.UUID),
		UUID:        g.UUID, Parent: g.Parent, Model: g.Model, Serial: g.Serial, Driver: g.Driver, BusID: g.BusID,
		Up: flag(g.Live(reading.Up)), UpReason: g.UpReason,
		Health: g.Health.String(), HealthScore: g.Live(reading.Health), Action: g.Action,
		Reasons:           append([]fleetstate.HealthReason{}, g.Reasons()...),
		Xids:              append([]fleetstate.Xid{}, g.Xids...),
		Throttles:         append([]string{}, g.Throttles()...),
		Temperature:       g.Live(reading.Temperature),
		TemperatureLimit:  g.Live(reading.TemperatureLimit),
		TemperatureMargin: g.Live(reading.TemperatureMargin),
		MemoryTemperature: g.Live(reading.MemoryTemperature),
		Power:             g.Live(reading.Power), PowerLimit: g.Live(reading.PowerLimit),
		Utilization:    g.Live(reading.Utilization),
		TensorActivity: g.Live(reading.TensorActivity), SMActivity: g.Live(reading.SMActivity),
		SMClock: g.Live(reading.SMClock), SMClockLimit: g.Live(reading.SMClockLimit),
		MemoryUsed: g.Live(reading.MemoryUsed), MemoryLimit: g.Live(reading.MemoryLimit),
		ECC: ECC{
			Corrected: g.Live(reading.ECCCorrected), Uncorrected: g.Live(reading.ECCUncorrected),
			CorrectedTotal: g.Live(reading.ECCCorrectedTotal), UncorrectedTotal: g.Live(reading.ECCUncorrectedTotal),
		},
		RemappedRows: Rows{Corrected: g.Live(reading.RemappedCorrected), Uncorrected: g.Live(reading.RemappedUncorrected)},
		PCIeWidth:    g.Live(reading.PCIeWidth), PCIeWidthMax: g.Live(reading.PCIeWidthLimit),
		PCIeReplays: g.Live(reading.PCIeReplays),
	}
	if g.Lost() {
		out.Throttles = []string{}
		if !g.BadBefore {
			out.DownSince = new(time.Unix(int64(g.BadSince), 0).UTC())
		}
	}
	if g.Index >= 0 {
		out.Index = &g.Index
	}
	return out
}

func (c *converter) groupView(g *fleetstate.Group) Group {
	out := Group{
		GroupKey: g.GroupKey, Sighting: c.sighting(g.Seen), Nodes: g.Nodes,
		Threshold: g.Get(reading.GroupThreshold), Median: g.Get(reading.GroupMedian), MAD: g.Get(reading.GroupMAD),
		QuorumMet: g.Flag(reading.GroupQuorum), CoverageLow: g.Flag(reading.GroupCoverageLow),
		Incident: g.Flag(reading.GroupIncident),
		Signals:  []GroupSignal{}, Unjudged: map[string]int64{},
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

func (c *converter) episode(e *episode.Episode) Episode {
	out := Episode{Episode: *e, Open: e.Open(), AgeSeconds: c.age(e.Updated), Duration: c.age(e.Since)}
	out.Since, out.Updated, out.Ended = e.Since.UTC(), e.Updated.UTC(), e.Ended.UTC()
	if !out.Open {
		out.Duration = e.Duration().Seconds()
	}
	return out
}

func flag(v *float64) *bool {
	if v == nil {
		return nil
	}
	return new(*v != 0)
}

func known(v *float64) *float64 {
	if math.IsNaN(*v) {
		return nil
	}
	return v
}
