// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

// The sick fleet: four stages of a job on nodes with long names, one trouble of each kind.
const (
	sickCluster = "train-east"
	sickNodes   = 96
	slowNode    = 17 // hot, and slow by it
	lostNode    = 40 // GPU 5 fell off the bus
	remapNode   = 62 // a row of GPU memory waits for a reset
	failedNode  = 75 // a row of GPU memory cannot be remapped
	goneNode    = 88 // missing
	healthyStep = 0.412
)

// slowRack are the nodes behind one leaf switch.
func slowRack(i int) bool { return i >= 48 && i < 54 }

func sickName(i int) string {
	return fmt.Sprintf("gpu-h100-r%02d-n%02d.train-east.example.net", i/6+1, i%6+1)
}

func sickGroup(i int) string { return fmt.Sprintf("llama-70b/stage-%d", i/24) }

func sickGPU(i, g int) string {
	return fmt.Sprintf("GPU-%08x-6b1d-4f0e-9c2a-%012d", i*2654435761%4294967296, g)
}

// sickFleet reports all nodes; tick 0 is the first time.
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
		sickNode(&u, i, float64(at.Unix()))
		if i == lostNode {
			// The GPU was well when the gateway first saw it.
			u.SetUp(u.GPU(sickGPU(i, 5)), map[bool]float64{true: 1}[tick == 0], map[bool]string{true: "ok", false: "lost"}[tick == 0])
		}
		u.Commit(at)
	}
	for s := range 4 {
		store.UpdateGroup(fleetstate.GroupKey{Cluster: sickCluster, Group: sickGroup(s * 24)}, now, func(u *fleetstate.GroupUpdate) {
			u.Set(reading.GroupMedian, 0.98)
			u.Set(reading.GroupQuorum, 1)
			u.SetMedian(nodesignal.Throughput, 1/healthyStep)
			u.SetScale(nodesignal.Throughput, 0.012)
			u.SetThreshold(nodesignal.Throughput, 0.95/healthyStep)
		})
	}
}

func sickNode(u *fleetstate.Update, i int, at float64) {
	lost := 0.006 * math.Sin(float64(i)*1.7+at/37)
	switch {
	case i == slowNode:
		lost += 0.28
		u.Set(reading.NodeStraggler, 1)
	case slowRack(i):
		lost += 0.12
		u.Set(reading.NodeStraggler, 1)
	}
	u.SetGroup(sickGroup(i))
	u.SetFacts(fleetstate.Facts{JobID: "llama-70b", JobRole: fmt.Sprintf("stage-%d", i/24)})
	u.SetState("active", true)
	u.Set(reading.NodeHealthScore, 0.98-lost)
	u.Set(reading.AgentThreshold, 0.92)
	u.Set(reading.NodeSuspicion, math.Max(0, math.Min(1.6, lost*5)))
	u.SetSignal(nodesignal.Throughput, (1-lost)/healthyStep)
	for g := range gpusPerNode {
		j := u.GPU(sickGPU(i, g))
		u.SetInfo(j, fleetstate.Info{Model: "NVIDIA H100 80GB HBM3", Index: g, Driver: "570.124.06"})
		if i == lostNode && g == 5 {
			u.SetXid(j, fleetstate.Xid{Code: 79, Class: "hardware", Count: 1}, true)
			continue
		}
		celsius, clock, health := 58+4*math.Sin(float64(i*8+g)), 1.93e9, fleetstate.Healthy
		switch {
		case i == slowNode && g == 3:
			celsius, clock = 93, 1.32e9
			u.SetThrottle(j, "hw_thermal", true)
		case i == remapNode && g == 2:
			health = fleetstate.Degraded
			u.SetReason(j, fleetstate.HealthReason{Reason: "remap_pending", Action: "reset_gpu"}, true)
		case i == failedNode && g == 6:
			health = fleetstate.Unhealthy
			u.SetReason(j, fleetstate.HealthReason{Reason: "remap_failed", Action: "service"}, true)
		}
		u.SetUp(j, 1, "ok")
		u.SetHealth(j, health, true)
		u.SetGPU(j, reading.Temperature, math.Round(celsius))
		u.SetGPU(j, reading.Power, math.Round(640+20*math.Sin(float64(i+g))))
		u.SetGPU(j, reading.SMClock, clock)
	}
}

func sickEpisodes(store *fleetstate.Store) {
	now := time.Now()
	slow := sickGPU(slowNode, 3)
	e := episode.Episode{
		ID: "slow", Subject: "node", Cluster: sickCluster, Group: sickGroup(slowNode), Node: sickName(slowNode),
		Signal: "throughput", Severity: episode.SeverityCritical, Since: now.Add(-34 * time.Minute), Updated: now,
		Confidence: new(0.98), Gap: new(0.28), Value: new(0.72 / healthyStep), Median: new(1 / healthyStep), Cost: new(42.0),
		Reason: "hw_thermal", Action: "check_cooling", GPU: slow, Culprit: nodesignal.Subject{GPU: slow, Rank: nodesignal.OrdinalOf(slowNode*8 + 3), LocalRank: nodesignal.OrdinalOf(3)},
		Evidence: []episode.Evidence{
			{Fact: "temperature", GPU: slow, Unit: "Cel", Value: new(93.0), Peers: new(60.0)},
			{Fact: "sm_clock", GPU: slow, Unit: "1", Value: new(0.67), Peers: new(0.97)},
		},
	}
	past := e
	past.ID, past.Severity, past.Since, past.Updated, past.Ended, past.Cause = "past", episode.SeverityMinor, now.Add(-26*time.Hour), now.Add(-25*time.Hour), now.Add(-25*time.Hour), "recovered"
	rack := episode.Episode{
		ID: "rack", Subject: "group", Cluster: sickCluster, Group: sickGroup(48), Signal: "throughput", Severity: episode.SeverityMajor, Since: now.Add(-9 * time.Minute), Updated: now,
		Gap: new(0.12), Cost: new(26.0),
	}
	for i := range sickNodes {
		if slowRack(i) {
			rack.Nodes, rack.NodeCount = append(rack.Nodes, sickName(i)), rack.NodeCount+1
		}
	}
	store.PutEpisode(&past)
	store.PutEpisode(&e)
	store.PutEpisode(&rack)
}
