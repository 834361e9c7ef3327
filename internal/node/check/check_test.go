// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/detect/unjudged"
	"github.com/gpu-collector/gpu-collector/internal/node/nodescore/nodesignal"
)

// facts are a healthy node's, before a test breaks something.
type facts struct {
	GPUs
	gpu   *GPU
	ports []Port
	Gateway
}

func well() *facts {
	gpu := GPU{Index: "0", PCIBusID: "0000:1b:00.0", Health: "healthy"}
	other := gpu
	other.Index = "1"
	return &facts{
		gpu: &other, GPUs: GPUs{Driver: "570.1", Expected: 2, Found: 2, List: []*GPU{&gpu, &other}},
		ports: []Port{{Key: "k", Address: "127.0.0.1:4317"}, {Key: "k", Address: "127.0.0.1:4318"}, {Key: "k", Address: "127.0.0.1:9464"}},
		Gateway: Gateway{
			Endpoint: "gw:4317", Exporter: "exporters::otlp_grpc", Cluster: "c", Node: "n1",
			Standing:  &threshold.Standing{Node: "n1", Group: "g", Active: 4, Needed: 3},
			Threshold: &threshold.Received{Value: threshold.Value{Group: "g", Threshold: 0.9, QuorumMet: true, All: true}},
		},
	}
}

func (f *facts) findings() []Finding {
	return slices.Concat(f.GPUs.Findings(), Ports(f.ports), f.Gateway.Findings())
}

func TestAllIsWell(t *testing.T) {
	found := well().findings()
	assert.Zero(t, Exit(found))
	assert.Equal(t, `ok       driver      NVIDIA's driver 570.1 answers.
ok       gpus        2 of 2 GPUs answer.
ok       health      Every GPU that answers is healthy.
ok       ports       Free: 127.0.0.1:4317, 127.0.0.1:4318, 127.0.0.1:9464.
ok       gateway     The gateway gw:4317 takes pushes.
ok       threshold   A threshold comes back: 0.9 for g.
ok       peers       4 peers work in group g, 3 are needed.
ok       verdict     The node is compared, and is no straggler.
Nothing is wrong.
`, Text(found))
}

func TestWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name   string
		breaks func(*facts)
		exit   int
		check  string
		status Status
		text   string
		next   string
	}{
		{"no GPU", func(f *facts) { f.GPUs = GPUs{Log: "no library."} }, 3, "driver", Unknown, "No NVIDIA GPU is seen. no library.", "GPU node"},
		{"GPUs without a library", func(f *facts) { f.GPUs = GPUs{Log: "no library.", Expected: 8} }, 1, "driver", Fail, "0 of 8 GPUs answer. no library.", "dmesg"},
		{"no driver", func(f *facts) { f.GPUs = GPUs{Log: "NVML is in trouble: driver_not_loaded"} }, 1, "driver", Fail, "driver_not_loaded", "dmesg"},
		{"a lost GPU", func(f *facts) { f.Found, f.Log = 1, "it is index 1" }, 1, "gpus", Fail, "1 of 2 GPUs answer. it is index 1", "Drain the node and reboot"},
		{"a sick GPU", func(f *facts) {
			f.gpu.Health, f.gpu.Reasons, f.gpu.Actions = "unhealthy", []string{"remap_failed", "xid_48"}, []string{"service", "reset_gpu"}
		}, 1, "health", Fail, "GPU 1 (0000:1b:00.0) is unhealthy: remap_failed, xid_48.", "serviced"},
		{"a GPU that ails", func(f *facts) { f.gpu.Health = "degraded" }, 0, "health", Warn, "is degraded: ", "Watch"},
		{"a GPU without readings", func(f *facts) { f.gpu.Health, f.gpu.Reasons = "unknown", []string{"no_reading"} }, 3, "health", Unknown, "cannot be judged: no_reading.", "dmesg"},
		{"calls that fail", func(f *facts) { f.Failures = []string{"a", "b", "c", "d", "e", "f"} }, 3, "readings", Unknown, "since they fail: a, b, c, d, e, others.", "dmesg"},
		{"too little time", func(f *facts) { f.Looks, f.All = 2, 7 }, 3, "readings", Unknown, "2 of 7 looks", "--timeout"},
		{"a GPU without its fabric", func(f *facts) { f.gpu.Joining = true }, 3, "health", Unknown, "has not joined its fabric yet.", "fabric manager"},
		{"a foreign port", func(f *facts) { f.ports[1].Taken = true }, 1, "ports", Fail, "127.0.0.1:4318 is taken, and not by this agent: 127.0.0.1:4317 is free.", "`k`"},
		{"an agent that runs", func(f *facts) { f.ports[0].Taken, f.ports[1].Taken = true, true }, 0, "ports", OK, "agent that runs: 127.0.0.1:4317, 127.0.0.1:4318", ""},
		{"no such address", func(f *facts) { f.ports[1].Error = "cannot assign" }, 1, "ports", Fail, "cannot listen on 127.0.0.1:4318: cannot assign.", "`k`"},
		{"no exporter", func(f *facts) { f.Gateway = Gateway{} }, 0, "gateway", Warn, "middleware", "agent.yaml"},
		{"a push that fails", func(f *facts) { f.Err = errors.New("why ever") }, 1, "gateway", Fail, "(`exporters::otlp_grpc`) does not take a push: why ever.", "#pushes-fail"},
		{"no quorum", func(f *facts) { f.Threshold.QuorumMet = false }, 0, "threshold", OK, "Verdicts do without", ""},
		{"warming up", func(f *facts) { f.Standing.Active, f.Standing.Why = 0, unjudged.Calibrating }, 0, "peers", Warn, "0 of 3 peers", "Wait"},
		{"behind a shard", func(f *facts) { f.Standing = nil }, 3, "peers", Unknown, "a shard", "/api/v1/nodes/n1"},
		{"not known", func(f *facts) { f.Standing = &threshold.Standing{} }, 0, "peers", Warn, "does not know a node n1 of cluster c", "Start the agent"},
		{"two of three", func(f *facts) { f.Standing.Active = 2 }, 0, "peers", Warn, "2 of 3 peers", "group_by"},
		{"no verdict for a reason", func(f *facts) { f.Standing.Why = unjudged.Lockstep }, 0, "verdict", Warn, "There is no verdict: lockstep. All ranks wait", "`lockstep`"},
		{"no verdict for now", func(f *facts) { f.Standing.Why = unjudged.Idle }, 0, "verdict", OK, "There is no verdict: idle.", ""},
		{"a straggler", func(f *facts) {
			f.Threshold.Verdicts = threshold.NewVerdicts("g", 1, []threshold.Verdict{{Node: "n1", Loss: 0.123, Signal: nodesignal.Throughput}})
		}, 0, "verdict", Warn, "12.3 % behind its peers in throughput", "page"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := well()
			tt.breaks(f)
			found := f.findings()
			assert.Equal(t, tt.exit, Exit(found), Text(found))
			found = slices.DeleteFunc(found, func(f Finding) bool { return f.Check != tt.check })
			i := max(0, slices.IndexFunc(found, func(f Finding) bool { return f.Status != OK }))
			assert.Equal(t, tt.status, found[i].Status)
			assert.Contains(t, found[i].Text, tt.text)
			assert.Contains(t, found[i].Next, tt.next)
		})
	}
}

func TestAGateThatSeesNoGPUIsNoPass(t *testing.T) {
	found := (&GPUs{}).Findings()
	assert.Equal(t, 2, Exit(found))
	assert.Contains(t, Text(found), "Nothing could be checked.")
	assert.Equal(t, 2, Exit(append(found, Finding{Status: Warn})), "nothing was well either")
	assert.Contains(t, Text(append(found, Finding{Status: OK})), "Not all could be judged: see unknown.")
	assert.Contains(t, Text([]Finding{{Status: OK}, {Status: Warn}}), "Nothing fails: see warn.")
}
