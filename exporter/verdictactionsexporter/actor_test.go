// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/exporter/exportertest"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"

	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter/internal/metadata"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/eventdoc"
	"github.com/gpu-collector/gpu-collector/test/kubeapi"
)

type host struct {
	component.Host
	extensions map[component.ID]component.Component
}

func (h *host) GetExtensions() map[component.ID]component.Component { return h.extensions }

// world is what an actor lives in, over its restarts.
type world struct {
	t    *testing.T
	dir  string
	api  *kubeapi.Server
	logs func(plog.Logs) error
	stop func()
	cfg  *Config
	skip atomic.Int64 // nanoseconds
}

// later has the time pass at once.
func (w *world) later(d time.Duration) { w.skip.Add(int64(d)) }

func (w *world) now() time.Time { return fast().Add(time.Duration(w.skip.Load())) }

// fast is a clock by which the waits between two tries pass soon.
func fast() time.Time { return began.Add(40 * time.Since(began)) }

var began = time.Now()

// soon are times of a Lease that passes on soon; client-go rounds the first to seconds.
var soon = leaseTimes{duration: 3 * time.Second, deadline: 2 * time.Second, retry: 100 * time.Millisecond}

func newWorld(t *testing.T, change func(*Config)) *world {
	return newWorldAt(t, kubeapi.New(t), change)
}

// newWorldAt is one beside another at the same API server.
func newWorldAt(t *testing.T, api *kubeapi.Server, change func(*Config)) *world {
	w := &world{t: t, dir: t.TempDir(), api: api}
	cfg := createDefaultConfig().(*Config)
	cfg.Cluster, cfg.DryRun, cfg.PollInterval = "prod", false, 10*time.Second
	cfg.Breaker.MaxFraction, cfg.Confirmation.SilenceWait = 1, 0
	id := component.MustNewID("file_storage")
	cfg.State.StorageID = &id
	cfg.Audit.File = filepath.Join(w.dir, "actions.jsonl")
	cfg.Kubernetes = configoptional.Some(KubernetesConfig{
		Kubeconfig: w.api.Kubeconfig(t), Namespace: "ours",
		Rungs: KubernetesRungs{Event: true, Condition: true, Label: true, Taint: true, Cordon: true, Evict: true},
	})
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	w.cfg = cfg
	w.start()
	return w
}

func (w *world) start() {
	f := filestorage.NewFactory()
	storageCfg := f.CreateDefaultConfig().(*filestorage.Config)
	storageCfg.Directory = w.dir
	storage, err := f.Create(w.t.Context(), extensiontest.NewNopSettings(f.Type()), storageCfg)
	require.NoError(w.t, err)
	h := &host{componenttest.NewNopHost(), map[component.ID]component.Component{component.MustNewID("file_storage"): storage}}
	require.NoError(w.t, storage.Start(w.t.Context(), h))
	set := exportertest.NewNopSettings(metadata.Type)
	set.ID = component.NewID(metadata.Type) // the same over restarts
	e, err := newFactory(w.now, 10*time.Millisecond, soon).CreateLogs(w.t.Context(), set, w.cfg)
	require.NoError(w.t, err)
	require.NoError(w.t, e.Start(w.t.Context(), h))
	w.logs = func(ld plog.Logs) error { return e.ConsumeLogs(context.Background(), ld) }
	var stopped bool
	w.stop = func() {
		if !stopped {
			stopped = true
			require.NoError(w.t, e.Shutdown(context.Background()))
			require.NoError(w.t, storage.Shutdown(context.Background()))
		}
	}
	w.t.Cleanup(w.stop)
}

// push sends a record until the actor takes it.
func (w *world) push(ld plog.Logs) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) { assert.NoError(c, w.logs(ld)) }, 10*time.Second, 10*time.Millisecond)
}

// hot is the onset of an episode with a hardware reason.
func hot(cluster, node string) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	rl.Resource().Attributes().PutStr(gpusemconv.AttrClusterName, cluster)
	rl.Resource().Attributes().PutStr(gpusemconv.AttrHostName, node)
	rl.Resource().Attributes().PutStr(gpusemconv.AttrJobID, "llama")
	lr := rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty()
	lr.SetEventName(gpusemconv.EventStraggler)
	a := lr.Attributes()
	for k, v := range map[string]string{
		gpusemconv.AttrEpisodeID: "ep-" + node, gpusemconv.AttrEpisodePhase: "onset", gpusemconv.AttrEpisodeSubject: "node",
		gpusemconv.AttrEpisodeSeverity: "major", gpusemconv.AttrSignal: "throughput", gpusemconv.AttrEpisodeReason: "hw_thermal",
		gpusemconv.AttrEpisodeAction: "check_cooling", gpusemconv.AttrHWID: "GPU-" + node, gpusemconv.AttrPeerGroup: "g",
	} {
		a.PutStr(k, v)
	}
	a.PutDouble(gpusemconv.AttrEpisodeGap, 0.182)
	a.PutInt(gpusemconv.AttrEpisodePeersActive, 100)
	return ld
}

// audited reads the file of the audit.
func (w *world) audited() (list []plog.LogRecord) {
	w.t.Helper()
	text, err := os.ReadFile(w.cfg.Audit.File)
	require.NoError(w.t, err)
	for line := range strings.Lines(string(text)) {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs([]byte(line))
		require.NoError(w.t, err)
		list = append(list, ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0))
	}
	return list
}

func text(lr plog.LogRecord, key string) string {
	v, ok := lr.Attributes().Get(key)
	if !ok {
		return ""
	}
	return v.AsString()
}

// decisions are the records as STEP OUTCOME RULE.
func (w *world) decisions() (list []string) {
	for _, lr := range w.audited() {
		list = append(list, text(lr, gpusemconv.AttrActionStep)+" "+text(lr, gpusemconv.AttrActionOutcome)+" "+text(lr, gpusemconv.AttrActionRule))
	}
	return list
}

func (w *world) waitFor(decision string) {
	w.t.Helper()
	require.EventuallyWithT(w.t, func(c *assert.CollectT) { assert.Contains(c, w.decisions(), decision) }, 20*time.Second, 20*time.Millisecond)
}

func daemon(p *corev1.Pod) {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Name: "d", Controller: &yes}}
}

func TestAConfirmedNodeIsKeptOff(t *testing.T) {
	w := newWorld(t, nil)
	w.api.Node(t, "a")
	w.api.Pod(t, "a", "free", false, nil)
	w.api.Pod(t, "a", "held", true, nil)
	w.api.Pod(t, "a", "daemon", false, daemon)
	w.api.Pod(t, "b", "elsewhere", false, nil)
	w.push(hot("prod", "a"))
	w.waitFor("evict refused disruption_budget")

	var n corev1.Node
	require.True(t, w.api.Get(t, "/api/v1/nodes/a", &n))
	assert.True(t, n.Spec.Unschedulable)
	assert.Equal(t, []corev1.Taint{{Key: "actions.gpu-collector.io/suspect", Value: "hw_thermal", Effect: corev1.TaintEffectNoSchedule}}, n.Spec.Taints)
	assert.Equal(t, "suspect", n.Labels["actions.gpu-collector.io/state"])
	require.Len(t, n.Status.Conditions, 1)
	assert.Equal(t, corev1.ConditionTrue, n.Status.Conditions[0].Status)
	assert.Equal(t, "HwThermal", n.Status.Conditions[0].Reason)

	writes := w.api.Writes()
	event := slices.IndexFunc(writes, func(s string) bool { return strings.Contains(s, "/events/") })
	condition, mark := slices.Index(writes, "PATCH /api/v1/nodes/a/status"), slices.Index(writes, "PATCH /api/v1/nodes/a")
	require.NotEqual(t, -1, event)
	assert.Less(t, event, condition, "event, condition, taint, in this order")
	assert.Less(t, condition, mark)
	assert.Contains(t, writes, "POST /api/v1/namespaces/jobs/pods/free/eviction")
	for _, s := range writes {
		assert.NotContains(t, s, "DELETE")
		assert.NotContains(t, s, "daemon")
		assert.NotContains(t, s, "elsewhere")
	}
	var pod corev1.Pod
	assert.True(t, w.api.Get(t, "/api/v1/namespaces/jobs/pods/held", &pod), "the budget holds it")
	w.api.Budget("held", false)
	w.waitFor("transition taken empty")
}

// ledger is a gateway that takes the records of the audit.
type ledger struct {
	plogotlp.UnimplementedGRPCServer
	mu      sync.Mutex
	records []plog.LogRecord
}

func (l *ledger) Export(_ context.Context, request plogotlp.ExportRequest) (plogotlp.ExportResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, rl := range request.Logs().ResourceLogs().All() {
		for _, lr := range rl.ScopeLogs().At(0).LogRecords().All() {
			l.records = append(l.records, lr)
		}
	}
	return plogotlp.NewExportResponse(), nil
}

// serve returns the exporter's settings to reach it.
func (l *ledger) serve(t *testing.T) otlpexporter.Config {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := grpc.NewServer()
	plogotlp.RegisterGRPCServer(server, l)
	go func() { _ = server.Serve(listener) }() // until it is stopped
	t.Cleanup(server.Stop)
	cfg := otlpexporter.NewFactory().CreateDefaultConfig().(*otlpexporter.Config)
	cfg.ClientConfig.Endpoint, cfg.ClientConfig.TLS.Insecure = listener.Addr().String(), true
	return *cfg
}

func TestDryRunWritesNothing(t *testing.T) {
	run := func(dry bool) ([]string, []string) {
		gateway := new(ledger)
		w := newWorld(t, func(c *Config) {
			c.DryRun, c.Audit.OTLP = dry, configoptional.Some(gateway.serve(t))
		})
		w.api.Node(t, "a")
		w.api.Pod(t, "a", "free", false, nil)
		w.push(hot("prod", "a"))
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			var evictions []string
			for _, d := range w.decisions() {
				if d == "evict taken marked" {
					evictions = append(evictions, d)
				}
			}
			assert.Len(c, evictions, 2, "of the pod, and of the node")
		}, 20*time.Second, 20*time.Millisecond)
		w.stop()
		var file, sent []map[string]any
		for _, lr := range w.audited() {
			assert.Equal(t, strconv.FormatBool(dry), text(lr, gpusemconv.AttrActionDryRun))
			file = append(file, lr.Attributes().AsRaw())
		}
		for _, lr := range gateway.records {
			assert.Equal(t, gpusemconv.EventAction, lr.EventName())
			sent = append(sent, lr.Attributes().AsRaw())
		}
		assert.ElementsMatch(t, file, sent, "the gateway's ledger has what the file has")
		var ids []string
		for _, lr := range w.audited() {
			if text(lr, gpusemconv.AttrActionRule) != "empty" { // that is of the cluster's own doing
				ids = append(ids, text(lr, gpusemconv.AttrActionID)+" "+text(lr, gpusemconv.AttrActionOutcome)+" "+text(lr, gpusemconv.AttrActionRule)+" "+text(lr, gpusemconv.AttrActionAfter))
			}
		}
		return ids, w.api.Writes()
	}
	wet, wrote := run(false)
	dry, wroteDry := run(true)
	assert.NotEmpty(t, wrote)
	assert.Empty(t, wroteDry)
	assert.Equal(t, wet, dry, "the same audit records")
}

func TestAnswersThatRefuse(t *testing.T) {
	for _, code := range []int{409, 429, 500} {
		t.Run(strconv.Itoa(code), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			w.api.Node(t, "a")
			refused := map[string]int{}
			w.api.Fail(func(method, path string) int {
				if method != "GET" && refused[path] < 2 { // under the server's lock
					refused[path]++
					return code
				}
				return 0
			})
			w.push(hot("prod", "a"))
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Contains(c, w.decisions(), "transition taken marked")
			}, 90*time.Second, 100*time.Millisecond)
			seen := map[string]int{}
			for _, s := range w.api.Writes() {
				seen[s]++
			}
			assert.Equal(t, 1, seen["PATCH /api/v1/nodes/a/status"])
			assert.Equal(t, 3, seen["PATCH /api/v1/nodes/a"], "label, taint and cordon, each once")
		})
	}
}

func TestStormOverARestart(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Breaker.MaxNodes = 50
		k := c.Kubernetes.Get()
		k.Rungs = KubernetesRungs{Taint: true}
	})
	for i := range 100 {
		node := fmt.Sprintf("n%03d", i)
		w.api.Node(t, node)
		w.push(hot("prod", node))
		if i == 1 || i == 60 {
			w.stop()
			w.start()
		}
	}
	require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Len(c, w.api.Writes(), 3) }, 20*time.Second, 20*time.Millisecond)
	w.stop()
	w.start()
	w.push(hot("prod", "n000"))
	w.stop()
	assert.Len(t, w.api.Writes(), 3, "three actions, and none more after a restart")
	alerts := 0
	for _, d := range w.decisions() {
		if strings.HasPrefix(d, "breaker taken") {
			alerts++
		}
	}
	assert.Equal(t, 1, alerts)
}

func TestOthersAreLeftAlone(t *testing.T) {
	w := newWorld(t, nil)
	w.api.Node(t, "a")
	w.push(hot("another tenant", "a"))
	w.push(hot("", "a"))
	w.push(plog.NewLogs())
	w.stop()
	assert.Empty(t, w.api.Writes(), "a node of the same name in another cluster is another node")
	assert.Empty(t, w.audited())
}

// TestAForgedIncidentStopsTheActor: a client that pushes events of the cluster stops the
// actor for a day: it keeps no further node off. A node that is kept off stays so.
func TestAForgedIncidentStopsTheActor(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Kubernetes.Get().Rungs = KubernetesRungs{Taint: true} })
	w.api.Node(t, "a")
	w.api.Node(t, "b")
	w.push(hot("prod", "a"))
	w.waitFor("transition taken marked")
	forged := hot("prod", "whoever")
	of := forged.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Attributes()
	of.PutStr(gpusemconv.AttrEpisodeSubject, "cluster")
	w.push(forged)
	w.push(hot("prod", "b"))
	w.waitFor("taint refused group_incident")
	var a, b corev1.Node
	require.True(t, w.api.Get(t, "/api/v1/nodes/a", &a))
	require.True(t, w.api.Get(t, "/api/v1/nodes/b", &b))
	assert.Len(t, a.Spec.Taints, 1)
	assert.Empty(t, b.Spec.Taints)
	w.later(24 * time.Hour)
	w.push(hot("prod", "b")) // it goes on
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.True(c, w.api.Get(t, "/api/v1/nodes/b", &b))
		assert.Len(c, b.Spec.Taints, 1)
	}, 20*time.Second, 20*time.Millisecond)
}

func TestForeignChangesStay(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Kubernetes.Get().Rungs = KubernetesRungs{Taint: true, Cordon: true} })
	w.api.Put(t, "/api/v1/nodes/a", corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{Unschedulable: true}})
	w.push(hot("prod", "a"))
	w.waitFor("cordon refused foreign_change")
	w.waitFor("transition taken marked")
	var n corev1.Node
	require.True(t, w.api.Get(t, "/api/v1/nodes/a", &n))
	n.Annotations["actions.gpu-collector.io/release"] = "kim: it is needed"
	w.api.Put(t, "/api/v1/nodes/a", n)
	w.waitFor("word taken release")
	w.waitFor("taint taken person")
	n = corev1.Node{}
	require.True(t, w.api.Get(t, "/api/v1/nodes/a", &n))
	assert.Empty(t, n.Spec.Taints)
	assert.True(t, n.Spec.Unschedulable, "the cordon was there before")
	assert.NotContains(t, n.Annotations, "actions.gpu-collector.io/marks")
}

func TestEventsAreDocumented(t *testing.T) {
	documented, err := eventdoc.Attributes("../../docs/events.md", gpusemconv.EventAction)
	require.NoError(t, err)
	w := newWorld(t, nil)
	w.api.Node(t, "a")
	w.push(hot("prod", "a"))
	w.waitFor("transition taken empty")
	seen := 0
	for _, lr := range w.audited() {
		assert.Equal(t, gpusemconv.EventAction, lr.EventName())
		for k := range lr.Attributes().All() {
			assert.Contains(t, documented, k)
			seen++
		}
	}
	assert.NotZero(t, seen)
}
