// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/internal/unjudged"
)

func wellGPU(index int) GPU {
	return GPU{Index: index, PCIBusID: "0000:1b:00.0", Health: "healthy", LinksUp: 18, Width: 16, WidthMax: 16, Generation: 5}
}

// well is a node with nothing to say about, before a test breaks something.
func well() *Facts {
	standing := &threshold.Standing{Node: "n1", Group: "g", Active: 4, Needed: 3}
	return &Facts{
		GPUs:  &GPUs{Driver: "570.1", Expected: 2, Found: 2, List: []GPU{wellGPU(0), wellGPU(1)}},
		Clock: &Clock{Known: true, Synchronised: true},
		Ports: []Port{{Key: "receivers::otlp", Address: "127.0.0.1:4317", Free: true}, {Address: "127.0.0.1:4318", Held: true, Own: true}},
		Gateway: &Gateway{
			Endpoint: "gw:4317", Exporter: "exporters::otlp_grpc", Node: "n1", Answer: threshold.Answer{Epoch: true, Standing: standing},
			Threshold: &threshold.Received{Value: threshold.Value{Group: "g", Threshold: 0.9, QuorumMet: true, All: true}},
		},
	}
}

func TestAllIsWell(t *testing.T) {
	found := Findings(well())
	assert.Zero(t, Exit(found))
	assert.Equal(t, `ok       driver         NVIDIA's driver 570.1 answers.
ok       gpus           2 of 2 GPUs answer.
ok       health         Every GPU that answers is healthy.
ok       links          GPU 0, 1: PCIe x16 of x16, generation 5 now, 18 of 18 NVLinks up.
ok       throttling     No clock is held down.
ok       clock          The clock is synchronised. It is within 2s of the gateway's.
ok       ports          A collector listens on 127.0.0.1:4318. Free: 127.0.0.1:4317.
ok       gateway        The gateway gw:4317 takes pushes.
ok       threshold      A threshold comes back: 0.9 for g.
ok       peers          4 peers work in group g, 3 are needed.
ok       verdict        The node is compared, and is no straggler.
All is well.
`, Text(found))
}

func TestWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		name   string
		breaks func(*Facts)
		exit   int
		check  string
		status Status
		text   string
		next   string
	}{
		{"not valid", func(f *Facts) { f.Configuration = errors.New("bad key") }, 2, "configuration", Fail, "bad key", "validate"},
		{"no receiver", func(f *Facts) { f.GPUs = &GPUs{Absent: true} }, 0, "driver", Unknown, "no nvml receiver", "--config"},
		{"NVML hangs", func(f *Facts) { f.GPUs = &GPUs{Late: true, Waited: 4500 * time.Millisecond} }, 1, "driver", Fail, "not answered within 4.5s", "--timeout 60s"},
		{"no GPU", func(f *Facts) { f.GPUs = &GPUs{Trouble: "No library.", NoLibrary: true} }, 0, "driver", Unknown, "No NVIDIA GPU is seen. No library.", "GPU node"},
		{"GPUs without a library", func(f *Facts) { f.GPUs = &GPUs{Trouble: "No library.", NoLibrary: true, Expected: 8} }, 1, "gpus", Fail, "0 of 8 GPUs", "reboot"},
		{"no driver", func(f *Facts) { f.GPUs = &GPUs{Trouble: "driver_not_loaded"} }, 1, "driver", Fail, "driver_not_loaded", "dmesg"},
		{"a lost GPU", func(f *Facts) { f.GPUs.Found, f.GPUs.List[1].Down = 1, "lost" }, 1, "gpus", Fail, "1 of 2 GPUs answer. GPU 1 (0000:1b:00.0): lost.", "Drain the node and reboot"},
		{"a GPU that never answered", func(f *Facts) { f.GPUs.Expected, f.GPUs.Silent = 3, []string{"index 2"} }, 1, "gpus", Fail, "Not heard of: index 2.", "reboot"},
		{"no state", func(f *Facts) { f.GPUs.Unread = "permission denied" }, 0, "gpus", Warn, "permission denied", "root"},
		{"a sick GPU", func(f *Facts) {
			f.GPUs.List[0].Health, f.GPUs.List[0].Reasons = "unhealthy", []Reason{{"remap_failed", "service"}, {"xid_48", "reset_gpu"}}
		}, 1, "health", Fail, "GPU 0 (0000:1b:00.0) is unhealthy: remap_failed, xid_48.", "serviced"},
		{"a GPU that ails", func(f *Facts) { f.GPUs.List[0].Health = "degraded" }, 0, "health", Warn, "is degraded.", "Watch"},
		{"narrow", func(f *Facts) { f.GPUs.List[1].Width = 8 }, 0, "links", Warn, "GPU 0: PCIe x16 of x16, generation 5 now, 18 of 18 NVLinks up. GPU 1: PCIe x8 of x16", "health"},
		{"a link is down", func(f *Facts) { f.GPUs.List[1].LinksUp, f.GPUs.List[1].LinksDown = 17, 1 }, 0, "links", Warn, "17 of 18 NVLinks", "nvlink"},
		{"hot", func(f *Facts) { f.GPUs.List[1].Throttle = []string{"hw_thermal"} }, 0, "throttling", Warn, "GPU 1 (0000:1b:00.0): hw_thermal.", "cooling"},
		{"full load", func(f *Facts) { f.GPUs.List[1].Throttle = []string{"power_cap"} }, 0, "throttling", OK, "power_cap", ""},
		{"a clock of its own", func(f *Facts) { f.Clock.Synchronised = false }, 0, "clock", Warn, "Nobody synchronises", "chronyd"},
		{"a wrong clock", func(f *Facts) { f.Gateway.Skew = -7 * time.Second }, 0, "clock", Warn, "It is 7s off", "Synchronise both"},
		{"somebody's port", func(f *Facts) { f.Ports[1] = Port{Key: "k", Address: "a:1", Held: true, Holder: "nginx (process 7)"} }, 1, "ports", Fail, "a:1 is taken by nginx (process 7).", "`k`"},
		{"a port of nobody knows whom", func(f *Facts) { f.Ports[1] = Port{Address: "a:1", Held: true} }, 0, "ports", Unknown, "cannot see by whom", "root"},
		{"no such address", func(f *Facts) { f.Ports[1] = Port{Key: "k", Address: "a:1", Error: "cannot assign"} }, 1, "ports", Fail, "cannot listen on a:1: cannot assign.", "`k`"},
		{"no exporter", func(f *Facts) { f.Gateway = &Gateway{Absent: true} }, 0, "gateway", Unknown, "middleware", "agent.yaml"},
		{"no gateway", func(f *Facts) { f.Gateway.Failure, f.Gateway.Error = NobodyAnswers, "refused" }, 1, "gateway", Fail, "nobody answers at that port. refused", "firewall"},
		{"a foreign collector", func(f *Facts) { f.Gateway.Answer = threshold.Answer{} }, 0, "threshold", Warn, "no gateway of thresholds", "middleware"},
		{"no quorum", func(f *Facts) { f.Gateway.Threshold.QuorumMet = false }, 0, "threshold", Warn, "no threshold with a quorum", "`peers`"},
		{"behind a shard", func(f *Facts) { f.Gateway.Answer.Standing = nil }, 0, "peers", Unknown, "does not tell", "/api/v1/nodes/n1"},
		{"not known", func(f *Facts) { f.Gateway.Answer.Standing = &threshold.Standing{} }, 0, "peers", Warn, "does not know a node n1", "Start the agent"},
		{"two of three", func(f *Facts) { f.Gateway.Answer.Standing.Active = 2 }, 0, "peers", Warn, "2 of 3 peers", "group_by"},
		{"silent for a reason", func(f *Facts) { f.Gateway.Answer.Standing.Why = unjudged.Lockstep }, 0, "verdict", Warn, "There is no verdict: lockstep. All wait", "`lockstep`"},
		{"silent for now", func(f *Facts) { f.Gateway.Answer.Standing.Why = unjudged.Idle }, 0, "verdict", OK, "There is no verdict: idle.", ""},
		{"a straggler", func(f *Facts) {
			f.Gateway.Threshold.Verdicts = threshold.NewVerdicts("g", 1, []threshold.Verdict{{Node: "n1", Loss: 0.123, Signal: nodesignal.Throughput}})
		}, 0, "verdict", Warn, "12.3 % behind its peers in throughput", "page"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := well()
			tt.breaks(f)
			found := Findings(f)
			assert.Equal(t, tt.exit, Exit(found), Text(found))
			for _, got := range found {
				if got.Check == tt.check && (got.Status != OK || tt.status == OK) {
					assert.Equal(t, tt.status, got.Status)
					assert.Contains(t, got.Text, tt.text)
					assert.Contains(t, got.Next, tt.next)
					return
				}
			}
			t.Fatal(Text(found))
		})
	}
}

func TestAGateThatSeesNoGPUIsNoPass(t *testing.T) {
	found := Findings(&Facts{GPUs: &GPUs{NoLibrary: true}})
	assert.Equal(t, 2, Exit(found))
	assert.Contains(t, Text(found), "Nothing could be checked.")
}

func TestEachFailureHasWords(t *testing.T) {
	for k := NoAddress; k <= Other; k++ {
		assert.NotEmpty(t, failures[k].text)
		assert.NotEmpty(t, failures[k].next)
	}
}
