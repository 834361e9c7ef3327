// SPDX-License-Identifier: Apache-2.0

// Package readers holds the readers of the product to one judgement of points.
package readers

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/exporter/fleetviewexporter"
	"github.com/gpu-collector/gpu-collector/exporter/verdictactionsexporter"
	"github.com/gpu-collector/gpu-collector/internal/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/nodescore"
	"github.com/gpu-collector/gpu-collector/internal/people"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/internal/reason"
	"github.com/gpu-collector/gpu-collector/processor/stragglerprocessor"
)

// reader is a component that reads metrics, with the counter of what it refuses.
type reader struct {
	consumer.Metrics
	name  string
	reads func(*reading.Metric) bool
	// takes selects points that name a GPU for the reader, keeps those with anything
	// to keep: the views forget a GPU that all flags are 0 of.
	takes, keeps func(*metricreading.Point) bool
	tel          *componenttest.Telemetry
	counter      string
	// gpus returns which of the names a node's GPUs have, nil for a reader that keeps none.
	gpus func(t require.TestingT, node string, names []string) []string
}

// says reports whether a point says anything that the catalogue has a name for.
func says(p *metricreading.Point) bool { return p.Field != reading.None }

// whole is for the agent: a MIG slice is no GPU of its own.
func whole(p *metricreading.Point) bool { return says(p) && p.Subject == reading.GPU }

// explains is for the gateway, which keeps what may be a reason.
func explains(p *metricreading.Point) bool { return p.Field == reading.Up || reason.OfGPU(p.Field) }

func isNumber(p *metricreading.Point) bool { return slices.Contains(fleetstate.GPUNumbers[:], p.Field) }

func forAny(of reading.Purpose) func(*reading.Metric) bool {
	return func(m *reading.Metric) bool { return m.For&of != 0 }
}

type view struct {
	component.StartFunc
	component.ShutdownFunc
	state   *fleetstate.Store
	history fleethistory.History
	ledger  *ledger.Book
	people  *people.Book
}

func (v *view) State() *fleetstate.Store      { return v.state }
func (v *view) History() fleethistory.History { return v.history }
func (v *view) Ledger() *ledger.Book          { return v.ledger }
func (v *view) People() *people.Book          { return v.people }
func (*view) WatchHistory(func(error)) func() { return func() {} }

// recorder is a history that keeps the GPUs of each node.
type recorder struct {
	fleethistory.None
	gpus map[string]map[string]bool
}

func (*recorder) Enabled() bool { return true }

func (r *recorder) Write(batch []fleethistory.Sample) {
	for i := range batch {
		node := strings.Clone(batch[i].Node)
		if r.gpus[node] == nil {
			r.gpus[node] = map[string]bool{}
		}
		r.gpus[node][strings.Clone(batch[i].GPU)] = true
	}
}

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// readers are all of them. The fleet view comes twice: with a history it reads more.
func readers(t *testing.T, log *zap.Logger) []reader {
	var all []reader
	settings := func(tel *componenttest.Telemetry) component.TelemetrySettings {
		set := tel.NewTelemetrySettings()
		set.Logger = log
		return set
	}
	begin := func(c component.Component, h host) {
		require.NoError(t, c.Start(t.Context(), h))
		t.Cleanup(func() { require.NoError(t, c.Shutdown(context.WithoutCancel(t.Context()))) })
	}
	straggler := stragglerprocessor.NewFactory()
	for mode, of := range map[string]reading.Purpose{"agent": reading.Score, "gateway": reading.Reasons | reading.Verdict | reading.Ingero | reading.Links} {
		tel := componenttest.NewTelemetry()
		cfg := straggler.CreateDefaultConfig().(*stragglerprocessor.Config)
		cfg.Mode = mode
		if mode == "gateway" {
			cfg.Compatibility = []string{"ingero"}
		}
		p, err := straggler.CreateMetrics(t.Context(), processor.Settings{
			ID: component.NewID(straggler.Type()), TelemetrySettings: settings(tel),
		}, cfg, consumertest.NewNop())
		require.NoError(t, err)
		begin(p, host{})
		r := reader{Metrics: p, name: mode, reads: forAny(of), takes: says, keeps: explains, tel: tel, counter: "otelcol_processor_straggler_rejected"}
		if mode == "agent" {
			scored := nodescore.DefaultConfig()
			plan := nodescore.NewPlan(&scored.Measures)
			r.takes, r.keeps = whole, func(p *metricreading.Point) bool {
				known, _ := reading.Of(p.Field)
				return whole(p) && slices.ContainsFunc(plan.Known(known), func(in nodescore.Input) bool { return in.Field == p.Field })
			}
		}
		r.gpus = r.withRoom
		all = append(all, r)
	}
	fleet := fleetviewexporter.NewFactory()
	for _, history := range []fleethistory.History{fleethistory.None{}, &recorder{gpus: map[string]map[string]bool{}}} {
		tel, cfg := componenttest.NewTelemetry(), fleet.CreateDefaultConfig().(*fleetviewexporter.Config)
		e, err := fleet.CreateMetrics(t.Context(), exporter.Settings{ID: component.NewID(fleet.Type()), TelemetrySettings: settings(tel)}, cfg)
		require.NoError(t, err)
		v := &view{state: fleetstate.New(fleetstate.DefaultConfig()), history: history, ledger: ledger.New(ledger.DefaultConfig()), people: people.New(0.5)}
		begin(e, host{cfg.Extension: v})
		r := reader{Metrics: e, name: "fleet view", reads: forAny(reading.View), takes: says, keeps: isNumber, tel: tel, counter: "otelcol_exporter_fleet_view_rejected"}
		r.gpus = func(_ require.TestingT, node string, names []string) (found []string) {
			n, _ := v.state.Node(fleetstate.Key{Cluster: "c", Node: node}, time.Now())
			for _, name := range names {
				if slices.ContainsFunc(n.GPUs, func(g fleetstate.GPU) bool { return g.UUID == name }) {
					found = append(found, name)
				}
			}
			return found
		}
		if kept, ok := history.(*recorder); ok {
			r.name = "fleet view with a history"
			r.reads = func(*reading.Metric) bool { return true }
			r.takes = func(*metricreading.Point) bool { return true }
			r.keeps = r.takes
			r.gpus = func(_ require.TestingT, node string, names []string) (found []string) {
				for _, name := range names {
					if kept.gpus[node][name] {
						found = append(found, name)
					}
				}
				return found
			}
		}
		all = append(all, r)
	}
	actions, tel := verdictactionsexporter.NewFactory(), componenttest.NewTelemetry()
	acts := actions.CreateDefaultConfig().(*verdictactionsexporter.Config)
	acts.Cluster = "c"
	actor, err := actions.CreateMetrics(t.Context(), exporter.Settings{ID: component.NewID(actions.Type()), TelemetrySettings: settings(tel)}, acts)
	require.NoError(t, err)
	begin(actor, host{})
	return append(all, reader{Metrics: actor, name: "actor", reads: forAny(reading.Actions), tel: tel, counter: "otelcol_exporter_verdict_actions_rejected"})
}

// withRoom tells by the GPUs that a full node still takes: those that it has.
func (r *reader) withRoom(t require.TestingT, node string, names []string) (found []string) {
	push := func(gpus ...string) (refused int64) {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", node)
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "c")
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("hw.gpu.utilization") // the agent and the gateway read it
		points := m.SetEmptyGauge().DataPoints()
		for _, gpu := range gpus {
			p := points.AppendEmpty()
			p.SetDoubleValue(1)
			p.Attributes().PutStr("hw.id", gpu)
		}
		before := r.counted(t, "max_gpus", "fact_max_devices")
		require.NoError(t, r.ConsumeMetrics(context.Background(), md))
		return r.counted(t, "max_gpus", "fact_max_devices") - before
	}
	var others []string
	for i := range 128 {
		others = append(others, "other "+strconv.Itoa(i))
	}
	push(others...)
	require.Equal(t, int64(1), push("one more"), "it is full")
	for _, name := range names {
		if push(name) == 0 {
			found = append(found, name)
		}
	}
	return found
}

// counted returns how much a reader has counted for these reasons.
func (r *reader) counted(t require.TestingT, reasons ...string) (n int64) {
	m, err := r.tel.GetMetric(r.counter)
	if err != nil {
		return 0 // nothing yet
	}
	sum, ok := m.Data.(metricdata.Sum[int64])
	require.True(t, ok)
	for _, p := range sum.DataPoints {
		if name, _ := p.Attributes.Value("reason"); slices.Contains(reasons, name.AsString()) {
			n += p.Value
		}
	}
	return n
}

// refused returns what a reader has refused so far, by reason, of the reasons of
// the catalogue.
func (r *reader) refused(t require.TestingT) (out [reading.NumRefusals]int64) {
	for why := reading.Accepted + 1; why < reading.NumRefusals; why++ {
		out[why] = r.counted(t, why.String())
	}
	return out
}

// TestOneComplaintPerProcess: a mistake that passes several components of a process is
// logged by the first, and counted by each. So is a name that is nearly known.
func TestOneComplaintPerProcess(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	push := func(t *testing.T, node string) {
		for _, r := range readers(t, zap.New(core)) {
			md := pmetric.NewMetrics()
			rm := md.ResourceMetrics().AppendEmpty()
			rm.Resource().Attributes().PutStr("host.name", node)
			sm := rm.ScopeMetrics().AppendEmpty()
			for _, name := range []string{"hw.gpu.utilization", "hw.gpu.utilisation"} {
				m := sm.Metrics().AppendEmpty()
				m.SetName(name)
				p := m.SetEmptyGauge().DataPoints().AppendEmpty()
				p.SetDoubleValue(7)
				p.Attributes().PutStr("hw.id", "GPU-0")
			}
			require.NoError(t, r.ConsumeMetrics(t.Context(), md))
			if !r.reads(reading.ByName("hw.gpu.utilization")) {
				continue
			}
			assert.Equal(t, int64(1), r.counted(t, reading.ValueRange.String()), r.name)
		}
	}
	t.Run("a process", func(t *testing.T) {
		push(t, "a")
		assert.Equal(t, 1, logs.FilterMessageSnippet("reading refused").Len())
		assert.Equal(t, 1, logs.FilterMessageSnippet("nearly").Len())
		push(t, "b")
		assert.Equal(t, 2, logs.FilterMessageSnippet("reading refused").Len(), "another node")
		assert.Equal(t, 1, logs.FilterMessageSnippet("nearly").Len())
	})
	logs.TakeAll()
	t.Run("the next", func(t *testing.T) {
		push(t, "a")
		assert.Equal(t, 1, logs.FilterMessageSnippet("reading refused").Len(), "nothing outlives the components")
	})
}

// judgement is what the catalogue makes of a metric.
type judgement struct {
	refused [reading.NumRefusals]int64
	points  []metricreading.Point // which name a GPU for sure
	// ended are GPUs with a point without a value, vague or not: after it the view may have
	// nothing to show of them.
	ended map[string]bool
}

func judge(known *reading.Metric, m pmetric.Metric) (j judgement) {
	var from metricreading.Resource
	from.Begin(metricreading.New(zap.NewNop(), nil), pcommon.NewMap(), "", "")
	if points, ok := from.Open(known, m); ok {
		var p metricreading.Point
		j.ended = map[string]bool{}
		for _, dp := range points.All() {
			why := from.Read(dp, &p)
			switch {
			case why == reading.BadSubject || p.Subject != reading.GPU && p.Subject != reading.Slice:
			case why == reading.Accepted && !p.Ended:
				if !p.Vague {
					j.points = append(j.points, p)
				}
			default:
				j.ended[p.ID] = true
			}
		}
	}
	j.refused = from.Refused
	return j
}

// certain are the names that have not both values and an end.
func (j *judgement) certain() (certain []string) {
	for _, name := range names {
		if !j.ended[name] || !slices.ContainsFunc(j.points, func(p metricreading.Point) bool { return p.ID == name }) {
			certain = append(certain, name)
		}
	}
	return certain
}

// of returns the GPUs that a reader makes of the points that it takes.
func (j *judgement) of(takes func(*metricreading.Point) bool) (gpus []string) {
	for _, name := range j.certain() {
		if slices.ContainsFunc(j.points, func(p metricreading.Point) bool { return p.ID == name && takes(&p) }) {
			gpus = append(gpus, name)
		}
	}
	return gpus
}

// TestAllReadersRefuseTheSamePoints pushes any points of any metric to each reader:
// units, instruments, values, subjects and attributes that are right and that are
// not. The readers of a metric refuse what the catalogue refuses, and make the GPUs
// that the others name. The others refuse nothing. csv_replay makes points of all
// metrics, and refuses those that no reader would take.
func TestAllReadersRefuseTheSamePoints(t *testing.T) {
	all := readers(t, zap.NewNop())
	list := reading.All()
	refusals, replayed := map[reading.Refusal]bool{}, map[reading.Refusal]bool{}
	nodes, made, refused := 0, map[string]int{}, map[string]int64{}
	check := func(rt *rapid.T, known *reading.Metric) {
		md := pmetric.NewMetrics()
		rm := md.ResourceMetrics().AppendEmpty()
		nodes++
		node := "n" + strconv.Itoa(nodes)
		if known.Subject() != reading.Group {
			rm.Resource().Attributes().PutStr("host.name", node)
		}
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "c")
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		draw(rt, known, m)

		want := judge(known, m)
		for why, n := range want.refused {
			if n > 0 {
				refusals[reading.Refusal(why)] = true
			}
		}
		for i := range all {
			r := &all[i]
			before := r.refused(rt)
			own := pmetric.NewMetrics() // a gateway takes its own names out
			md.CopyTo(own)
			require.NoError(rt, r.ConsumeMetrics(context.Background(), own))
			got := r.refused(rt)
			for why := range got {
				got[why] -= before[why]
				refused[r.name] += got[why]
			}
			if !r.reads(known) {
				require.Zero(rt, got, "%s by the %s", known.Name, r.name)
				continue
			}
			require.Equal(rt, want.refused, got, "%s by the %s", known.Name, r.name)
			if known.Subject() == reading.GPU && r.gpus != nil {
				gpus := r.gpus(rt, node, want.certain())
				require.Subset(rt, want.of(r.takes), gpus, "%s by the %s", known.Name, r.name)
				require.Subset(rt, gpus, want.of(r.keeps), "%s by the %s", known.Name, r.name)
				made[r.name] += len(gpus)
			}
		}
		if skipped, ok := replay(t, rt, m); ok {
			want := judge(known, m)
			require.Equal(rt, want.refused, skipped, "%s by csv_replay", known.Name)
			for why, n := range want.refused {
				if n > 0 {
					replayed[reading.Refusal(why)] = true
				}
			}
		}
	}
	ofActor := slices.DeleteFunc(slices.Clone(list), func(m reading.Metric) bool { return m.For&reading.Actions == 0 })
	rapid.Check(t, func(rt *rapid.T) {
		for range 5 {
			check(rt, &list[rapid.IntRange(0, len(list)-1).Draw(rt, "metric")])
		}
		// They are few among all.
		check(rt, &ofActor[rapid.IntRange(0, len(ofActor)-1).Draw(rt, "metric of the actor")])
	})
	assert.Len(t, refusals, int(reading.NumRefusals)-1, "each refusal was drawn")
	assert.Len(t, replayed, int(reading.NumRefusals)-1, "and each by csv_replay")
	for i := range all {
		assert.Positive(t, refused[all[i].name], "the %s refused nothing", all[i].name)
		if all[i].gpus != nil {
			assert.Contains(t, made, all[i].name)
		}
	}
	for name, n := range made {
		assert.Positive(t, n, "the %s made no GPU", name)
	}
}

// names are those of drawn hardware, GPUs or not.
var names = [...]string{"GPU-0", "GPU-1", "psu0"}

// draw makes a metric of up to four points. Every other one has no mistake but in its
// attributes.
func draw(t *rapid.T, m *reading.Metric, to pmetric.Metric) {
	units := []string{m.Unit, "", "ms", "%", "kW", "{x}", "odd"}
	kinds := []string{"right", "gauge", "counter", "updown", "delta", "histogram"}
	values := 9
	if rapid.Bool().Draw(t, "right") {
		units, kinds, values = units[:1], kinds[:1], 0
	}
	to.SetName(m.Name)
	to.SetUnit(rapid.SampledFrom(units).Draw(t, "unit"))
	var points pmetric.NumberDataPointSlice
	kind := rapid.SampledFrom(kinds).Draw(t, "kind")
	if kind == "right" {
		kind = []string{"gauge", "counter", "updown"}[m.Kind]
	}
	switch kind {
	case "gauge":
		points = to.SetEmptyGauge().DataPoints()
	case "histogram":
		to.SetEmptyHistogram().DataPoints().AppendEmpty()
		return
	default:
		sum := to.SetEmptySum()
		sum.SetIsMonotonic(kind != "updown")
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		if kind == "delta" {
			sum.SetAggregationTemporality(pmetric.AggregationTemporalityDelta)
		}
		points = sum.DataPoints()
	}
	for range rapid.IntRange(1, 4).Draw(t, "points") {
		p := points.AppendEmpty()
		switch rapid.IntRange(0, values).Draw(t, "value") {
		case 5:
			p.SetFlags(p.Flags().WithNoRecordedValue(true))
		case 1:
			p.SetIntValue(rapid.Int64().Draw(t, "int"))
		case 2: // without a value
		case 3:
			p.SetDoubleValue(rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 1.7e308, -1e-9}).Draw(t, "odd"))
		case 4: // which only another unit makes true
			p.SetDoubleValue(rapid.Float64Range(m.Range.Max, 1000*m.Range.Max).Draw(t, "more"))
		default:
			p.SetDoubleValue(rapid.Float64Range(m.Range.Min, m.Range.Max).Draw(t, "float"))
		}
		put := func(key string, values ...string) {
			if v := rapid.SampledFrom(values).Draw(t, key); v != "" {
				p.Attributes().PutStr(key, v)
			}
		}
		put("hw.id", append(names[:], "")...)
		put("hw.parent", "", "", "GPU-0", "chassis")
		put("hw.type", "gpu", "", "network", "power_supply")
		for k := range m.Keys {
			values := []string{"", "odd"}
			for i := range m.Entries {
				if v := m.Entries[i].Values[k]; v != reading.Any && !slices.Contains(values, v) {
					values = append(values, v)
				}
			}
			put(m.Keys[k].Name, values...)
		}
	}
}
