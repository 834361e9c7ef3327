// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
)

const testEpoch = 1_700_000_000 * time.Second

var errRefused = errors.New("refused")

// nodeReport is one node's report: 8 GPUs with 40 metrics each, 320 points.
func nodeReport() pmetric.Metrics {
	const node = "n"
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
			dp.SetTimestamp(pcommon.Timestamp(testEpoch))
			dp.SetStartTimestamp(pcommon.Timestamp(i + 1)) // of no meaning in a gauge
			dp.SetDoubleValue(float64(gpu))
			dp.Attributes().PutStr("hw.id", fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a%02d", gpu))
			dp.Attributes().PutInt("gpu.index", int64(gpu))
		}
	}
	return md
}

// testT is what testing and rapid have in common.
type testT interface {
	require.TestingT
	Helper()
}

func encode(t testT, md pmetric.Metrics) []byte {
	t.Helper()
	msg, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return msg
}

func decode(msg []byte) (pmetric.Metrics, error) {
	req := pmetricotlp.NewExportRequest()
	err := req.UnmarshalProto(msg)
	return req.Metrics(), err
}

// newDoor is a way in with a table of its own.
func newDoor(edit ...func(*lastvalue.Settings)) *tier {
	return newTier(append([]func(*lastvalue.Settings){func(set *lastvalue.Settings) {
		set.MaxNodes, set.TTL, set.OpaqueInterval, set.HeartbeatInterval = 8, 20*time.Minute, 40*time.Second, 15*time.Second
		set.Bands = []lastvalue.Band{{Metric: "hw.temp*", Absolute: 1}}
	}}, edit...)...)
}

// take takes a message in, with reduced by its bytes first. What goes on is in got.
func (s *tier) take(t testT, msg []byte, reduced bool) Counts {
	t.Helper()
	s.got = nil
	if reduced {
		if left := bytes.Clone(msg); s.Reduce(anybody, left) {
			wantPart(t, msg, left)
			msg = left
		}
	}
	md, err := decode(msg)
	if err != nil || md.DataPointCount() == 0 {
		return Counts{} // the receiver does not call the pipeline
	}
	counts, _ := s.Consume(context.Background(), md, s.send)
	return counts
}

// sent are the messages that went on, by resource, and what else they had.
func (s *tier) sent(t testT) (resources [][]byte, counts []lastvalue.Counts) {
	for _, m := range s.got {
		for _, rm := range m.Metrics.ResourceMetrics().All() {
			md := pmetric.NewMetrics()
			rm.CopyTo(md.ResourceMetrics().AppendEmpty())
			resources = append(resources, encode(t, md))
		}
		counts = append(counts, m.Counts)
	}
	return resources, counts
}

// wantPart: what is left is a request of the same resources with some of their points, one
// of each at least.
func wantPart(t testT, msg, left []byte) {
	t.Helper()
	all, err := decode(msg)
	require.NoError(t, err, "taken for regular")
	some, err := decode(left)
	require.NoError(t, err)
	require.Equal(t, all.ResourceMetrics().Len(), some.ResourceMetrics().Len())
	for i, rm := range some.ResourceMetrics().All() {
		whole := all.ResourceMetrics().At(i)
		require.Equal(t, resourcePoints(whole) > 0, resourcePoints(rm) > 0)
		require.Equal(t, whole.Resource().Attributes().AsRaw(), rm.Resource().Attributes().AsRaw())
	}
}

// known is the table's content as the next hop would get it after a loss.
func (s *tier) known(t testT, msg []byte) [][]byte {
	md, err := decode(msg)
	if err != nil {
		return nil
	}
	s.again(t, md)
	resources, _ := s.sent(t)
	return resources
}

// same pushes through three doors: decoded, reduced first, and both in turn into
// one table. What goes on must be the same.
type same struct {
	decoded, reduced, both *tier
	turns                  int
	now                    time.Duration
}

func newSame(edit ...func(*lastvalue.Settings)) *same {
	return &same{decoded: newDoor(edit...), reduced: newDoor(edit...), both: newDoor(edit...)}
}

func (s *same) doors() []*tier { return []*tier{s.decoded, s.reduced, s.both} }

func (s *same) push(t testT, msg []byte, accepted bool) {
	t.Helper()
	for _, d := range s.doors() {
		d.at, d.answer = s.now, nil
		if !accepted {
			d.answer = func(pmetric.Metrics) error { return errRefused }
		}
	}
	want := s.decoded.take(t, msg, false)
	require.Equal(t, want, s.reduced.take(t, msg, true))
	require.Equal(t, want, s.both.take(t, msg, s.turns%2 == 0))
	s.wantSame(t)
	s.turns++
}

// wantSame: the doors sent the same, and their tables have the same figures.
func (s *same) wantSame(t testT) {
	t.Helper()
	want, counts := s.decoded.sent(t)
	for _, d := range s.doors()[1:] {
		resources, its := d.sent(t)
		require.ElementsMatch(t, want, resources) // nodes that began to wait at once are in no order
		require.Equal(t, counts, its)
		require.Equal(t, s.decoded.Table.Stats(), d.Table.Stats())
	}
}

// flush sends what waits with a flush interval.
func (s *same) flush(t testT) {
	t.Helper()
	for _, d := range s.doors() {
		d.flush(unbounded, nil)
	}
	s.wantSame(t)
}

// pass lets time pass.
func (s *same) pass(by time.Duration) {
	s.now += by
	for _, d := range s.doors() {
		d.Table.Sweep(s.now)
	}
}

// end compares what the tables know of the nodes of a message. Nothing may differ: a point
// that Reduce leaves as a sign of life is dropped by Consume, as the others would be.
func (s *same) end(t testT, msg []byte) {
	t.Helper()
	want := s.decoded.known(t, msg)
	require.Equal(t, want, s.reduced.known(t, msg))
	require.Equal(t, want, s.both.known(t, msg))
}

// Each resource keeps a point, so that Consume knows that its node reported.
func TestAnUnchangedReportIsOnePoint(t *testing.T) {
	s := newSame()
	msg := encode(t, nodeReport())
	s.push(t, msg, true)
	assert.EqualValues(t, 321, s.reduced.got[0].Points, "with the heartbeat")
	for range 2 { // the first of these does not come to Consume
		left := bytes.Clone(msg)
		assert.True(t, s.reduced.Reduce(anybody, left))
		md, err := decode(left)
		require.NoError(t, err)
		assert.Equal(t, 1, md.DataPointCount())
		assert.Equal(t, 1, md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().Len())
	}
	s.end(t, msg)
}

// What only pushes in a row show, and the draws seldom meet.
func TestRows(t *testing.T) {
	type step struct {
		after time.Duration
		msg   part
	}
	const second = time.Second
	point := func(n uint64) part { return part(nil).bytes(7, gpu0).fixed(3, at).fixed(6, n) }
	newest := part(nil).bytes(7, gpu1).fixed(3, at+50e9).fixed(6, 1) // which Reduce leaves of each
	report := func(points ...part) part { return requestOf(gaugeOf(append(points, newest)...)) }
	a, b := point(0), point(1)
	mixed := requestOf(gaugeOf(a), part(nil).text(1, "gpu.node.straggler").bytes(5, part(nil).bytes(1, newest)))
	unnamed := part(nil).bytes(1, part(nil).bytes(1, node).bytes(2, part(nil).bytes(1, part(nil).bytes(3, gpu0)).bytes(2, gaugeOf(a, newest))))
	for name, steps := range map[string][]step{
		"overtaken":                  {{0, report(a)}, {second, report(a.fixed(3, at-2e9))}},
		"time goes on":               {{0, report(a)}, {second, report(a.fixed(3, at+5e9))}, {second, report(b.fixed(3, at+2e9))}},
		"clock set back":             {{0, report(a)}, {second, report(a.fixed(3, at-3600e9))}, {second, report(a.fixed(3, at-3599e9))}},
		"ahead":                      {{0, report(a)}, {second, report(a.fixed(3, at+3600e9), newest.fixed(3, at+7200e9))}},
		"resync is due":              {{0, report(a)}, {1500 * second, report(a)}},
		"paused":                     {{0, report(a)}, {second, report(a)}, {second, report(a)}, {20 * second, report(a)}},
		"a gateway's own is newer":   {{0, mixed}, {20 * second, mixed}},
		"without a name":             {{0, unnamed}, {60 * second, unnamed}},
		"a series twice":             {{0, report(a)}, {second, report(a, b)}, {second, report(b)}},
		"a value twice":              {{0, report(a)}, {second, report(a, a)}},
		"changed and back":           {{0, report(a)}, {second, report(b, a)}},
		"a node twice":               {{0, report(a)}, {second, append(report(b), report(a)...)}},
		"no value where 0 was":       {{0, report(a)}, {second, report(part(nil).bytes(7, gpu0).fixed(3, at))}},
		"ended and back":             {{0, report(a)}, {second, report(a.varint(8, 1), a)}},
		"doubted after a pause":      {{0, report(a)}, {second, report(a)}, {second, report(a)}, {20 * second, report()}, {second, report(a)}, {second, report(a)}},
		"reported before it was not": {{0, report(a)}, {20 * second, report(a)}, {20 * second, report(a)}, {20 * second, report(a)}, {20 * second, report()}, {20 * second, report()}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSame(func(set *lastvalue.Settings) { set.ResyncInterval, set.TTL = time.Hour, 5*time.Minute })
			for _, step := range steps {
				s.now += step.after
				s.push(t, step.msg, true)
			}
			s.end(t, report())
		})
	}
}

// A resource that is not the client's own is for pdata to decode.
func TestReduceAsksWhoseResourceItIs(t *testing.T) {
	msg := encode(t, nodeReport())
	for _, own := range []bool{true, false} {
		ok := newDoor().Reduce(func(attrs pcommon.Map) bool {
			host, _ := attrs.Get("host.name")
			assert.Equal(t, "n", host.Str())
			return own
		}, bytes.Clone(msg))
		assert.Equal(t, own, ok)
	}
}

func isRegular(msg []byte) bool {
	return newDoor().Reduce(anybody, bytes.Clone(msg))
}

// The reports that senders in fact write must be reduced by their bytes. Legal but irregular
// requests are left to pdata, and so are malformed ones.
func TestForms(t *testing.T) {
	for want, forms := range map[bool]map[string][]byte{true: regular(t), false: irregular()} {
		for name, msg := range forms {
			t.Run(name, func(t *testing.T) {
				assert.Equal(t, want, isRegular(msg))
				inTurn(t, msg, msg)
			})
		}
	}
}

// A message that ends early is never taken for whole.
func TestTruncated(t *testing.T) {
	for name, msg := range regular(t) {
		for n := 1; n < len(msg); n++ {
			if _, err := decode(msg[:n]); err != nil {
				require.False(t, isRegular(msg[:n]), "%s, %d bytes", name, n)
			}
		}
	}
}

// inTurn pushes two messages one after another, of which the next hop refuses one.
func inTurn(t testing.TB, a, b []byte) {
	t.Helper()
	s := newSame(func(set *lastvalue.Settings) { set.VanishedAfter = 0 }) // as in equivalence
	for i, msg := range [][]byte{a, b, a, a, b, a} {
		s.push(t, msg, i != 2)
		s.pass([]time.Duration{time.Second, 40 * time.Second, 10 * time.Second, time.Second, 2 * time.Hour, 0}[i])
	}
	s.end(t, a)
}

// FuzzEquivalence: of any bytes, a report that is reduced first gives what the decoded one
// gives, now and in the pushes after.
func FuzzEquivalence(f *testing.F) {
	var last []byte
	for _, set := range []map[string][]byte{regular(f), irregular()} {
		for _, msg := range set {
			if len(msg) < 4096 { // small inputs are mutated faster
				f.Add(msg, last)
				last = msg
			}
		}
	}
	f.Fuzz(func(t *testing.T, a, b []byte) { inTurn(t, a, b) })
}

// An empty resource does not make the node's series count as reported before.
func TestAnEmptyResourceIsNoReport(t *testing.T) {
	s := newSame(collecting)
	s.push(t, encode(t, nodeReport()), true)
	s.pass(time.Second)
	empty := nodeReport()
	empty.ResourceMetrics().At(0).ScopeMetrics().RemoveIf(func(pmetric.ScopeMetrics) bool { return true })
	s.push(t, encode(t, empty), true)
	s.flush(t)
}

func BenchmarkReduce(b *testing.B) {
	md := nodeReport()
	msg := encode(b, md)
	run := func(b *testing.B, msgs [][]byte) {
		d := newDoor()
		d.take(b, msgs[len(msgs)-1], true)
		buffer := make([]byte, 0, 2*len(msg))
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			buffer = append(buffer[:0], msgs[i%len(msgs)]...)
			if !d.Reduce(anybody, buffer) {
				b.Fatal("not regular")
			}
			i++
		}
	}
	b.Run("unchanged", func(b *testing.B) { run(b, [][]byte{msg}) })
	for _, every := range []int{10, 1} {
		i := 0
		for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
			for _, dp := range m.Gauge().DataPoints().All() {
				if i++; i%every == 0 {
					dp.SetDoubleValue(dp.DoubleValue() + 100)
				}
			}
		}
		changed := encode(b, md)
		b.Run(fmt.Sprintf("one_in_%d_changed", every), func(b *testing.B) { run(b, [][]byte{msg, changed}) })
	}
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := decode(msg); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func anybody(pcommon.Map) bool { return true }
