// SPDX-License-Identifier: Apache-2.0

package fabricreceiver

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/scraper/scraperhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/fabric"
	"github.com/gpu-collector/gpu-collector/receiver/fabricreceiver/internal/metadatatest"
	"github.com/gpu-collector/gpu-collector/test/fakesys"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// rig is a scraper of a tree, with a clock.
type rig struct {
	testing.TB
	*fabricScraper
	tree *fakesys.Tree
	at   time.Time
	tel  *componenttest.Telemetry
	logs *observer.ObservedLogs
}

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	r := &rig{TB: t, tree: fakesys.New(t), at: epoch, tel: componenttest.NewTelemetry()}
	t.Cleanup(func() { require.NoError(t, r.tel.Shutdown(context.Background())) })
	cfg := createDefaultConfig().(*Config)
	cfg.ProcPath, cfg.SysPath, cfg.NodeName = r.tree.Proc, r.tree.Sys, "n0"
	cfg.ResourceAttributes.HostName.Enabled, cfg.ResourceAttributes.HostID.Enabled = false, false
	cfg.Metrics.GpuNodeCPUPressure.Enabled = true
	cfg.Deadline = cfg.CollectionInterval // a busy machine is no device that hangs
	if change != nil {
		change(cfg)
	}
	require.NoError(t, cfg.Validate())
	core, logs := observer.New(zapcore.InfoLevel)
	set := metadatatest.NewSettings(r.tel)
	set.Logger, r.logs = zap.New(core), logs
	s, err := newScraper(cfg, set)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.shutdown(context.Background())) })
	s.now = func() time.Time { return r.at }
	r.fabricScraper = s
	return r
}

// poll scrapes ten seconds after the last time.
func (r *rig) poll() pmetric.Metrics {
	r.Helper()
	r.at = r.at.Add(10 * time.Second)
	md, err := r.scrape(context.Background())
	require.NoError(r, err)
	return md
}

// lines are the points of a report, one to a line; an ended series has the value `-`.
func lines(md pmetric.Metrics) []string {
	var all []string
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			kind := "gauge"
			if m.Type() == pmetric.MetricTypeSum {
				kind = "updown"
				if m.Sum().IsMonotonic() {
					kind = "counter"
				}
			}
			for _, dp := range points(m).All() {
				var attrs []string
				for k, v := range dp.Attributes().All() {
					attrs = append(attrs, k+"="+v.AsString())
				}
				value := "-"
				switch {
				case dp.Flags().NoRecordedValue():
				case dp.ValueType() == pmetric.NumberDataPointValueTypeInt:
					value = strconv.FormatInt(dp.IntValue(), 10)
				default:
					value = fmt.Sprintf("%.6g", dp.DoubleValue())
				}
				all = append(all, fmt.Sprintf("%s %s %s{%s} %s", kind, m.Unit(), m.Name(), strings.Join(attrs, ","), value))
			}
		}
	}
	slices.Sort(all)
	return all
}

func golden(t *testing.T, name string, md pmetric.Metrics) {
	t.Helper()
	text := strings.Join(lines(md), "\n") + "\n"
	file := filepath.Join("testdata", name+".txt")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, string(want), text, "run: go test ./receiver/fabricreceiver -update")
}

// TestNodes holds the points of some nodes to their goldens, at the second scrape.
func TestNodes(t *testing.T) {
	for name, build := range map[string]func(*fakesys.Tree){
		"infiniband": func(tree *fakesys.Tree) {
			ports := tree.Rail(2)
			tree.Write(ports[1]+"/counters/symbol_error", "65535\n")
			tree.Write(ports[1]+"/hw_counters/out_of_sequence", "12\n")
			tree.Write(ports[1]+"/counters/port_xmit_wait", "77\n")
			tree.Interface("eth0", tree.PCI("pci0000:70/0000:70:00.0", "0x8086", "0x020000", 0))
		},
		"roce": func(tree *fakesys.Tree) {
			counters := fakesys.Healthy()
			counters["hw_counters/rp_cnp_handled"], counters["hw_counters/roce_adp_retrans"] = "5", "6"
			pci := tree.PCI("pci0000:00/0000:00:1d.0", "0x15b3", "0x020000", 0)
			tree.RDMA("mlx5_0", pci, "Ethernet", counters)
			tree.Interface("ens29", pci)
		},
		"efa": func(tree *fakesys.Tree) {
			pci := tree.PCI("pci0000:00/0000:00:1d.0", "0x1d0f", "0x020000", 0)
			port := tree.RDMA("rdmap0s29", pci, "Unknown", map[string]string{
				"hw_counters/rx_drops": "3", "hw_counters/retrans_pkts": "5", "hw_counters/tx_bytes": "800", "hw_counters/tx_pkts": "8",
				"hw_counters/rx_bytes": "700", "hw_counters/rx_pkts": "7", "hw_counters/unresponsive_remote_events": "0",
			})
			tree.Write(port+"/rate", "100 Gb/sec (4X EDR)\n")
		},
		"down": func(tree *fakesys.Tree) { tree.Write(tree.Rail(1)[0]+"/state", "1: DOWN\n") },
		"host": func(*fakesys.Tree) {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			build(r.tree)
			r.poll()
			r.tree.WriteProc("stat", fakesys.Stat(150, 60, 815, 15, 60))
			md := r.poll()
			golden(t, name, md)
			assert.Equal(t, map[string]any{"k8s.node.name": "n0"}, md.ResourceMetrics().At(0).Resource().Attributes().AsRaw())
			for _, warned := range r.logs.FilterLevelExact(zapcore.WarnLevel).All() {
				assert.Equal(t, []any{"infiniband", "symbol_error", "full"}, []any{name, warned.ContextMap()["file"], warned.ContextMap()["cause"]})
			}
		})
	}
}

// having are the lines with all of the texts in them.
func having(md pmetric.Metrics, texts ...string) []string {
	return slices.DeleteFunc(lines(md), func(line string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
	})
}

// A port that vanishes ends its series, once, and nobody else's.
func TestAPortThatVanishesEndsItsSeries(t *testing.T) {
	r := newRig(t, nil)
	r.tree.Rail(2)
	before := r.poll()
	require.Empty(t, having(before, " -"))
	r.tree.Remove("infiniband", "mlx5_1")
	md := r.poll()
	assert.Len(t, having(md, "mlx5_1/1"), len(having(before, "mlx5_1/1")))
	for _, line := range having(md, "mlx5_1/1") {
		assert.True(t, strings.HasSuffix(line, " -"), line)
	}
	assert.Equal(t, having(before, "mlx5_0/1"), having(md, "mlx5_0/1"))
	assert.Empty(t, having(r.poll(), "mlx5_1/1"))
}

// The series that a link loses when it goes down end too.
func TestALinkThatGoesDownHasNoRate(t *testing.T) {
	r := newRig(t, nil)
	port := r.tree.Rail(1)[0]
	r.poll()
	r.tree.Write(port+"/state", "1: DOWN\n")
	md := r.poll()
	assert.Len(t, having(md, "hw.network.bandwidth.limit", " -"), 1)
	assert.Len(t, having(md, "hw.network.up", "} 0"), 1)
}

// starts are the start times of a counter's points.
func starts(md pmetric.Metrics, name string) (starts []pcommon.Timestamp) {
	for _, rm := range md.ResourceMetrics().All() {
		for _, m := range rm.ScopeMetrics().At(0).Metrics().All() {
			if m.Name() == name {
				for _, dp := range points(m).All() {
					starts = append(starts, dp.StartTimestamp())
				}
			}
		}
	}
	return starts
}

// Most kinds of errors never happen and have no point; a counter that falls was reset.
func TestErrors(t *testing.T) {
	r := newRig(t, nil)
	port := r.tree.Rail(1)[0]
	file := port + "/counters/link_downed"
	assert.Empty(t, having(r.poll(), "hw.errors"))
	r.tree.Write(file, "7\n")
	md := r.poll()
	assert.Equal(t, []string{"counter {error} hw.errors{hw.id=mlx5_0/1,hw.type=network,error.type=link_downed,hw.parent=0000:04:00.0} 7"}, having(md, "hw.errors"))
	first := pcommon.NewTimestampFromTime(r.at)
	assert.Equal(t, []pcommon.Timestamp{first}, starts(md, "hw.errors"))
	r.tree.Write(file, "8\n")
	assert.Equal(t, []pcommon.Timestamp{first}, starts(r.poll(), "hw.errors"))
	last := pcommon.NewTimestampFromTime(r.at)
	r.tree.Write(file, "0\n")
	md = r.poll()
	assert.Equal(t, []pcommon.Timestamp{last}, starts(md, "hw.errors"))
	assert.Len(t, having(md, "hw.errors", "} 0"), 1, "it goes on with 0")
	assert.Empty(t, having(md, "counter.full"))
	r.tree.Write(file, "255\n")
	assert.Len(t, having(r.poll(), "gpu.network.counter.full", "error.type=link_downed", "} 1"), 1)
	r.tree.Write(file, "1\n")
	assert.Len(t, having(r.poll(), "gpu.network.counter.full", "error.type=link_downed", "} 0"), 1)
}

// A device that hangs neither ends its series nor holds the others up; it is told once.
// A pipe that nobody writes into hangs whoever opens it.
func TestADeviceThatHangs(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Deadline = 3 * time.Second })
	port := r.tree.Rail(2)[1]
	before := r.poll()
	hang := filepath.Join(r.tree.Sys, port, "link_layer")
	require.NoError(t, os.Remove(hang))
	require.NoError(t, syscall.Mkfifo(hang, 0o600))
	for range 2 {
		md := r.poll()
		assert.Equal(t, having(before, "mlx5_0/1"), having(md, "mlx5_0/1"))
		assert.Empty(t, having(md, "mlx5_1/1"))
	}
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("was not read").Len())
	metadatatest.AssertEqualReceiverFabricReadFailures(t, r.tel, []metricdata.DataPoint[int64]{{
		Value: 1, Attributes: attribute.NewSet(attribute.String("cause", "hang")),
	}}, metricdatatest.IgnoreTimestamp())
	go func() { // so that the reading ends
		f, err := os.OpenFile(hang, os.O_WRONLY, 0)
		if err == nil {
			_, _ = f.WriteString("InfiniBand\n")
			_ = f.Close()
		}
	}()
	require.Eventually(t, func() bool { return len(having(r.poll(), "mlx5_1/1", "hw.network.up", "} 1")) == 1 }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, os.Remove(hang))
	require.NoError(t, os.WriteFile(hang, []byte("InfiniBand\n"), 0o600))
}

// Each kind of bad input is logged once and counted, and hurts no other port.
func TestEachBadInputIsLoggedOnceAndCounted(t *testing.T) {
	for name, tt := range map[string]struct {
		cause fabric.Cause
		count int64
		// bad has a port say it, at each of three polls.
		bad func(r *rig, port string, poll int)
	}{
		"garbage": {fabric.Malformed, 3, func(r *rig, port string, _ int) {
			r.tree.Write(port+"/counters/symbol_error", "\x00\xff who knows\n")
		}},
		"a file of another version": {fabric.Malformed, 3, func(r *rig, port string, _ int) {
			r.tree.Write(port+"/counters/symbol_error", "v2: 0x17 0x18\n")
		}},
		"a folder for a file": {fabric.Unreadable, 3, func(r *rig, port string, poll int) {
			file := filepath.Join(r.tree.Sys, port, "counters", "symbol_error")
			if poll == 0 {
				require.NoError(r, os.Remove(file))
				require.NoError(r, os.Mkdir(file, 0o750))
			}
		}},
		"a port that vanishes": {fabric.Gone, 1, func(r *rig, _ string, poll int) {
			if poll == 0 {
				r.tree.Remove("infiniband", "mlx5_1")
			}
		}},
		"a counter at its maximum": {fabric.Full, 1, func(r *rig, port string, _ int) {
			r.tree.Write(port+"/counters/symbol_error", "65535\n")
		}},
		"a counter that wraps": {fabric.Fell, 2, func(r *rig, port string, poll int) {
			r.tree.Write(port+"/counters/port_xmit_data", []string{"18446744073709551600\n", "40\n", "7\n"}[poll])
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			port := r.tree.Rail(2)[1]
			before := having(r.poll(), "mlx5_0/1")
			require.NotEmpty(t, before)
			for poll := range 3 {
				tt.bad(r, port, poll)
				assert.Equal(t, before, having(r.poll(), "mlx5_0/1"))
			}
			warned := r.logs.FilterLevelExact(zapcore.WarnLevel)
			assert.Equal(t, 1, warned.FilterField(zap.String("cause", string(tt.cause))).FilterField(zap.String("device", "mlx5_1")).Len())
			assert.Equal(t, 1, warned.Len(), warned.All())
			metadatatest.AssertEqualReceiverFabricReadFailures(t, r.tel, []metricdata.DataPoint[int64]{{
				Value: tt.count, Attributes: attribute.NewSet(attribute.String("cause", string(tt.cause))),
			}}, metricdatatest.IgnoreTimestamp())
		})
	}
}

func TestExcludedDevices(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Exclude = []string{"mlx5_1"} })
	r.tree.Rail(2)
	for range 2 {
		assert.Empty(t, having(r.poll(), "mlx5_1"))
	}
	assert.Equal(t, 1, r.logs.FilterMessageSnippet("a device is not read").Len())
	metadatatest.AssertEqualReceiverFabricExcludedDevices(t, r.tel, []metricdata.DataPoint[int64]{{Value: 1}}, metricdatatest.IgnoreTimestamp())
}

// A host that says nothing gets one line in the log for each file, and no points.
func TestNothingToRead(t *testing.T) {
	r := newRig(t, func(c *Config) { c.ProcPath, c.SysPath = "/nonexistent/proc", "/nonexistent/sys" })
	for range 3 {
		assert.Zero(t, r.poll().ResourceMetrics().Len())
	}
	said := map[string]bool{}
	for _, entry := range r.logs.All() {
		file := entry.Message + fmt.Sprint(entry.ContextMap()["file"])
		assert.False(t, said[file], file)
		said[file] = true
	}
}

// The receiver scrapes between its start and its shutdown, and not after.
func TestLifecycle(t *testing.T) {
	tree := fakesys.New(t)
	tree.Rail(1)
	cfg := createDefaultConfig().(*Config)
	cfg.ProcPath, cfg.SysPath = tree.Proc, tree.Sys
	sink, ticks := new(consumertest.MetricsSink), make(chan time.Time)
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	r, err := newReceiver(metadatatest.NewSettings(tel), cfg, sink, scraperhelper.WithTickerChannel(ticks))
	require.NoError(t, err)
	require.NoError(t, r.Start(t.Context(), componenttest.NewNopHost()))
	ticks <- time.Time{}
	ticks <- time.Time{} // taken after the first is done
	require.NoError(t, r.Shutdown(context.Background()))
	got := sink.AllMetrics()
	require.GreaterOrEqual(t, len(got), 2)
	assert.Len(t, having(got[0], "hw.network.up", "mlx5_0/1"), 1)
	_, err = newReceiver(metadatatest.NewSettings(tel), nil, sink)
	require.ErrorContains(t, err, "not a *fabricreceiver.Config")
}

func BenchmarkScrape(b *testing.B) {
	r := newRig(b, nil)
	r.tree.Rail(16)
	b.ReportAllocs()
	for b.Loop() {
		r.poll()
	}
}
