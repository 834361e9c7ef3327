// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"context"
	"fmt"
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
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// logStore is an OTLP/gRPC server that keeps log records.
type logStore struct {
	plogotlp.UnimplementedGRPCServer
	addr string

	mu      sync.Mutex
	records []plog.LogRecord
}

func startLogStore(t *testing.T) *logStore {
	t.Helper()
	s := &logStore{addr: loopback.FreeAddr(t)}
	process.Listen(t, s.addr, func(server *grpc.Server) { plogotlp.RegisterGRPCServer(server, s) })
	return s
}

// overlay has a gateway send its records on to the store.
func (s *logStore) overlay() string {
	return fmt.Sprintf(`
exporters:
  otlp_grpc/events: {endpoint: %q, compression: none, tls: {insecure: true}}
service: {pipelines: {logs: {exporters: [otlp_grpc/events]}}}
`, s.addr)
}

func (s *logStore) Export(_ context.Context, r plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rl := range r.Logs().ResourceLogs().All() {
		for _, sl := range rl.ScopeLogs().All() {
			for _, lr := range sl.LogRecords().All() {
				s.records = append(s.records, lr)
			}
		}
	}
	return plogotlp.NewExportResponse(), nil
}

// named are the records of an event, of a GPU where one is named, in the order they came.
func (s *logStore) named(name, uuid string) []plog.LogRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.records), func(lr plog.LogRecord) bool {
		return lr.EventName() != name || uuid != "" && attribute(lr, "hw.id") != uuid
	})
}

// eventNode is an agent with two GPUs, by configs/agent.yaml.
type eventNode struct {
	*process.Collector
	t          *testing.T
	state      *fakenvml.State
	file, kept string
}

func (n *eventNode) write() { require.NoError(n.t, n.state.Write(n.file)) }

func startEventNode(t *testing.T, gateway, compression string) *eventNode {
	t.Helper()
	dir := t.TempDir()
	n := &eventNode{t: t, state: fakenvml.NewState(2), file: filepath.Join(dir, "state"), kept: filepath.Join(dir, "kept")}
	n.write()
	n.Collector = process.Run(t, process.Options{
		Config: []string{"configs/agent.yaml", pace, fmt.Sprintf(`
receivers:
  nvml: {%s, library_path: %q, state_directory: %q}
exporters:
  otlp_grpc/events: {compression: %s}
service:
  pipelines:
    metrics: {receivers: [nvml, fleet_otlp]}
    logs: {receivers: [nvml]}
`, nvmlPace, fakenvml.Library(t), n.kept, compression)},
		Env: []string{
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
	process.Eventually(n.t, "the state file has "+text, func() bool {
		data, err := os.ReadFile(filepath.Join(n.kept, "nvml.state"))
		return err == nil && bytes.Contains(data, []byte(text))
	})
}

func (n *eventNode) awaitHealth(uuid, state string) {
	n.t.Helper()
	process.Eventually(n.t, uuid+" is "+state, func() bool {
		return process.Scrape(n.t, n.Prom).Is(1, "hw_gpu_health_state_ratio", labels{"hw_id": uuid, "state": state})
	})
}

// TestEventsReachTheGateway has agent, shard and gateway, as shipped: an Xid
// and the change of health that follows go through all of them, also those
// that happen while the gateway is away.
func TestEventsReachTheGateway(t *testing.T) {
	t.Parallel()
	store := startLogStore(t)
	gateway := startGateway(t, store.overlay())
	n := startEventNode(t, startShard(t, gateway.GRPC).GRPC, "zstd")

	began := time.Now().Add(-time.Second)
	uuid := fakenvml.UUID(0)
	n.state.XID(0, 48)
	n.write()
	process.Eventually(t, "both records are at the log store", func() bool {
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
	assert.Zero(t, gateway.Log.Count("Xid 48"), "the log prints no words of a node")

	gateway.Stop()
	n.state.XID(1, 13)
	n.write()
	process.Eventually(t, "the Xid is counted", func() bool {
		return process.Scrape(t, n.Prom).Is(1, "hw_gpu_xid_events_total", labels{"hw_id": fakenvml.UUID(1), "gpu_xid_code": "13"})
	})
	gateway.Start()
	process.Eventually(t, "the Xid waited for the gateway", func() bool {
		return len(store.named("hw.gpu.xid", fakenvml.UUID(1))) == 1
	})
}

// TestHealthSurvivesAKill: an agent that is killed knows afterwards what was wrong with its
// GPUs. How an operator acknowledges it is for the receiver's tests.
func TestHealthSurvivesAKill(t *testing.T) {
	t.Parallel()
	store := startLogStore(t)
	n := startEventNode(t, store.addr, "none")
	uuid := fakenvml.UUID(0)
	n.state.XID(0, 48)
	n.write()
	n.awaitHealth(uuid, "unhealthy")
	// The library has no earlier events for a new process.
	n.awaitKept(`"Code":48`)
	n.awaitKept(`"State":"unhealthy"`)
	n.Kill()
	n.state = fakenvml.NewState(2)
	n.write()
	n.Start()
	n.awaitHealth(uuid, "unhealthy")
	n.awaitHealth(fakenvml.UUID(1), "healthy")
	assert.True(t, process.Scrape(t, n.Prom).Is(1, "hw_gpu_health_reason_ratio", labels{"hw_id": uuid, "reason": "xid_48", "action": "reset_gpu"}))
	// A record that was on its way when the agent died is sent again, as it was.
	changes := slices.CompactFunc(store.named("hw.gpu.health.change", uuid), func(a, b plog.LogRecord) bool { return a.Timestamp() == b.Timestamp() })
	assert.Len(t, changes, 1, "a restart is no change of health")
}
