// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"google.golang.org/grpc"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
)

// logStore is an OTLP/gRPC server that keeps log records.
type logStore struct {
	plogotlp.UnimplementedGRPCServer
	addr string

	mu      sync.Mutex
	records []plog.LogRecord
	// resources are the attributes of the records' resources.
	resources []map[string]any
}

func startLogStore(t *testing.T) *logStore {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &logStore{addr: listener.Addr().String()}
	server := grpc.NewServer()
	plogotlp.RegisterGRPCServer(server, s)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return s
}

func (s *logStore) Export(_ context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rl := range r.Logs().ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, lr := range sl.LogRecords().All() {
				s.records = append(s.records, lr)
				s.resources = append(s.resources, rl.Resource().Attributes().AsRaw())
			}
		}
	}
	return plogotlp.NewExportResponse(), nil
}

// named are the records of an event about a GPU, in the order they came.
func (s *logStore) named(name, uuid string) []plog.LogRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.records), func(lr plog.LogRecord) bool {
		id, _ := lr.Attributes().Get("hw.id")
		return lr.EventName() != name || id.Str() != uuid
	})
}

// eventNode is an agent with two GPUs, by configs/agent.yaml.
type eventNode struct {
	*collector
	state       *fakenvml.State
	file        string
	acknowledge string
	kept        string
	prom        string
}

func (n *eventNode) write() { require.NoError(n.t, n.state.Write(n.file)) }

func startEventNode(t *testing.T, gateway, compression string) *eventNode {
	t.Helper()
	dir, p := t.TempDir(), newAgentPorts(t)
	n := &eventNode{state: fakenvml.NewState(2), file: filepath.Join(dir, "state"), prom: p.prom}
	n.acknowledge, n.kept = filepath.Join(dir, "acknowledge"), filepath.Join(dir, "kept")
	require.NoError(t, n.state.Write(n.file))
	n.collector = start(t, options{
		configs: []string{"configs/agent.yaml", p.overlay(t), fmt.Sprintf(`
receivers:
  nvml: {%s, library_path: %q, state_directory: %q, acknowledge_file: %q}
exporters:
  otlp_grpc/events: {compression: %s}
service:
  pipelines:
    metrics: {receivers: [nvml, fleet_otlp]}
    logs: {receivers: [nvml]}
`, nvmlPace, fakenvml.Library(t), n.kept, n.acknowledge, compression)},
		env: []string{
			fakenvml.StateEnv + "=" + n.file, "GPU_COLLECTOR_CLUSTER=lab",
			"GPU_COLLECTOR_GATEWAY=" + gateway, "GPU_COLLECTOR_INSECURE=true",
		},
	})
	n.awaitHealth(fakenvml.UUID(1), "healthy")
	return n
}

// awaitKept waits until the state file has the text. What is still being written beside it is
// lost with a kill.
func (n *eventNode) awaitKept(text string) {
	n.t.Helper()
	eventually(n.t, "the state file has "+text, func() bool {
		data, err := os.ReadFile(filepath.Join(n.kept, "nvml.state"))
		return err == nil && bytes.Contains(data, []byte(text))
	})
}

func (n *eventNode) awaitHealth(uuid, state string) {
	n.t.Helper()
	eventually(n.t, uuid+" is "+state, func() bool {
		return scrape(n.t, n.prom).is(1, "hw_gpu_health_state_ratio", labels{"hw_id": uuid, "state": state})
	})
}

// TestEventsReachTheGateway has agent, shard and gateway, as shipped: an Xid
// and the change of health that follows go through all of them, also those
// that happen while the gateway is away.
func TestEventsReachTheGateway(t *testing.T) {
	t.Parallel()
	store, gp, sp := startLogStore(t), newGatewayPorts(t), newGatewayPorts(t)
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), fmt.Sprintf(`
exporters:
  otlp_grpc/events: {endpoint: %q, compression: none, tls: {insecure: true}}
service: {pipelines: {logs: {exporters: [otlp_grpc/events]}}}
`, store.addr)}})
	start(t, options{
		configs: []string{"configs/shard.yaml", fmt.Sprintf(`
receivers: {fleet_otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
extensions: {healthcheckv2: {http: {endpoint: %q}}}
service: {telemetry: {metrics: {level: none}}}
`, sp.grpc, sp.http, sp.health)},
		env: []string{"GPU_COLLECTOR_GATEWAY=" + gp.grpc, "GPU_COLLECTOR_INSECURE=true"},
	})
	n := startEventNode(t, sp.grpc, "zstd")

	began := time.Now().Add(-time.Second)
	uuid := fakenvml.UUID(0)
	n.state.XID(0, 48)
	n.write()
	eventually(t, "both records are at the log store", func() bool {
		return len(store.named("hw.gpu.xid", uuid)) == 1 && len(store.named("hw.gpu.health.change", uuid)) == 1
	})
	xid := store.named("hw.gpu.xid", uuid)[0]
	assert.WithinRange(t, xid.Timestamp().AsTime(), began, time.Now())
	assert.Equal(t, map[string]any{
		"hw.id": uuid, "gpu.xid.code": int64(48), "gpu.xid.class": "uncorrectable_ecc",
		"gpu.xid.immediate_action": "WORKFLOW_XID_48", "hw.gpu.health.action": "reset_gpu",
	}, xid.Attributes().AsRaw())
	change := store.named("hw.gpu.health.change", uuid)[0]
	assert.WithinRange(t, change.Timestamp().AsTime(), began, time.Now())
	assert.Equal(t, map[string]any{
		"hw.id": uuid, "hw.gpu.health.from": "healthy", "hw.gpu.health.to": "unhealthy", "hw.gpu.health.score": int64(20),
		"hw.gpu.health.reasons": []any{"xid_48"}, "hw.gpu.health.actions": []any{"reset_gpu"},
	}, change.Attributes().AsRaw())
	assert.Zero(t, gateway.log.Count("Xid 48"), "the log prints no words of a node")

	gateway.stop()
	n.state.XID(1, 13)
	n.write()
	eventually(t, "the Xid is counted", func() bool {
		return scrape(t, n.prom).is(1, "hw_gpu_xid_events_total", labels{"hw_id": fakenvml.UUID(1), "gpu_xid_code": "13"})
	})
	gateway.restart()
	eventually(t, "the Xid waited for the gateway", func() bool {
		return len(store.named("hw.gpu.xid", fakenvml.UUID(1))) == 1
	})
}

// TestHealthSurvivesAKill: an agent that is killed knows afterwards what was
// wrong with its GPUs, until an operator says that it is not.
func TestHealthSurvivesAKill(t *testing.T) {
	t.Parallel()
	store := startLogStore(t)
	n := startEventNode(t, store.addr, "none")
	uuid := fakenvml.UUID(0)
	n.state.XID(0, 48)
	n.write()
	n.awaitHealth(uuid, "unhealthy")
	// The library tells a new process of the events of its own time only.
	n.awaitKept(`"Code":48`)
	n.awaitKept(`"State":"unhealthy"`)
	n.kill()
	n.state = fakenvml.NewState(2)
	n.write()
	n.restart()
	n.awaitHealth(uuid, "unhealthy")
	n.awaitHealth(fakenvml.UUID(1), "healthy")
	assert.True(t, scrape(t, n.prom).is(1, "hw_gpu_health_reason_ratio", labels{"hw_id": uuid, "reason": "xid_48", "action": "reset_gpu"}))
	// A record that was on its way when the agent died is sent again, as it was.
	changes := func() []plog.LogRecord {
		return slices.CompactFunc(store.named("hw.gpu.health.change", uuid), func(a, b plog.LogRecord) bool { return a.Timestamp() == b.Timestamp() })
	}
	assert.Len(t, changes(), 1, "a restart is no change of health")

	require.NoError(t, os.WriteFile(n.acknowledge, []byte("GPU-0\nnonsense 1 2\n"+uuid+" 48\n"), 0o600))
	n.awaitHealth(uuid, "healthy")
	n.waitLog(1, "a line of the file of acknowledgements is not understood", "line 2")
	n.waitLog(1, "a GPU that is acknowledged is not known", `"gpu": "GPU-0"`)
	assert.NoFileExists(t, n.acknowledge)
	eventually(t, "the acknowledgement is at the log store", func() bool {
		all := changes()
		if len(all) != 2 {
			return false
		}
		a := all[1].Attributes().AsRaw()
		return a["hw.gpu.health.from"] == "unhealthy" && a["hw.gpu.health.to"] == "healthy" &&
			assert.ObjectsAreEqual([]any{"acknowledged"}, a["hw.gpu.health.reasons"])
	})

	// A power cut left a page of zeros.
	n.kill()
	kept := filepath.Join(n.kept, "nvml.state")
	data, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(kept, append(data[:len(data)/2], make([]byte, 4096)...), 0o600))
	n.restart()
	n.awaitHealth(uuid, "healthy")
	n.waitLog(1, "the file is set aside", "nvml.state.set_aside")
	n.awaitKept(uuid)
}
