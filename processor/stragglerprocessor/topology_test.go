// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zapobserver "go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/hang"
	"github.com/gpu-collector/gpu-collector/internal/slowlink"
	"github.com/gpu-collector/gpu-collector/internal/straggler"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor/internal/metadata"
)

// racks is a push of 64 nodes of one job. Each has the attribute that name says, with
// the leaf of eight that it is on, and the throughput that work says.
func racks(name string, at int, work func(i int) float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for i := range 64 {
		attrs := map[string]any{"k8s.cluster.name": "prod", "host.name": fmt.Sprintf("n%02d.example", i), "gpu.job.id": "J"}
		if name != "" {
			attrs[name] = fmt.Sprint("leaf-", i/8)
		}
		rm := resource(md, attrs)
		gauge(rm, "gpu.node.health_score", 0.9, "gpu.node.state", "active")
		gauge(rm, "gpu.node.signal", work(i)*(1+0.005*float64((i+at)%3)), "gpu.signal", "throughput")
	}
	return md
}

// TestALeafIsNamedFromAnySource: by an attribute, the label of a Kubernetes node, or a
// file. One record tells of it, and the log too.
func TestALeafIsNamedFromAnySource(t *testing.T) {
	var file strings.Builder
	for i := range 64 {
		fmt.Fprintf(&file, "n%02d,leaf=leaf-%d\n", i, i/8)
	}
	for name, tt := range map[string]struct{ attribute, file, level string }{
		"attribute":  {"gpu.topology.leaf", "", "leaf"},
		"kubernetes": {"k8s.node.label.nvidia.com/gpu.clique", "", "clique"},
		"file":       {"", file.String(), "leaf"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "topology")
			require.NoError(t, os.WriteFile(path, []byte(tt.file), 0o600))
			synctest.Test(t, func(t *testing.T) {
				cfg := createDefaultConfig().(*Config)
				cfg.Mode = modeGateway
				if tt.file != "" {
					cfg.TopologyFile = path
				}
				set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
				core, lines := zapobserver.New(zapcore.WarnLevel)
				set.Logger = zap.New(core)
				var store consumertest.LogsSink
				f := NewFactory()
				metrics, err := f.CreateMetrics(t.Context(), set, cfg, consumertest.NewNop())
				require.NoError(t, err)
				logs, err := f.CreateLogs(t.Context(), set, cfg, &store)
				require.NoError(t, err)
				for _, p := range []component.Component{metrics, logs} {
					require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
				}
				for k := range 80 {
					slow := func(i int) float64 {
						if k > 40 && i >= 24 && i < 31 {
							return 8.5
						}
						return 10
					}
					require.NoError(t, metrics.ConsumeMetrics(t.Context(), racks(tt.attribute, k, slow)))
					time.Sleep(cfg.PushInterval)
				}
				synctest.Wait()
				require.Equal(t, 1, store.LogRecordCount())
				a := theRecord(store.AllLogs()[0].ResourceLogs().At(0)).Attributes().AsRaw()
				assert.Equal(t, []any{tt.level + "=leaf-3"}, a["gpu.straggler.topology"])
				assert.EqualValues(t, 7, a["gpu.straggler.topology.nodes"])
				assert.EqualValues(t, 8, a["gpu.straggler.topology.nodes_total"])
				assert.Len(t, lines.FilterMessageSnippet(tt.level+" leaf-3: 7 of 8 nodes").All(), 1)
				for _, p := range []component.Component{metrics, logs} {
					require.NoError(t, p.Shutdown(t.Context()))
				}
			})
		})
	}
}

// TestTheTopologyFile: without it the gateway does not start; when it is broken later,
// the last good one stays and one line says so.
func TestTheTopologyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "topology.csv")
	set := processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}
	core, lines := zapobserver.New(zapcore.InfoLevel)
	set.Logger = zap.New(core)
	cfg := createDefaultConfig().(*Config)
	cfg.Mode, cfg.TopologyFile = modeGateway, path
	g, err := newGateway(set, cfg)
	require.NoError(t, err)
	require.ErrorContains(t, g.start(t.Context(), componenttest.NewNopHost()), "`topology_file`: topology file "+path)

	require.NoError(t, os.WriteFile(path, []byte("n1,leaf=a\n"), 0o600))
	require.NoError(t, g.start(t.Context(), componenttest.NewNopHost()))
	g.halt(t.Context())
	require.NoError(t, os.WriteFile(path, []byte("n1,leaf=a\nn2,leaf=a[1-999999999]\nn2,leaf=b\n"), 0o600))
	for range 5 {
		g.tick(t.Context(), time.Now())
	}
	assert.Len(t, lines.FilterMessage("topology file cannot be read").All(), 1)
	assert.Len(t, g.topology.Table(), 1)
	require.NoError(t, os.WriteFile(path, []byte("n1,leaf=a\nn2,leaf=b\nn3,leaf=c\n"), 0o600))
	for range 3 {
		g.tick(t.Context(), time.Now())
	}
	assert.Len(t, lines.FilterMessage("topology file read again").All(), 1)
	assert.Len(t, g.topology.Table(), 3)
	require.NoError(t, g.close())
}

// TestLabelsThatCannotBe are counted, and the node's signals are read all the same.
func TestLabelsThatCannotBe(t *testing.T) {
	tel := componenttest.NewTelemetry()
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	g, err := newGateway(processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: tel.NewTelemetrySettings()}, cfg)
	require.NoError(t, err)
	md := pmetric.NewMetrics()
	attrs := map[string]any{"host.name": "n", "gpu.topology.leaf": "two words", "gpu.topology.rack": "", "k8s.node.label.app": "two words"}
	for i := range 10 {
		attrs[fmt.Sprint("gpu.topology.l", i)] = "x"
	}
	gauge(resource(md, attrs), "gpu.node.signal", 10, "gpu.signal", "throughput")
	g.observe(t.Context(), md, time.Now())
	assert.Equal(t, map[string]int64{"topology_label": 3}, rejected(t, tel), "two words, and two levels too many")
	assert.Equal(t, 1, g.engine.Nodes())
	require.NoError(t, g.close())

	cfg.GroupBy = append(cfg.GroupBy, "gpu.topology.leaf")
	require.ErrorContains(t, cfg.Validate(), "`group_by` names \"gpu.topology.leaf\"")
}

// TestJobsHaveTheirCost: the slowdown of the worst node, and the hours of all GPUs.
func TestJobsHaveTheirCost(t *testing.T) {
	cfg := createDefaultConfig().(*Config)
	cfg.Mode = modeGateway
	g, err := newGateway(processor.Settings{ID: component.NewID(metadata.Type), TelemetrySettings: componenttest.NewNopTelemetrySettings()}, cfg)
	require.NoError(t, err)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var got map[string]float64
	tick := func(slow float64) {
		g.observe(t.Context(), hardware(8, ""), now)
		g.observe(t.Context(), fleet(1, 1, slow, 1, 1, 1, 1, 1), now)
		now = now.Add(cfg.PushInterval)
		got = values(g.tick(t.Context(), now)[0])
	}
	key := func(name string) string {
		for k := range got {
			if strings.HasPrefix(k, " "+name+" ") {
				return k
			}
		}
		return ""
	}
	for range 30 {
		tick(1)
	}
	assert.InDelta(t, 1, got[key("gpu.job.slowdown")], 0)
	assert.InDelta(t, 0, got[key("gpu.job.gpu_time_lost")], 0)
	for range 30 {
		tick(0.8)
	}
	require.InDelta(t, 1.25, got[key("gpu.job.slowdown")], 0.03)
	before := got[key("gpu.job.gpu_time_lost")]
	for range 360 {
		tick(0.8)
	}
	assert.InDelta(t, 0.2*64, (got[key("gpu.job.gpu_time_lost")]-before)/3600, 0.4, "an hour of 64 GPUs")

	hung := &episode{Event: &straggler.Event{ID: "h", Cluster: "prod", Since: now.Add(-time.Minute)}, hang: &hang.Event{Job: "J"}}
	links := func(id string, n int) *episode {
		return &episode{Event: &straggler.Event{ID: id, Cluster: "prod"}, link: &slowlink.Link{Job: "J", Count: n}}
	}
	for _, ep := range []*episode{hung, links("a", 2), links("b", 1)} {
		g.reporter.jobs.note(ep)
	}
	tick(1)
	assert.Equal(t, []float64{70, 3}, []float64{got[key("gpu.job.standstill")], got[key("gpu.job.slow_communicators")]})
	over := links("a", 0)
	hung.Kind, over.Kind = straggler.EventEnd, straggler.EventEnd
	g.reporter.jobs.note(hung)
	g.reporter.jobs.note(over)
	tick(1)
	assert.Equal(t, []float64{0, 1}, []float64{got[key("gpu.job.standstill")], got[key("gpu.job.slow_communicators")]})
	require.NoError(t, g.close())
}
