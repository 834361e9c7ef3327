// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadata"
	"github.com/gpu-collector/gpu-collector/processor/diffprocessor/internal/metadatatest"
)

// hop is a next consumer that keeps the last value of each series, heartbeats
// apart.
type hop struct {
	mu     sync.Mutex
	calls  int
	points int
	state  map[string]float64
	// refuse is asked before anything is taken, lose after.
	refuse, lose func() error
}

func (*hop) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }

func (h *hop) ConsumeMetrics(_ context.Context, md pmetric.Metrics) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	if h.refuse != nil {
		if err := h.refuse(); err != nil {
			return err
		}
	}
	if h.state == nil {
		h.state = map[string]float64{}
	}
	for series, v := range flatten(md) {
		h.points++
		h.state[series] = v
	}
	if h.lose != nil {
		return h.lose()
	}
	return nil
}

// took returns how many points came since the last call.
func (h *hop) took() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	defer func() { h.points = 0 }()
	return h.points
}

func (h *hop) called() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls
}

func flatten(md pmetric.Metrics) map[string]float64 {
	out := map[string]float64{}
	for _, rm := range md.ResourceMetrics().All() {
		node, _ := rm.Resource().Attributes().Get("host.name")
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				if m.Name() == gpusemconv.MetricNodeHeartbeat {
					continue
				}
				for _, dp := range m.Gauge().DataPoints().All() {
					gpu, _ := dp.Attributes().Get("hw.id")
					out[node.Str()+"/"+m.Name()+"/"+gpu.Str()] = dp.DoubleValue()
				}
			}
		}
	}
	return out
}

// report makes one node's report, metric m with a point per value.
func report(node string, at time.Duration, values ...float64) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("host.name", node)
	m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
	m.SetName("m")
	points := m.SetEmptyGauge().DataPoints()
	for i, v := range values {
		dp := points.AppendEmpty()
		dp.SetTimestamp(pcommon.Timestamp(946_684_800*time.Second + at))
		dp.SetDoubleValue(v)
		dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-%d", i))
	}
	return md
}

// nodeReport is one node's report: 8 GPUs with 40 metrics each, 320 points.
func nodeReport(node string) pmetric.Metrics {
	md := pmetric.NewMetrics()
	rm := md.ResourceMetrics().AppendEmpty()
	rm.Resource().Attributes().PutStr("k8s.cluster.name", "research-west")
	rm.Resource().Attributes().PutStr("k8s.node.name", node)
	rm.Resource().Attributes().PutStr("host.name", node)
	rm.Resource().Attributes().PutStr("host.id", "7c0bbb52f1d24eb9a4f16d6a8a2f4d2e")
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName("nvmlreceiver")
	for i := range 40 {
		m := sm.Metrics().AppendEmpty()
		m.SetName(fmt.Sprintf("hw.gpu.metric_%02d", i))
		m.SetDescription("A metric of a GPU.")
		m.SetUnit("1")
		points := m.SetEmptyGauge().DataPoints()
		for gpu := range 8 {
			dp := points.AppendEmpty()
			dp.SetTimestamp(pcommon.Timestamp(946_684_800e9))
			dp.SetDoubleValue(float64(gpu))
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	return md
}

func newTestProcessor(t *testing.T, next consumer.Metrics, edit func(*Config)) *diffProcessor {
	cfg := createDefaultConfig().(*Config)
	cfg.ResyncInterval = 0 // its phase is drawn
	if edit != nil {
		edit(cfg)
	}
	require.NoError(t, cfg.Validate())
	p, err := newProcessor(cfg, processortest.NewNopSettings(metadata.Type), next)
	require.NoError(t, err)
	require.NoError(t, p.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, p.Shutdown(context.Background())) })
	return p
}

func TestRefusedReportIsSentAgain(t *testing.T) {
	refused := errors.New("try later")
	next := &hop{}
	p := newTestProcessor(t, next, nil)
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 0, 1, 2)))
	assert.Equal(t, 2, next.took())

	next.refuse = func() error { return refused }
	for range 2 {
		require.ErrorIs(t, p.ConsumeMetrics(t.Context(), report("n", 10, 1, 3)), refused)
	}
	next.refuse = nil
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 10, 1, 3)))
	assert.Equal(t, 1, next.took(), "the change, and not what had been accepted before")
	assert.Equal(t, map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 3}, next.state)

	// Taken, but the answer is lost; the value then goes back to what it was.
	next.lose = func() error { return refused }
	require.ErrorIs(t, p.ConsumeMetrics(t.Context(), report("n", 20, 1, 4)), refused)
	next.lose = nil
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 30, 1, 3)))
	assert.Equal(t, map[string]float64{"n/m/GPU-0": 1, "n/m/GPU-1": 3}, next.state)
}

func TestNextIsNotCalledForNothing(t *testing.T) {
	next := &hop{}
	p := newTestProcessor(t, next, func(c *Config) { c.HeartbeatInterval = time.Hour })
	for range 3 {
		require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 0, 1, 2)))
	}
	assert.Equal(t, 1, next.calls)
	require.NoError(t, p.ConsumeMetrics(t.Context(), pmetric.NewMetrics()))
	assert.Equal(t, 1, next.calls)
}

type hopFunc func(context.Context, pmetric.Metrics) error

func (hopFunc) Capabilities() consumer.Capabilities { return consumer.Capabilities{} }
func (f hopFunc) ConsumeMetrics(ctx context.Context, md pmetric.Metrics) error {
	return f(ctx, md)
}

func TestNoLockOverNext(t *testing.T) {
	type key struct{}
	release, entered := make(chan struct{}), make(chan struct{})
	next := hopFunc(func(ctx context.Context, _ pmetric.Metrics) error {
		if ctx.Value(key{}) == "block" {
			close(entered)
			<-release
		}
		return nil
	})
	p := newTestProcessor(t, next, nil)
	blocked := make(chan error)
	go func() {
		blocked <- p.ConsumeMetrics(context.WithValue(t.Context(), key{}, "block"), report("n", 0, 1))
	}()
	<-entered
	// Would hang here.
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 0, 2)))
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("other", 0, 2)))
	p.engine.Table.Sweep(0)
	close(release)
	require.NoError(t, <-blocked)
}

func TestPanicOfNextLeavesNothingBehind(t *testing.T) {
	broken := true
	next := hopFunc(func(context.Context, pmetric.Metrics) error {
		if broken {
			panic("broken")
		}
		return nil
	})
	p := newTestProcessor(t, next, nil)
	require.Panics(t, func() { _ = p.ConsumeMetrics(t.Context(), report("n", 0, 1)) })
	broken = false
	require.NoError(t, p.ConsumeMetrics(t.Context(), report("n", 0, 1)))
	p.engine.Table.Sweep(time.Hour)
	assert.Zero(t, p.engine.Table.Stats().Nodes)
}

// Many nodes at once over a next consumer that refuses and loses answers
// now and then: after one more accepted report of each node it has the state of all.
func TestConcurrentNodes(t *testing.T) {
	const nodes, reports, gpus = 8, 200, 8
	var asked atomic.Int64
	flaky := func() error {
		if asked.Add(1)%5 == 0 {
			return errors.New("flaky")
		}
		return nil
	}
	next := &hop{refuse: flaky, lose: flaky}
	p := newTestProcessor(t, next, func(c *Config) { c.ResyncInterval = time.Millisecond })
	want := map[string]float64{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range nodes {
		node := fmt.Sprintf("n%d", n)
		// Two senders for each node; the last report comes after both.
		var senders sync.WaitGroup
		for sender := range 2 {
			random := rand.New(rand.NewPCG(uint64(n), uint64(sender)))
			senders.Go(func() {
				for i := range reports {
					values := make([]float64, gpus)
					for g := range values {
						values[g] = float64(random.IntN(3))
					}
					_ = p.ConsumeMetrics(t.Context(), report(node, time.Duration(i)*time.Second, values...))
				}
			})
		}
		wg.Go(func() {
			senders.Wait()
			last := report(node, time.Hour, 0, 1, 2, 0, 1, 2, 0, 1)
			mu.Lock()
			maps.Copy(want, flatten(last))
			mu.Unlock()
			err := errors.New("not sent yet")
			for err != nil {
				err = p.ConsumeMetrics(t.Context(), report(node, time.Hour, 0, 1, 2, 0, 1, 2, 0, 1))
			}
		})
	}
	wg.Wait()
	assert.Equal(t, want, next.state)
}

func TestResyncAndEviction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := &hop{}
		p := newTestProcessor(t, next, func(c *Config) { c.HeartbeatInterval, c.ResyncInterval = time.Minute, 2*time.Minute })
		const every, nodes = 10 * time.Second, 20
		var at time.Duration
		pushAll := func() (resynced int) {
			for n := range nodes {
				require.NoError(t, p.ConsumeMetrics(t.Context(), report(strconv.Itoa(n), at, 1, 2, 3)))
				switch took := next.took(); took {
				case 3:
					resynced++
				default:
					require.Zero(t, took)
				}
			}
			time.Sleep(every)
			at += every
			return resynced
		}
		assert.Equal(t, nodes, pushAll(), "the first report")
		perPush := make([]int, 0, 24)
		for range 24 { // two resync intervals
			perPush = append(perPush, pushAll())
		}
		total, most := 0, 0
		for _, n := range perPush {
			total += n
			most = max(most, n)
		}
		assert.Equal(t, 2*nodes, total, "each node once per interval")
		assert.Less(t, most, nodes, "phases are spread")
		assert.EqualValues(t, nodes, p.engine.Table.Stats().Nodes)

		time.Sleep(p.cfg.TTL + p.cfg.TTL/sweepsPerTTL)
		synctest.Wait()
		assert.Zero(t, p.engine.Table.Stats().Nodes)
		assert.Zero(t, p.engine.Table.Stats().Series)
		require.NoError(t, p.Shutdown(t.Context()))
	})
}

// A full table makes room for a new node well before its TTL.
func TestMadeUpNodesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTestProcessor(t, new(consumertest.MetricsSink), func(c *Config) { c.MaxNodes, c.ClusterShare = 2, 1 })
		for _, node := range []string{"made up", "made up too"} {
			require.NoError(t, p.ConsumeMetrics(t.Context(), report(node, 0, 1)))
		}
		for range 6 {
			require.NoError(t, p.ConsumeMetrics(t.Context(), report("real", 0, 1)))
			time.Sleep(10 * time.Second)
		}
		assert.EqualValues(t, 1, p.engine.Table.Stats().Nodes, "the real one")
		assert.EqualValues(t, 2, p.engine.Table.Stats().EvictedNodes)
		require.NoError(t, p.Shutdown(t.Context()))
	})
}

func TestOnlyNodesHaveAHeartbeat(t *testing.T) {
	for attr, want := range map[string]int{
		gpusemconv.AttrHostName: 2, gpusemconv.AttrK8sNodeName: 2, gpusemconv.AttrHostID: 2,
		gpusemconv.AttrClusterName: 1,
	} {
		sink := new(consumertest.MetricsSink)
		p := newTestProcessor(t, sink, nil)
		md := report("n1", 0, 1)
		attrs := md.ResourceMetrics().At(0).Resource().Attributes()
		attrs.Clear()
		attrs.PutStr(attr, "x")
		require.NoError(t, p.ConsumeMetrics(t.Context(), md))
		assert.Equal(t, want, sink.DataPointCount(), attr)
	}
}

func TestAVerdictIsNoSignOfLife(t *testing.T) {
	sink := new(consumertest.MetricsSink)
	p := newTestProcessor(t, sink, nil)
	for i, name := range []string{gpusemconv.MetricNodeStraggler, gpusemconv.MetricNodeSuspicion} {
		md := report("n1", 0, 1)
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			m.SetName(name)
		}
		require.NoError(t, p.ConsumeMetrics(t.Context(), md))
		assert.Equal(t, i+1, sink.DataPointCount())
	}
}

func TestTelemetry(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	cfg := createDefaultConfig().(*Config)
	cfg.MaxNodes, cfg.MaxSeries, cfg.ClusterShare, cfg.OverLimit = 1, 2, 1, OverLimitForward
	set := processortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	next := &hop{}
	p, err := newProcessor(cfg, set, next)
	require.NoError(t, err)
	var _ processor.Metrics = p

	ctx := t.Context()
	require.NoError(t, p.ConsumeMetrics(ctx, report("a", 10*time.Second, 1, 2)))
	require.NoError(t, p.ConsumeMetrics(ctx, report("a", 20*time.Second, 1, 3)))
	require.NoError(t, p.ConsumeMetrics(ctx, report("a", 0, 1, 9)), "two stale points and a heartbeat: it was received")
	require.NoError(t, p.ConsumeMetrics(ctx, report("b", 0, 1)), "no room for a second node")
	require.NoError(t, p.ConsumeMetrics(ctx, report("a", 30*time.Second, 1, 3, 4)), "no room for a third series")
	next.refuse = func() error { return errors.New("no") }
	require.Error(t, p.ConsumeMetrics(ctx, report("a", 40*time.Second, 5, 3)))

	point := func(v int64) []metricdata.DataPoint[int64] { return []metricdata.DataPoint[int64]{{Value: v}} }
	opt := metricdatatest.IgnoreTimestamp()
	metadatatest.AssertEqualProcessorDiffReceivedPoints(t, tel, point(12), opt)
	metadatatest.AssertEqualProcessorDiffForwardedPoints(t, tel, point(2+1+1+1), opt)
	metadatatest.AssertEqualProcessorDiffHeartbeats(t, tel, point(5), opt)
	metadatatest.AssertEqualProcessorDiffVanishedSeries(t, tel, point(0), opt)
	metadatatest.AssertEqualProcessorDiffStalePoints(t, tel, point(2), opt)
	metadatatest.AssertEqualProcessorDiffUntrackedPoints(t, tel, point(2), opt)
	metadatatest.AssertEqualProcessorDiffNodes(t, tel, point(1), opt)
	metadatatest.AssertEqualProcessorDiffSeries(t, tel, point(2), opt)
	metadatatest.AssertEqualProcessorDiffResyncs(t, tel, point(0), opt)
	metadatatest.AssertEqualProcessorDiffEvictedNodes(t, tel, point(0), opt)
	p.engine.Table.Sweep(math.MaxInt64)
	metadatatest.AssertEqualProcessorDiffEvictedNodes(t, tel, point(1), opt)
	metadatatest.AssertEqualProcessorDiffNodes(t, tel, point(0), opt)
	require.NoError(t, p.Shutdown(ctx))
}

// TestANodeThatWentElsewhereIsNotReporting: who scales by the nodes must not
// count one twice that moved to another instance, for as long as it is remembered.
func TestANodeThatWentElsewhereIsNotReporting(t *testing.T) {
	tel := componenttest.NewTelemetry()
	defer func() { require.NoError(t, tel.Shutdown(context.Background())) }()
	set := processortest.NewNopSettings(metadata.Type)
	set.TelemetrySettings = tel.NewTelemetrySettings()
	p, err := newProcessor(createDefaultConfig().(*Config), set, consumertest.NewNop())
	require.NoError(t, err)
	now := p.engine.Epoch
	p.engine.Now = func() time.Time { return now }
	for i := range 6 {
		now = now.Add(10 * time.Second)
		require.NoError(t, p.ConsumeMetrics(t.Context(), report("stays", time.Duration(i)*time.Second, 1)))
		if i < 2 {
			require.NoError(t, p.ConsumeMetrics(t.Context(), report("went", time.Duration(i)*time.Second, 1)))
		}
	}
	point := func(v int64) []metricdata.DataPoint[int64] { return []metricdata.DataPoint[int64]{{Value: v}} }
	metadatatest.AssertEqualProcessorDiffNodes(t, tel, point(2), metricdatatest.IgnoreTimestamp())
	metadatatest.AssertEqualProcessorDiffNodesReporting(t, tel, point(1), metricdatatest.IgnoreTimestamp())
	require.NoError(t, p.Shutdown(t.Context()))
}

func TestUnchangedReportDoesNotAllocate(t *testing.T) {
	p := newTestProcessor(t, consumertest.NewNop(), func(c *Config) { c.HeartbeatInterval, c.ResyncInterval = time.Hour, 0 })
	require.NoError(t, p.ConsumeMetrics(t.Context(), nodeReport("node-1")))
	const runs = 100
	stock := make([]pmetric.Metrics, runs+1) // AllocsPerRun warms up with one more
	for i := range stock {
		stock[i] = nodeReport("node-1")
	}
	i := 0
	allocs := testing.AllocsPerRun(runs, func() {
		if err := p.ConsumeMetrics(t.Context(), stock[i]); err != nil {
			t.Fatal(err)
		}
		i++
	})
	assert.Zero(t, stock[0].DataPointCount(), "was unchanged")
	if !raceEnabled {
		assert.Zero(t, allocs)
	}
}

// FuzzConsume pushes what any decodable request holds, twice: no panic, and no
// point is made up but the heartbeats.
func FuzzConsume(f *testing.F) {
	for _, md := range []pmetric.Metrics{report("n", 0, 1, 2), nodeReport("n")} {
		body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
		require.NoError(f, err)
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		next := new(consumertest.MetricsSink)
		p, err := newProcessor(createDefaultConfig().(*Config), processortest.NewNopSettings(metadata.Type), next)
		require.NoError(t, err)
		defer func() { require.NoError(t, p.Shutdown(context.Background())) }()
		points := 0
		for range 2 {
			req := pmetricotlp.NewExportRequest()
			if req.UnmarshalProto(body) != nil {
				return
			}
			points = req.Metrics().DataPointCount() + req.Metrics().ResourceMetrics().Len()
			next.Reset()
			require.NoError(t, p.ConsumeMetrics(t.Context(), req.Metrics()))
			require.LessOrEqual(t, next.DataPointCount(), points)
		}
	})
}
