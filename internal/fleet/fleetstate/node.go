// SPDX-License-Identifier: Apache-2.0

// Package fleetstate keeps the latest view of every node and GPU of a fleet, of its peer
// groups and its episodes, and reports what changed. Views are immutable and replaced as a
// whole: a read never delays ingest. Pure: no pdata, no clock of its own.
package fleetstate // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Key names a node. The same name may occur in several clusters.
type Key struct {
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
}

// Compare orders keys by cluster, then by node.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Cluster, o.Cluster), cmp.Compare(k.Node, o.Node))
}

// Node is the latest view of a node. It never changes once a reader has it.
type Node struct {
	Key
	// Group is the peer group that the gateway compares the node in.
	Group          string
	HostID         string
	JobID, JobRole string
	// State is active, idle or calibrating as the node reported, or empty. View.State can
	// also be missing, which depends on the time.
	State string
	// Mode is the source of the node's own threshold: fleet, cached, local or none.
	Mode    string
	Values  Numbers[ofNode, *ofNode]
	Signals nodesignal.Values
	GPUs    []GPU
	Held    reading.Holdings // beside the GPUs, where a list for each would take much more
	Links   []Link           // of the network adapters
	// Born is the time of the node's first report, Unix seconds.
	Born   uint32
	boards boards

	// The fields below are derived from the GPUs.

	// Health is the worst of the GPUs', HealthUnknown when none is known.
	Health Health
	// Utilization is the mean of the GPUs, a fraction, NaN when unknown.
	Utilization float64
	// MaxCelsius is the hottest GPU's temperature, NaN when unknown.
	MaxCelsius float64
	// Watts is the power of all GPUs together, NaN when unknown.
	Watts float64
}

// GPU is the latest view of a GPU or of a MIG slice.
type GPU struct {
	// UUID is the identity; Parent is the GPU that a MIG slice is cut from.
	UUID, Parent string
	Info
	Health Health
	// fresh holds until the GPU's first report is published. BadSince is the start of bad.
	fresh bool
	bad   badness
	// BadSince is when the GPU became sick or lost, Unix seconds, 0 while it is neither.
	// BadBefore is true where the first report had it so. Here both take no memory.
	BadBefore bool
	BadSince  uint32
	UpReason  string  // ok, or why the GPU does not answer
	Action    string  // what the driver asks for, none included
	Spells    []Spell // those that hold and those of the last hour, in no order
	Xids      []Xid
	// stepped is when a gauge that keeps its value last became worse, Unix seconds.
	stepped [len(stepping)]uint32
	// throttled are the times of the clocks, in tenths of a second, plus one.
	throttled [len(clocks)]uint32
	Numbers[ofGPU, *ofGPU]
	// seen is the time of the GPU's last point, Unix milliseconds. All views of the GPU share
	// it, so that a report without a change makes no new view.
	seen *atomic.Int64
}

// Info is what does not change in the life of a GPU.
type Info struct {
	// Index is NVML's, -1 when unknown; it is no identity.
	Index                        int
	Model, Serial, Driver, BusID string
}

// badness is what is wrong with a GPU.
type badness uint8

const (
	notBad badness = iota
	sick
	lost
)

func (g *GPU) badness() badness {
	switch up := g.Get(reading.Up); {
	case up != nil && *up == 0:
		return lost
	case g.Health >= Degraded:
		return sick
	}
	return notBad
}

// Lost reports whether the GPU does not answer.
func (g *GPU) Lost() bool { return g.badness() == lost }

// lasting are the numbers that a GPU keeps while it does not answer.
var lasting = [reading.NumFields]bool{
	reading.Up: true, reading.Health: true, reading.TemperatureLimit: true, reading.PowerLimit: true,
	reading.SMClockLimit: true, reading.MemoryLimit: true, reading.PCIeWidthLimit: true,
}

// Live is Get without the readings of a time when the GPU still answered.
func (g *GPU) Live(f reading.Field) *float64 {
	if !lasting[f] && g.Lost() {
		return nil
	}
	return g.Get(f)
}

// Sick reports whether the GPU answers and its health is degraded or worse.
func (g *GPU) Sick() bool { return g.badness() == sick }

// Runs reports whether the node runs one of the jobs or pods. With a UUID only that GPU
// counts.
func (n *Node) Runs(jobs []string, uuid string) bool {
	return uuid == "" && slices.Contains(jobs, n.JobID) ||
		slices.ContainsFunc(n.Held.Of(uuid), func(h reading.Holder) bool { return slices.Contains(jobs, cmp.Or(h.Job, h.Pod)) })
}

// GPUName names a GPU by its index, such as `GPU 3`; it is empty where that is not known.
func (n *Node) GPUName(uuid string) string {
	if n != nil {
		for i := range n.GPUs {
			if g := &n.GPUs[i]; g.UUID == uuid && g.Index >= 0 {
				return "GPU " + strconv.Itoa(g.Index)
			}
		}
	}
	return ""
}

// noteBad records when the GPU became sick or lost.
func (g *GPU) noteBad(at int64) {
	if now := g.badness(); now != g.bad {
		g.bad, g.BadSince, g.BadBefore = now, uint32(at/1000), g.fresh
		if now == notBad {
			g.BadSince, g.BadBefore = 0, false
		}
	}
	g.fresh = false
}

// Reported is the time of the GPU's last point. Behind `diff` that is the last change or
// resync.
func (g *GPU) Reported() time.Time { return time.UnixMilli(g.seen.Load()) }

// reported stores the time once per report: a store at each point would cost more.
func (g *GPU) reported(at int64) {
	if g.seen.Load() != at {
		g.seen.Store(at)
	}
}

// Board reports whether the GPU is a board, which counts as a GPU, and no MIG slice of one.
func (g *GPU) Board() bool { return g.Parent == "" }

// HealthReason is a rule that holds the health score of a GPU down.
type HealthReason struct {
	Reason string `json:"reason"`
	Action string `json:"action,omitempty" doc:"The action for an operator"`
}

// Xid is how often the driver reported an error.
type Xid struct {
	Code  int    `json:"code"`
	Class string `json:"class,omitempty"`
	Count int64  `json:"count"`
}

// empty reports whether nothing is known of the GPU but its name.
func (g *GPU) empty() bool {
	return g.known == 0 && g.Health == HealthUnknown && g.UpReason == "" &&
		!slices.ContainsFunc(g.Spells, Spell.Holds) && len(g.Xids) == 0
}

// Health is the state of a GPU's health; a greater one is worse.
type Health uint8

// The states of health.
const (
	HealthUnknown Health = iota
	Healthy
	Degraded
	Unhealthy
)

var healths = [...]string{"unknown", "healthy", "degraded", "unhealthy"}

func (h Health) String() string { return healths[h] }

// ParseHealth returns the state of that name.
func ParseHealth(s string) (Health, bool) {
	i := slices.Index(healths[:], s)
	return Health(max(i, 0)), i >= 0
}

// derive fills what is derived from the GPUs. Slices of a GPU share its board
// and have no temperature or power of their own, so they do not count twice.
func (n *Node) derive() {
	n.Health, n.Utilization, n.MaxCelsius, n.Watts = HealthUnknown, math.NaN(), math.NaN(), math.NaN()
	used, users := 0.0, 0
	for i := range n.GPUs {
		g := &n.GPUs[i]
		n.Health = max(n.Health, g.Health)
		if v := g.Live(reading.Utilization); v != nil && g.Board() {
			used += *v
			users++
		}
		if v := g.Live(reading.Temperature); v != nil && !(n.MaxCelsius >= *v) {
			n.MaxCelsius = *v
		}
		if v := g.Live(reading.Power); v != nil && g.Board() {
			if math.IsNaN(n.Watts) {
				n.Watts = 0
			}
			n.Watts += *v
		}
	}
	if users > 0 {
		n.Utilization = used / float64(users)
	}
}
