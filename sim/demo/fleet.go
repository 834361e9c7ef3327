// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"time"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// healthy is how long the simulated nodes train without a fault.
const healthy = 10 * time.Second

type fault struct {
	kind          fleetclient.AttentionItemKind
	cluster, node string // no node: many
}

// faults are all that is wrong. The recording has the first.
var faults = []fault{
	{fleetclient.AttentionItemKindStraggler, "demo", "dp0-pp0"},
	{fleetclient.AttentionItemKindStraggler, "west", "west-a4"},
	{fleetclient.AttentionItemKindLostGPU, "west", "west-a7"},
	{fleetclient.AttentionItemKindStraggler, "west", "west-b3"},
	{fleetclient.AttentionItemKindGroupFault, "east", ""},
}

// simulated returns the fleets that push beside the recording, 32 nodes in all.
func simulated(otlp int) ([]*fleetpush.Pusher, error) {
	cooling := fleetsim.Fault{Node: 3, Kind: fleetsim.ThermalThrottle, GPU: 3, From: 4 * time.Second, Severity: 0.62} // the GPU is hot by 25 s
	fault := func(kind fleetsim.Kind, node, gpu int, severity float64) fleetsim.Fault {
		return fleetsim.Fault{Node: node, Kind: kind, GPU: gpu, From: healthy, Severity: severity}
	}
	numbered := func(format string) func(int) string {
		return func(nth int) string { return fmt.Sprintf(format, nth+1) }
	}
	var pushers []*fleetpush.Pusher
	for _, cfg := range []fleetpush.Config{
		{
			Cluster: "west", Nodes: 8, NodeName: numbered("west-a%d"), JobName: numbered("pretrain-a%d"),
			Faults: []fleetsim.Fault{cooling, fault(fleetsim.LostGPU, 6, 2, 1)},
		},
		{
			Cluster: "west", Nodes: 8, NodeName: numbered("west-b%d"), JobName: numbered("pretrain-b%d"), Ranks: true,
			Faults: []fleetsim.Fault{fault(fleetsim.Neighbour, 2, 5, 0.3)},
		},
		{
			// Four racks of four nodes; all nodes in the third lose clock speed.
			Cluster: "east", Nodes: 16, JobName: numbered("finetune-%d"),
			NodeName: func(nth int) string { return fmt.Sprintf("rack%d-node%d", nth/4+1, nth%4+1) },
			Faults: []fleetsim.Fault{
				fault(fleetsim.ClockLock, 8, fleetsim.AllGPUs, 0.3), fault(fleetsim.ClockLock, 9, fleetsim.AllGPUs, 0.3),
				fault(fleetsim.ClockLock, 10, fleetsim.AllGPUs, 0.3), fault(fleetsim.ClockLock, 11, fleetsim.AllGPUs, 0.3),
			},
		},
	} {
		interval := time.Second
		if cfg.Ranks { // a tick is a mean of several steps
			interval *= 2
		}
		// Of these seeds no job writes a checkpoint in the first minutes, in which no node is judged.
		cfg.Seed = uint64(len(pushers) + 5)
		cfg.GPUs, cfg.Jobs, cfg.Step, cfg.Start = 8, 1, interval, time.Now()
		fleet, err := fleetpush.New(cfg)
		if err != nil {
			return nil, err
		}
		push := fleetpush.DefaultPushConfig()
		push.Endpoint, push.Interval, push.Connections = fmt.Sprintf("127.0.0.1:%d", otlp), interval, 1
		pusher, err := fleetpush.NewPusher(push, fleet)
		if err != nil {
			return nil, err
		}
		pushers = append(pushers, pusher)
	}
	return pushers, nil
}
