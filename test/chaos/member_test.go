// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"testing"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// member is a collector of a tier. Its addresses outlive restarts.
type member struct {
	*process.Collector
	name   string
	before level
}

// level is what a process takes after a garbage collection.
type level struct {
	heap       int64
	goroutines int
}

func (m *member) level() (l level) {
	l.heap, l.goroutines = m.Memory()
	return l
}

var shorter = map[string]string{
	"configs/agent.yaml": fmt.Sprintf(`
processors: {straggler: {push_interval: %s}}
exporters: {otlp_grpc: {timeout: 1s}, otlp_grpc/events: {timeout: 1s}}
`, interval),
	"configs/shard.yaml": `
# Without deadbands the gateway's state is the agents' to the bit.
processors: {diff: {deadbands: []}}
exporters: {otlp_grpc: {timeout: 500ms}, otlp_grpc/events: {timeout: 500ms}}
`,
	"configs/gateway.yaml": fmt.Sprintf("processors: {straggler: {push_interval: %s}}\n", interval),
}

// newMember prepares a collector: a shipped configuration, and overlays over it.
func newMember(t *testing.T, name string, env []string, config string, over ...string) *member {
	t.Helper()
	a := process.NewAddrs(t)
	all := append(append([]string{config}, over...), shorter[config], a.Profiled(config))
	return &member{Collector: process.Prepare(t, process.Options{Config: all, Env: env, Addrs: a}), name: name}
}
