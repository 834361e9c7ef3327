// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"cmp"
	"fmt"
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
}

func (a *API) converter() *converter { return &converter{store: a.o.Store, now: a.o.Now()} }

func (c *converter) sighting(at time.Time) Sighting {
	return Sighting{LastSeen: at.UTC(), AgeSeconds: c.age(at)}
}

func (c *converter) age(at time.Time) float64 { return max(0, c.now.Sub(at).Seconds()) }

func (c *converter) node(v fleetstate.View, gpus bool) Node {
	n, get := v.Node, v.Values.Get
	group, _ := c.store.Group(fleetstate.GroupKey{Cluster: n.Cluster, Group: n.Group})
	if group == nil || n.Group == "" {
		group = new(fleetstate.Group) // not known
	}
	out := Node{
		Key: n.Key, Sighting: c.sighting(v.Seen),
		Group: n.Group, JobID: n.JobID, JobRole: n.JobRole, HostID: n.HostID,
		State: v.State, Health: n.Health.String(), DetectionMode: n.Mode,
		Straggler: v.Straggler(), Suspicion: get(reading.NodeSuspicion), Rank: count(get(reading.NodeRank)),
		AgentStraggler: flag(get(reading.AgentStraggler)), GatewayReachable: flag(get(reading.AgentReachable)),
		Score: get(reading.NodeHealthScore), AgentThreshold: get(reading.AgentThreshold), GroupMedian: group.Get(reading.GroupMedian),
		CPUPressure: get(reading.CPUPressure),
		Utilization: known(&n.Utilization), MaxTemperature: known(&n.MaxCelsius), Power: known(&n.Watts),
		Signals: signals(n, group),
		GPUCount: GPUCount{
			Expected: count(get(reading.GPUsExpected)), Found: count(get(reading.GPUsFound)),
			Lost: count(get(reading.GPUsLost)), Pending: count(get(reading.GPUsPending)),
		},
	}
	for i := range n.GPUs {
		if n.GPUs[i].Parent == "" {
			out.GPUCount.Known++
		}
	}
	c.unjudged(&out, n)
	if gpus {
		out.GPUs = c.gpuList(n)
	}
	return out
}

// brief is the form of a node that the page's map takes of the whole fleet.
func brief(v *fleetstate.View) Brief {
	out := Brief{
		Key: v.Key, Group: v.Group, State: v.State, LastSeen: v.Seen.UTC().Truncate(time.Second), Straggler: v.Straggler(),
		Suspicion: thousandths(v.Values.Get(reading.NodeSuspicion)), Score: thousandths(v.Values.Get(reading.NodeHealthScore)),
	}
	for i := range v.GPUs {
		g := &v.GPUs[i]
		if g.Parent != "" {
			continue
		}
		gpu := BriefGPU{nil, new(int(g.Health)), nil}
		if g.Index >= 0 {
			gpu[0] = &g.Index
		}
		if g.Lost() {
			gpu[1] = new(int(fleetstate.Unhealthy) + 1)
		}
		if t := g.Live(reading.Temperature); t != nil {
			gpu[2] = new(int(math.Round(*t)))
		}
		out.GPUs = append(out.GPUs, gpu)
	}
	slices.SortStableFunc(out.GPUs, func(a, b BriefGPU) int { return cmp.Compare(*cmp.Or(a[0], &last), *cmp.Or(b[0], &last)) })
	return out
}

// last is where a GPU without an index is in the order.
var last = math.MaxInt

func thousandths(x *float64) *float64 {
	if x == nil {
		return nil
	}
	return new(math.Round(*x*1000) / 1000)
}

// unjudged sets why a node has no verdict, and until when.
func (c *converter) unjudged(out *Node, n *fleetstate.Node) {
	why := unjudged.Judged
	if out.State == gpusemconv.StateMissing {
		why = unjudged.Missing
	} else if x := n.Values.Get(reading.NodeUnjudged); x != nil {
		why = unjudged.Reason(*x)
	}
	out.Unjudged, out.UnjudgedText = why.String(), why.Sentence()
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

// signal returns nil for an unknown value.
func signal(values *nodesignal.Values, s nodesignal.Signal) *float64 {
	if !values.Known[s] {
		return nil
	}
	return &values.V[s]
}

// gpuList returns the GPUs in their order.
func (c *converter) gpuList(n *fleetstate.Node) []GPU {
	list := make([]GPU, len(n.GPUs))
	for at, i := range gpuOrder(n) {
		list[at] = c.gpu(n, i)
	}
	return list
}

// gpuOrder returns the places of a node's GPUs in the order of NVML's indices, those without one last.
func gpuOrder(n *fleetstate.Node) []int {
	order := make([]int, len(n.GPUs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(gpuKey(&n.GPUs[a]), gpuKey(&n.GPUs[b])) })
	return order
}

// gpuKey sorts the GPUs of a node.
func gpuKey(g *fleetstate.GPU) string {
	if g.Index < 0 {
		return "~" + g.UUID
	}
	return fmt.Sprintf("%06d", g.Index) + g.UUID
}

func (c *converter) gpu(n *fleetstate.Node, i int) GPU {
	g := &n.GPUs[i]
	get := g.Live
	out := GPU{
		LastReported: g.Reported().UTC(), ReportedAgeSeconds: c.age(g.Reported()),
		UUID: g.UUID, Parent: g.Parent, Model: g.Model, Serial: g.Serial, Driver: g.Driver, BusID: g.BusID,
		Up: flag(get(reading.Up)), UpReason: g.UpReason, Health: g.Health.String(), HealthScore: get(reading.Health), Action: g.Action,
		Reasons:     append([]fleetstate.HealthReason{}, g.Reasons()...),
		Xids:        append([]fleetstate.Xid{}, g.Xids...),
		Throttles:   append([]string{}, g.Throttles()...),
		Allocations: n.Held.Of(g.UUID),
		Temperature: get(reading.Temperature), TemperatureLimit: get(reading.TemperatureLimit),
		TemperatureMargin: get(reading.TemperatureMargin), MemoryTemperature: get(reading.MemoryTemperature),
		Power: get(reading.Power), PowerLimit: get(reading.PowerLimit), SMClock: get(reading.SMClock), SMClockLimit: get(reading.SMClockLimit),
		Utilization: get(reading.Utilization), TensorActivity: get(reading.TensorActivity), SMActivity: get(reading.SMActivity),
		MemoryUsed: get(reading.MemoryUsed), MemoryLimit: get(reading.MemoryLimit),
		ECC: ECC{
			Corrected: get(reading.ECCCorrected), Uncorrected: get(reading.ECCUncorrected),
			CorrectedTotal: get(reading.ECCCorrectedTotal), UncorrectedTotal: get(reading.ECCUncorrectedTotal),
		},
		RemappedRows: Rows{Corrected: get(reading.RemappedCorrected), Uncorrected: get(reading.RemappedUncorrected)},
		PCIeWidth:    get(reading.PCIeWidth), PCIeWidthMax: get(reading.PCIeWidthLimit), PCIeReplays: get(reading.PCIeReplays),
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
		QuorumMet: g.Flag(reading.GroupQuorum), CoverageLow: g.Flag(reading.GroupCoverageLow), Incident: g.Flag(reading.GroupIncident),
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
	out.UnjudgedText = unjudged.Most(&counts).Sentence()
	if x := g.Get(reading.GroupDetectable); x != nil && *x > 0 {
		out.Detectable = new(*x / 100)
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

func count(v *float64) *int64 {
	if v == nil {
		return nil
	}
	return new(int64(*v))
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
