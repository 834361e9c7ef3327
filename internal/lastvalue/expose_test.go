// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue/promtext"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

// testPoint is a point with its name.
type testPoint struct {
	metric Metric
	attrs  []Attr
	value  float64
	kind   Kind
	time   uint64
	over   bool // the series ends
}

// pushPoints has a node report the points.
func pushPoints(tb *Table, now time.Duration, resource []Attr, points ...testPoint) {
	key := KeyOf(fmt.Appendf(nil, "%+v", resource))
	r := tb.Begin(now)
	report(r, key, resource, points...)
	r.Accepted()
}

// report is a node's part of a report.
func report(r *Report, key NodeKey, resource []Attr, points ...testPoint) {
	r.Open(key, func() ([]Attr, bool) { return resource, true })
	for i := range points {
		p := &points[i]
		id := HashString(fmt.Sprintf("%+v", p.metric))
		for _, a := range p.attrs {
			id += Mix(HashString(a.Key), HashString(a.Text)+a.Num)
		}
		point := Point{Key: id, Value: math.Float64bits(p.value), Kind: p.kind, Time: p.time, End: p.over}
		if p.kind != KindDouble {
			point.Value = uint64(p.value)
		}
		if r.Observe(&point) == Unknown {
			r.Add(&point, &p.metric, p.attrs)
		}
	}
	at := unix(r.now)
	r.Close(Facts{Time: at - 150e9, Heartbeat: at, Alive: true}) // the heartbeat is the time of receipt
	r.Emit(0, func(*Series) bool { return true })
	r.Done()
}

func host(cluster, name string, more ...Attr) []Attr {
	return append([]Attr{{Key: gpusemconv.AttrClusterName, Text: cluster}, {Key: gpusemconv.AttrHostName, Text: name}}, more...)
}

func gauge(name string, value float64, attrs ...Attr) testPoint {
	return testPoint{metric: Metric{Name: name, Description: "About " + name + "."}, attrs: attrs, value: value, kind: KindDouble}
}

func total(name string, value float64, attrs ...Attr) testPoint {
	t := gauge(name, value, attrs...)
	t.metric.Type, t.metric.Monotonic = TypeSum, true
	return t
}

func attr(key, text string) Attr { return Attr{Key: key, Text: text} }

func forever(x Exposition) Exposition {
	x.Expiration = 1 << 60
	return x
}

func written(t require.TestingT, x Exposition, tb *Table, now time.Duration) (string, Exposed) {
	var text bytes.Buffer
	done, err := x.Write(&text, tb, now)
	require.NoError(t, err)
	return text.String(), done
}

// exposed is the text, read by Prometheus' parsers.
func exposed(t require.TestingT, x Exposition, tb *Table, now time.Duration) (*promparse.Exposed, Exposed) {
	text, done := written(t, x, tb, now)
	kind := promparse.Text
	if x.OpenMetrics {
		kind = promparse.OpenMetrics
		text += "# EOF\n"
	}
	got, err := promparse.Parse([]byte(text), kind)
	require.NoError(t, err, "%s", text)
	require.Len(t, got.Series, done.Series)
	return got, done
}

func roomy(s *Settings) {
	s.MaxNodes, s.MaxSeries, s.TTL, s.VanishedAfter = 1000, 100_000, 10*time.Minute, 0
}

func TestExpositionText(t *testing.T) {
	tb := newTable(roomy)
	pushPoints(tb, 0, host("west", "n2"), gauge("hw.gpu.up", 1, attr("hw.id", "GPU-2")))
	pushPoints(tb, time.Second, host("east", "n1", attr("x.y", "node"), attr("service.name", "agent"), attr("service.namespace", "gpu"), attr("service.instance.id", "7")),
		total("hw.errors", 17, attr("hw.id", "GPU-1")), gauge("hw.gpu.up", 0.5, attr("hw.id", "GPU-1"), attr("x_y", "mine"), attr("host_name", "other"), attr("k8s_cluster_name", "other"), attr("empty", "")),
		testPoint{metric: Metric{Name: "plain"}, value: -3})
	text, done := written(t, forever(Exposition{}), tb, time.Second)
	const names, job = `k8s_cluster_name="east",host_name="n1",`, `job="gpu/agent",instance="7",`
	const rest = `x_y="node",service_name="agent",service_namespace="gpu",service_instance_id="7"`
	const east = names + job + rest
	assert.Equal(t, `# HELP gpu_node_heartbeat_seconds Time of the node's last report.
# TYPE gpu_node_heartbeat_seconds gauge
gpu_node_heartbeat_seconds{`+east+`} 1800000001
gpu_node_heartbeat_seconds{k8s_cluster_name="west",host_name="n2"} 1800000000
# HELP hw_errors_total About hw.errors.
# TYPE hw_errors_total counter
hw_errors_total{`+names+`hw_id="GPU-1",`+job+rest+`} 17
# HELP hw_gpu_up About hw.gpu.up.
# TYPE hw_gpu_up gauge
hw_gpu_up{`+names+`hw_id="GPU-1",x_y="mine",`+job+strings.TrimPrefix(rest, `x_y="node",`)+`} 0.5
hw_gpu_up{k8s_cluster_name="west",host_name="n2",hw_id="GPU-2"} 1
# HELP plain The OpenTelemetry metric plain.
# TYPE plain gauge
plain{`+east+`} -3
`, text)
	assert.Equal(t, 2, done.Nodes)
	assert.Equal(t, 6, done.Series)
	assert.EqualValues(t, len(text), done.Bytes)
	assert.Empty(t, done.Hidden)

	text, _ = written(t, forever(Exposition{OpenMetrics: true, Attributes: []string{"host.name"}}), tb, time.Second)
	assert.Contains(t, text, "# TYPE hw_errors counter\nhw_errors_total{k8s_cluster_name=\"east\",host_name=\"n1\",hw_id=\"GPU-1\",job=\"gpu/agent\",instance=\"7\"} 17\n")
	assert.Contains(t, text, "# TYPE gpu_node_info gauge\ngpu_node_info{"+east+"} 1\n")
}

// A node without a cluster cannot claim one, by a label of its own or of its points.
func TestNoNodeClaimsACluster(t *testing.T) {
	tb := newTable(roomy)
	claim := attr("k8s_cluster_name", "other")
	pushPoints(tb, 0, []Attr{attr(gpusemconv.AttrHostName, "n"), claim}, gauge("a", 1, claim))
	text, done := written(t, forever(Exposition{}), tb, 0)
	assert.Equal(t, 2, done.Series)
	assert.NotContains(t, text, "other")
}

// TestTheFirstTypeAndHelpStand: in any order of reports, a gauge comes before a counter, and
// of two explanations the first by the alphabet.
func TestTheFirstTypeAndHelpStand(t *testing.T) {
	tb := newTable(roomy)
	pushPoints(tb, 0, host("a", "n"), total("pushes", 1))
	got, done := exposed(t, forever(Exposition{}), tb, 0)
	assert.Equal(t, "counter", got.Types["pushes_total"])
	assert.Zero(t, done.Conflicts)
	for n := range 5 {
		pushPoints(tb, 0, host("b", strconv.Itoa(n)), gauge("pushes.total", 1))
	}
	for _, open := range []bool{false, true} {
		got, done = exposed(t, forever(Exposition{OpenMetrics: open}), tb, 0)
		assert.Equal(t, "gauge", got.Types["pushes_total"])
		assert.Equal(t, 2*6, done.Series, "no series are hidden, nor are heartbeats")
		assert.Equal(t, 1, done.Conflicts)
	}
	a := "a"
	got, done = exposed(t, forever(Exposition{Cluster: &a}), tb, 0)
	assert.Equal(t, "counter", got.Types["pushes_total"], "as the nodes of the text have it")
	assert.Zero(t, done.Conflicts)

	help := func(name, text string) testPoint { return testPoint{metric: Metric{Name: name, Description: text}} }
	of := func(tb *Table, x Exposition) string {
		text, _ := written(t, forever(x), tb, 0)
		require.Equal(t, 1, strings.Count(text, "# HELP a "), text)
		_, rest, _ := strings.Cut(text, "# HELP a ")
		line, _, _ := strings.Cut(rest, "\n")
		return line
	}
	for _, order := range [][]string{{"one", "two"}, {"two", "one"}} {
		tb = newTable(roomy)
		for _, text := range order {
			pushPoints(tb, 0, host(text, "n"), help("a", "By "+text+"."))
		}
		assert.Equal(t, "By one.", of(tb, Exposition{}))
	}

	tb = newTable(roomy)
	pushPoints(tb, 0, host("c", "n"), help("a", "a"+strings.Repeat("é", 500)))
	assert.Equal(t, "a"+strings.Repeat("é", 255), of(tb, Exposition{}), "whole letters, up to the bound")

	tb = newTable(roomy)
	pushPoints(tb, 0, host("c", "n"), testPoint{metric: Metric{Name: "gpu.node.info", Description: "Mine."}})
	text, _ := written(t, forever(Exposition{Attributes: []string{"host.name"}}), tb, 0)
	assert.Contains(t, text, "# HELP gpu_node_info What the node's resource says of it.\n", "no sender describes the table's own series")
}

// In OpenMetrics a gauge and a counter without its suffix would be one family.
func TestOpenMetricsFamiliesAreApart(t *testing.T) {
	tb := newTable(roomy)
	pushPoints(tb, 0, host("c", "n"), gauge("pushes", 1), total("pushes", 2))
	got, _ := exposed(t, forever(Exposition{OpenMetrics: true}), tb, 0)
	assert.Equal(t, map[string]string{"pushes": "gauge", "pushes_total": "unknown", "gpu_node_heartbeat_seconds": "gauge"}, got.Types)
	assert.Len(t, got.Series, 3)
}

func TestOfTwoAlikeTheLastReportedCounts(t *testing.T) {
	labels := `{__name__="pushes_total", host_name="n", k8s_cluster_name="c"}`
	for first, second := range map[string]string{"counter": "gauge", "gauge": "counter"} {
		tb := newTable(roomy)
		of := map[string]testPoint{"counter": total("pushes", 1), "gauge": gauge("pushes.total", 2)}
		pushPoints(tb, 0, host("c", "n"), of[first], of[second])
		pushPoints(tb, 5*time.Minute, host("c", "n"), of[second])
		got, done := exposed(t, forever(Exposition{}), tb, 5*time.Minute)
		assert.InDelta(t, of[second].value, got.Series[labels], 0)
		assert.Equal(t, 1, done.Hidden["c"][HiddenDuplicate])
		assert.Equal(t, 1, done.Conflicts)
	}
	// A series reported since the scrape began is not old.
	tb := newTable(roomy)
	pushPoints(tb, 0, host("c", "n"), gauge("pushes.total", 2))
	pushPoints(tb, 5*time.Minute, host("c", "n"), total("pushes", 1))
	got, _ := exposed(t, forever(Exposition{}), tb, 4*time.Minute)
	assert.InDelta(t, 1, got.Series[labels], 0)
	// Reported at once, the later timestamp counts.
	tb = newTable(roomy)
	late, early := total("pushes", 1), gauge("pushes.total", 2)
	late.time, early.time = 1_800_000_001e9, 1_800_000_000e9
	pushPoints(tb, 0, host("c", "n"), late, early)
	got, _ = exposed(t, forever(Exposition{}), tb, 0)
	assert.InDelta(t, late.value, got.Series[labels], 0)

	// Two resources that look the same have series of their own and one that both have.
	tb = newTable(roomy)
	pushPoints(tb, 0, host("c", "n", attr("x", "1")), gauge("a", 1), gauge("both", 1))
	pushPoints(tb, time.Minute, host("c", "n", attr("x", "2")), gauge("b", 2), gauge("both", 2))
	x := forever(Exposition{Attributes: []string{gpusemconv.AttrHostName}})
	got, done := exposed(t, x, tb, time.Minute)
	assert.InDelta(t, 2, got.Series[`{__name__="both", host_name="n", k8s_cluster_name="c"}`], 0)
	assert.Contains(t, got.Series, `{__name__="a", host_name="n", k8s_cluster_name="c"}`)
	assert.Contains(t, got.Series, `{__name__="b", host_name="n", k8s_cluster_name="c"}`)
	assert.Equal(t, 2, done.Hidden["c"][HiddenDuplicate], "both, and the heartbeat")
}

func TestHeartbeatOfTheTierBefore(t *testing.T) {
	tb := newTable(roomy)
	beat := gauge(gpusemconv.MetricNodeHeartbeat, 1_800_000_000)
	beat.metric.Unit = "s"
	pushPoints(tb, 10*time.Second, host("c", "n"), beat, gauge("a", 1))
	got, done := exposed(t, forever(Exposition{}), tb, 10*time.Second)
	assert.InDelta(t, 1_800_000_010, got.Series[`{__name__="gpu_node_heartbeat_seconds", host_name="n", k8s_cluster_name="c"}`], 0)
	assert.Empty(t, done.Hidden, "it is the node's last report, once")
}

// TestBoundsOfTheText also has some attributes as labels of all series, and all as labels of
// one: what is missing is counted once.
func TestBoundsOfTheText(t *testing.T) {
	var many []Attr
	for i := range 6 {
		many = append(many, attr(fmt.Sprint("long.", i), strings.Repeat("x", 1000)))
	}
	resource := append(slices.Clone(many), attr("service.name", strings.Repeat("s", 800)))
	for i := range 40 {
		resource = append(resource, attr(fmt.Sprint("short.", i), "y"))
	}
	resource = append(resource, host("c", "n")...) // its name last
	tb := newTable(roomy)
	pushPoints(tb, 0, resource, gauge("gpu_exposition_mine", 1), gauge("toolong", 1, many[:4]...), gauge("fits", 1, many[0]),
		testPoint{metric: Metric{Name: "h", Type: TypeHistogram}, kind: KindHash}, gauge("unnamed", 1, attr("a", strings.Repeat("x", 2000))))
	for _, asked := range [][]string{nil, {"host.name", "long.0", "long.1", "long.2", "long.3"}} {
		x := forever(Exposition{Reserved: []string{"gpu_exposition_"}, Attributes: asked})
		got, done := exposed(t, x, tb, 0)
		for series := range got.Series {
			assert.Contains(t, series, `host_name="n"`, "a node's name has room before all else")
			assert.Contains(t, series, `k8s_cluster_name="c"`)
			all := asked == nil || strings.Contains(series, "gpu_node_info")
			assert.Equal(t, all, strings.Contains(series, `short_1="y"`), "what fits is there")
			assert.Less(t, len(series), MaxLine)
		}
		missing := 0
		text, _ := written(t, x, tb, 0)
		for _, a := range resource {
			if !strings.Contains(text, promtext.LabelName(a.Key)+`="`) {
				missing++
			}
		}
		require.Greater(t, missing, 16, "so many have no room in the table")
		want := [hiddenReasons]int{HiddenLong: 1, HiddenOpaque: 1, HiddenUnnamed: 1, HiddenReserved: 1, HiddenLabel: missing}
		assert.Equal(t, want, *done.Hidden["c"])
	}
}

// Whatever nodes report, and whatever their names, the text is whole: it has each
// series of the table once, its parts are the whole, and both formats are alike.
func TestExpositionIsWhatTheTableHas(t *testing.T) {
	text := rapid.SampledFrom([]string{"", "a", "a.b", "a_b", "le", "__name__", "é", "\xff", "\"\\\n", "x{}", "k8s.cluster.name", "k8s_cluster_name", "0", "_", strings.Repeat("k", 300)})
	values := rapid.OneOf(text, rapid.StringN(0, 20, -1))
	rapid.Check(t, func(t *rapid.T) {
		tb := newTable(roomy)
		attrs := rapid.Custom(func(t *rapid.T) []Attr {
			set := map[string]Attr{}
			for range rapid.IntRange(0, 4).Draw(t, "attributes") {
				a := Attr{Key: text.Draw(t, "key"), Type: AttrType(rapid.IntRange(0, 3).Draw(t, "type"))}
				if a.Type == AttrString {
					a.Text = values.Draw(t, "text")
				} else {
					a.Num = rapid.Uint64Range(0, 3).Draw(t, "number")
				}
				set[a.Key] = a
			}
			return slices.AppendSeq([]Attr(nil), maps.Values(set))
		})
		point := rapid.Custom(func(t *rapid.T) testPoint {
			return testPoint{
				metric: Metric{
					Name: rapid.OneOf(text, rapid.SampledFrom([]string{"b", "b.total", "b_total", "b.count"})).Draw(t, "metric"),
					Type: rapid.SampledFrom([]MetricType{TypeGauge, TypeSum}).Draw(t, "type"), Monotonic: rapid.Bool().Draw(t, "monotonic"),
					Description: values.Draw(t, "help"),
				},
				attrs: attrs.Draw(t, "attributes"), value: rapid.Float64().Draw(t, "value"), kind: KindDouble, over: rapid.IntRange(0, 5).Draw(t, "over") == 0,
			}
		})
		resources := rapid.SliceOfN(attrs, 1, 4).Draw(t, "resources")
		now := time.Duration(0)
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 4).Draw(t, "half minutes")) * 30 * time.Second
			if rapid.IntRange(0, 6).Draw(t, "sweep") == 0 {
				tb.Sweep(now)
			}
			resource := rapid.SampledFrom(resources).Draw(t, "resource")
			r := tb.Begin(now)
			report(r, KeyOf(fmt.Appendf(nil, "%+v", resource)), resource, rapid.SliceOfN(point, 1, 6).Draw(t, "points")...)
			// A value that the next component refused is true all the same, and an end too.
			rapid.SampledFrom([]func(*Report){(*Report).Accepted, (*Report).Refused}).Draw(t, "answer")(r)
		}
		x := Exposition{Expiration: 5 * time.Minute}
		want, done := exposed(t, x, tb, now)
		hidden := 0
		for _, counts := range done.Hidden {
			hidden += counts[HiddenDuplicate] + counts[HiddenLong]
		}
		require.Equal(t, reported(tb, now, x.Expiration), done.Series+hidden)
		x.OpenMetrics = true
		open, _ := exposed(t, x, tb, now)
		require.Equal(t, want.Series, open.Series)

		parts := map[string]float64{}
		for x.Parts = 3; x.Part < x.Parts; x.Part++ {
			part, _ := exposed(t, x, tb, now)
			maps.Copy(parts, part.Series)
		}
		require.Equal(t, slices.Sorted(maps.Keys(want.Series)), slices.Sorted(maps.Keys(parts)))
	})
}

// reported is how many series the table has of nodes that are not missing, with their heartbeats.
func reported(tb *Table, now, expiration time.Duration) (series int) {
	for n := range tb.all() {
		if now-n.lastSeen > expiration {
			continue
		}
		if names := Identify(n.names.attributes(n.attrs)); names.Node() != "" && n.heartbeat != 0 {
			series++
		}
		for i := range n.entries {
			if !n.entries[i].is(gone) {
				series++
			}
		}
	}
	return series
}

// between calls something each time a part of the text is written.
type between struct {
	bytes.Buffer
	do func()
}

func (b *between) Write(p []byte) (int, error) {
	b.do()
	return b.Buffer.Write(p)
}

// The rest is not rendered for a reader that has gone.
func TestATextEndsWithItsReader(t *testing.T) {
	tb := newTable(roomy)
	for n := range 100 {
		pushPoints(tb, 0, host("c", strconv.Itoa(n)), gauge("a", 1, attr("x", strings.Repeat("x", 1000))), gauge("b", 1))
	}
	gone, w := io.Pipe()
	require.NoError(t, gone.Close())
	x := forever(Exposition{})
	done, err := x.Write(w, tb, 0)
	require.ErrorIs(t, err, io.ErrClosedPipe)
	assert.Less(t, done.Series, 100)
}

// While a text is written, which takes as long as its reader likes, nodes report, end
// series and bring others, sweeps move what is left, and numbers of names become
// another's. No lock is held then, or this would not end. Each line names its series.
func TestTheTableChangesUnderTheText(t *testing.T) {
	tb := newTable(func(s *Settings) { s.MaxNodes, s.MaxSeries, s.TTL = 100, 100_000, 64*time.Second })
	value := func(metric, id string) float64 { return float64(HashString(metric+"/"+id) >> 12) }
	nodes := 40
	send := func(now time.Duration, prefix string, from, to int) {
		for n := range nodes {
			var points []testPoint
			for m := range 8 {
				for i := from; i < to; i++ {
					metric, id := fmt.Sprintf("%s.%d", prefix, m), fmt.Sprintf("%s-%d-%d", prefix, n, i)
					points = append(points, gauge(metric, value(strings.ReplaceAll(metric, ".", "_"), id), attr("hw.id", id), attr("shared", prefix)))
				}
			}
			pushPoints(tb, now, host("c", fmt.Sprint("node-", n)), points...)
		}
	}
	now := time.Duration(0)
	send(now, "old", 0, 30)
	send(now, "zero", 0, 5) // and no more
	calls := 0
	w := &between{do: func() {
		calls++
		if calls > 6 {
			return
		}
		now += 50 * time.Second
		nodes = 20 // the sweeps forget the others
		send(now, "old", 10*(calls%3), 30)
		if calls > 2 { // after two sweeps the numbers of "zero" are free
			send(now, "new", 0, 20)
		}
		tb.Sweep(now)
	}}
	x := forever(Exposition{})
	done, err := x.Write(w, tb, 0)
	require.NoError(t, err)
	require.Greater(t, calls, 4, "it is written in pieces")
	got, err := promparse.Parse(w.Bytes(), promparse.Text)
	require.NoError(t, err)
	require.Len(t, got.Series, done.Series)
	require.Greater(t, done.Series, 1000)
	own := regexp.MustCompile(`__name__="((\w+)_\d)".* hw_id="([^"]+)".* shared="(\w+)"`)
	for series, v := range got.Series {
		if strings.Contains(series, "gpu_node_heartbeat_seconds") {
			continue
		}
		of := own.FindStringSubmatch(series)
		require.NotNil(t, of, series)
		require.Equal(t, value(of[1], of[3]), v, series) //nolint:testifylint // the very number
		require.Equal(t, of[2], of[4], series)
	}
}
