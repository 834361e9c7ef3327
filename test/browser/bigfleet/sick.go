// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// The sick fleet: four stages of a job on nodes with long names, one trouble of each kind.
const (
	sickCluster = "train-east"
	sickNodes   = 96
	slowNode    = 17 // hot, and slow by it
	lostNode    = 40 // GPU 5 fell off the bus
	remapNode   = 62 // a row of GPU memory waits for a reset
	failedNode  = 75 // a row of GPU memory cannot be remapped
	goneNode    = 88 // silent
)

// slowRack are the nodes behind one leaf switch.
func slowRack(i int) bool { return i >= 48 && i < 54 }

func sickName(i int) string {
	return fmt.Sprintf("gpu-h100-r%02d-n%02d.train-east.example.net", i/6+1, i%6+1)
}

func sickGroup(i int) string { return fmt.Sprintf("llama-70b/stage-%d", i/24) }

// loss is the share of a node's work that is lost, at a time in seconds.
func loss(i int, at float64) float64 {
	noise := 0.006 * math.Sin(float64(i)*1.7+at/37)
	switch {
	case i == slowNode:
		return 0.28 + noise
	case slowRack(i):
		return 0.12 + noise
	default:
		return noise
	}
}

const healthyStep = 0.412 // seconds

func sickFleet(store *fleetstate.Store, tick int) {
	now := time.Now()
	for i := range sickNodes {
		at := now
		if i == goneNode {
			if tick > 0 {
				continue
			}
			at = now.Add(-11 * time.Minute)
		}
		u, ok := store.Begin(fleetstate.Key{Cluster: sickCluster, Node: sickName(i)}, at)
		if !ok {
			continue
		}
		sickNode(&u, i, float64(at.UnixMilli())/1000)
		u.Commit(at)
	}
	if tick == 0 {
		// The GPU was well when the gateway first heard of it.
		u, _ := store.Begin(fleetstate.Key{Cluster: sickCluster, Node: sickName(lostNode)}, now)
		u.SetUp(u.GPU(sickGPU(lostNode, 5)), 0, "lost")
		u.Commit(now)
	}
	for s := range 4 {
		store.UpdateGroup(fleetstate.GroupKey{Cluster: sickCluster, Group: fmt.Sprintf("llama-70b/stage-%d", s)}, now, func(u *fleetstate.GroupUpdate) {
			u.Set(reading.GroupMedian, 0.98)
			u.Set(reading.GroupThreshold, 0.92)
			u.Set(reading.GroupQuorum, 1)
			u.SetMedian(nodesignal.Throughput, 1/healthyStep)
			u.SetScale(nodesignal.Throughput, 0.012)
			u.SetThreshold(nodesignal.Throughput, 0.95/healthyStep)
			u.SetMedian(nodesignal.Compute, 0.97)
			u.SetScale(nodesignal.Compute, 0.01)
			if s == 0 {
				u.Set(reading.JobSlowdown, 1.28)
				u.Set(reading.JobTimeLost, 3600*41)
			}
		})
	}
}

func sickGPU(i, g int) string {
	return fmt.Sprintf("GPU-%08x-6b1d-4f0e-9c2a-%012d", i*2654435761%4294967296, g)
}

func sickNode(u *fleetstate.Update, i int, at float64) {
	lost := loss(i, at)
	u.SetGroup(sickGroup(i))
	u.SetFacts(fleetstate.Facts{JobID: "llama-70b", JobRole: fmt.Sprintf("stage-%d", i/24)})
	u.SetState("active", true)
	u.SetMode("fleet", true)
	u.Set(reading.NodeHealthScore, 0.98-lost)
	u.Set(reading.AgentThreshold, 0.92)
	u.Set(reading.NodeSuspicion, math.Max(0, math.Min(1.6, lost*5)))
	u.SetSignal(nodesignal.Throughput, (1-lost)/healthyStep)
	u.SetSignal(nodesignal.Compute, 0.97-lost*0.9)
	u.SetSignal(nodesignal.CPU, 0.99)
	u.Set(reading.CPUPressure, 0.01)
	u.Set(reading.MemoryPressure, 0.004)
	u.Set(reading.IOPressure, 0.023)
	u.Set(reading.CPUSteal, 0)
	u.Set(reading.LoadAverage, 41.5)
	u.Set(reading.HostMemory, 0.37)
	if i == slowNode {
		u.Set(reading.NodeStraggler, 1)
		u.SetCulprit(nodesignal.Subject{GPU: sickGPU(i, 3), Rank: nodesignal.OrdinalOf(int64(i*8 + 3)), LocalRank: nodesignal.OrdinalOf(3)}, true)
	}
	for g := range gpusPerNode {
		j := u.GPU(sickGPU(i, g))
		u.SetInfo(j, fleetstate.Info{Model: "NVIDIA H100 80GB HBM3", Index: g, Serial: fmt.Sprintf("16502%05d", i*8+g), Driver: "570.124.06"})
		rank := nodesignal.Subject{GPU: sickGPU(i, g), Rank: nodesignal.OrdinalOf(int64(i*8 + g)), LocalRank: nodesignal.OrdinalOf(int64(g))}
		if i == lostNode && g == 5 {
			u.SetXid(j, fleetstate.Xid{Code: 79, Class: "hardware", Count: 1})
			continue
		}
		hot := i == slowNode && g == 3
		remap, failed := i == remapNode && g == 2, i == failedNode && g == 6
		u.SetUp(j, 1, "ok")
		u.SetHealth(j, fleetstate.Healthy, !hot && !remap && !failed)
		u.SetHealth(j, fleetstate.Degraded, hot || remap)
		u.SetHealth(j, fleetstate.Unhealthy, failed)
		switch {
		case hot:
			u.SetReason(j, fleetstate.Reason{Reason: "hw_thermal_slowdown", Action: "none"}, true)
			u.SetThrottle(j, "hw_thermal", true)
		case remap:
			u.SetReason(j, fleetstate.Reason{Reason: "remap_pending", Action: "reset_gpu"}, true)
			u.SetGPU(j, reading.ECCUncorrected, 1)
		case failed:
			u.SetReason(j, fleetstate.Reason{Reason: "remap_failed", Action: "service"}, true)
		}
		celsius, clock := 58+4*math.Sin(float64(i*8+g)), 1.93e9
		if hot {
			celsius, clock = 93, 1.32e9
		}
		u.SetGPU(j, reading.Health, map[bool]float64{true: 100, false: 60}[!hot && !remap && !failed])
		u.SetGPU(j, reading.Temperature, math.Round(celsius))
		u.SetGPU(j, reading.Utilization, 0.98)
		u.SetGPU(j, reading.Power, math.Round(640+20*math.Sin(float64(i+g))))
		u.SetGPU(j, reading.PowerLimit, 700)
		u.SetGPU(j, reading.SMClock, clock)
		u.SetGPU(j, reading.SMClockLimit, 1.98e9)
		u.SetGPU(j, reading.MemoryUsed, 71<<30)
		u.SetGPU(j, reading.MemoryLimit, 80<<30)
		u.SetGPU(j, reading.NVLinkReplay, 0)
		u.SetPod(j, fleetstate.Pod{Namespace: "training", Name: fmt.Sprintf("llama-70b-worker-%d", i), Container: "main"}, true, true)
		u.SetRank(rank, healthyStep/(1-lost), true)
	}
}

func sickEpisodes(store *fleetstate.Store) {
	f := func(v float64) *float64 { return &v }
	now := time.Now()
	place, active := int64(1), int64(24)
	slow := sickGPU(slowNode, 3)
	store.PutEpisode(&fleetstate.Episode{
		ID: "past", Subject: "node", Cluster: sickCluster, Group: sickGroup(slowNode), Node: sickName(slowNode), Signal: "throughput", Severity: "minor",
		Since: now.Add(-26 * time.Hour), Updated: now.Add(-25 * time.Hour), Ended: now.Add(-25 * time.Hour), Gap: f(0.06), Cause: "recovered", Reason: "hw_thermal", Action: "check_cooling",
		Text: "The node was 6 % behind its peers for an hour.",
	})
	store.PutEpisode(&fleetstate.Episode{
		ID: "slow", Subject: "node", Cluster: sickCluster, Group: sickGroup(slowNode), Node: sickName(slowNode),
		Signal: "throughput", Severity: "critical", Since: now.Add(-34 * time.Minute), Updated: now,
		Confidence: f(0.98), Gap: f(0.28), Value: f(0.72 / healthyStep), Median: f(1 / healthyStep), Rank: &place, Active: &active, LostGPUHoursPerHour: f(42), LostGPUHours: f(23.8), Slowdown: f(1.28),
		Reason: "hw_thermal", Action: "check_cooling", GPU: slow, Culprit: nodesignal.Subject{GPU: slow, Rank: nodesignal.OrdinalOf(slowNode*8 + 3), LocalRank: nodesignal.OrdinalOf(3)},
		Evidence: []fleetstate.Evidence{
			{Fact: "hw_thermal", GPU: slow, Unit: "1", Value: f(1), Peers: f(0)},
			{Fact: "temperature", GPU: slow, Unit: "Cel", Value: f(93), Peers: f(60)},
			{Fact: "sm_clock", GPU: slow, Unit: "1", Value: f(0.67), Peers: f(0.97)},
		},
		Text: "The node has been 28 % behind its peers for 34 minutes: its hardware lowers the clocks of GPU 3 because of heat.",
	})
	var rack []string
	for i := range sickNodes {
		if slowRack(i) {
			rack = append(rack, sickName(i))
		}
	}
	store.PutEpisode(&fleetstate.Episode{
		ID: "rack", Subject: "group", Cluster: sickCluster, Group: sickGroup(48), Signal: "throughput", Severity: "major", Since: now.Add(-9 * time.Minute), Updated: now,
		Gap: f(0.12), Nodes: rack, NodeCount: int64(len(rack)), Topology: []string{"leaf=leaf-9"}, TopologyBad: 6, TopologyNodes: 6,
		LostGPUHoursPerHour: f(26), LostGPUHours: f(3.9), Slowdown: f(1.12), Reason: "shared_place", Action: "check_shared",
	})
}

// sickPast is a past of the sick fleet that is made up when it is asked for: the node's
// throughput and its peers', at each step.
type sickPast struct{ fleethistory.None }

func (sickPast) Status() fleethistory.Status { return fleethistory.Status{Storage: "sqlite"} }

func (sickPast) Steps(_ context.Context, q *fleethistory.StepQuery) ([]fleethistory.Sample, error) {
	var list []fleethistory.Sample
	own := q.Hosts[0] != ""
	began := float64(time.Now().Add(-34*time.Minute).UnixMilli()) / 1000
	for end := q.Ends(q.Start.UnixMilli()); end <= q.End.UnixMilli(); end += q.Step.Milliseconds() {
		add := func(metric string, v float64, pairs ...string) {
			list = append(list, fleethistory.Sample{Cluster: sickCluster, Node: q.Hosts[0], Metric: metric, Attributes: fleethistory.JoinAttributes(pairs), At: end, Value: v})
		}
		at := float64(end) / 1000
		throughput := fleethistory.Pair(gpusemconv.AttrSignal, "throughput")
		group := fleethistory.Pair(gpusemconv.AttrPeerGroup, sickGroup(slowNode))
		if own {
			lost := loss(0, at)
			if q.Hosts[0] == sickName(slowNode) && at > began {
				lost = loss(slowNode, at)
			}
			add(gpusemconv.MetricNodeSignal, (1-lost)/healthyStep, throughput)
			add(gpusemconv.MetricNodeHealthScore, 0.98-lost)
			add(gpusemconv.MetricNodeSuspicion, lost, group)
			continue
		}
		add(gpusemconv.MetricStragglerSignalMedian, (1+0.002*math.Sin(at/300))/healthyStep, throughput, group)
		add(gpusemconv.MetricStragglerSignalScale, 0.012, throughput, group)
		add(gpusemconv.MetricStragglerMedian, 0.98, group)
	}
	return list, nil
}
