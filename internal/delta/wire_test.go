// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	"github.com/gpu-collector/gpu-collector/internal/delta/deadband"
	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
)

const testEpoch = 1_700_000_000 * time.Second

var testTime = time.Unix(0, int64(testEpoch))

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

// door is a way in with a table of its own.
type door struct {
	table *statetable.Table
	pd    Filter
	wire  *Wire
	// scans is how many reports were not decoded.
	scans int
	off   time.Duration // of its clock
}

func newDoor(edit ...func(*statetable.Settings)) *door {
	bands := []deadband.Rule{{Metric: "hw.temp*", Absolute: 1}}
	set := statetable.Settings{
		MaxNodes: 8, MaxSeries: 1000, TTL: time.Hour, VanishedAfter: time.Minute,
		ResyncInterval: 100 * time.Second, HeartbeatInterval: 15 * time.Second,
		Rand: func(n int64) int64 { return n / 3 },
	}
	for _, e := range edit {
		e(&set)
	}
	d := &door{table: statetable.New(set), wire: NewWire(deadband.NewCache(bands))}
	d.pd.Bands = deadband.NewCache(bands)
	return d
}

// push takes a message in; viaWire says whether its bytes are to be compared. It
// returns what goes on, nil when nothing reaches the pipeline, and ends the
// report as the next hop's answer says.
func (d *door) push(t testT, msg []byte, viaWire bool, now time.Duration, accepted bool) []byte {
	t.Helper()
	at := time.Unix(0, int64(testEpoch+now+d.off))
	end := (*statetable.Report).Abort
	if accepted {
		end = (*statetable.Report).Commit
	}
	defer d.wire.Reset()
	defer d.pd.Reset()
	if viaWire && d.wire.Read(msg, at) {
		_, err := decode(msg)
		require.NoError(t, err, "taken for regular")
		d.scans++
		if d.wire.Points() == 0 {
			return nil // the receiver answers it without calling the pipeline
		}
		d.wire.Report = d.table.Begin(now)
		out := d.wire.Filter(nil)
		end(d.wire.Report)
		md, err := decode(out)
		require.NoError(t, err)
		return encode(t, md)
	}
	md, err := decode(msg)
	if err != nil || md.DataPointCount() == 0 {
		return nil
	}
	d.pd.Report, d.pd.Now = d.table.Begin(now), at
	d.pd.Filter(md)
	end(d.pd.Report)
	return encode(t, md)
}

// known is the table's content.
func (d *door) known() map[string]string {
	out := map[string]string{}
	for n := range d.table.Nodes() {
		out[fmt.Sprintf("%x", n.Key)] = fmt.Sprint(n)
		for _, series := range d.table.Series(n.Key) {
			// By bits, for NaN is not equal to itself.
			out[fmt.Sprintf("%x %v %v", n.Key, series.Metric, series.Attrs)] += fmt.Sprintf("%x %d;", series.Value, series.Kind)
		}
	}
	return out
}

// same pushes through all doors: decoded, by bytes, and by both in turn into
// one table. The output must be the same.
type same struct {
	decoded, bytes, both *door
	turns                int
}

func newSame(edit ...func(*statetable.Settings)) *same {
	return &same{decoded: newDoor(edit...), bytes: newDoor(edit...), both: newDoor(edit...)}
}

func (s *same) push(t testT, msg []byte, now time.Duration, accepted bool) []byte {
	t.Helper()
	want := s.decoded.push(t, msg, false, now, accepted)
	require.Equal(t, want, s.bytes.push(t, msg, true, now, accepted), "by bytes")
	require.Equal(t, want, s.both.push(t, msg, s.turns%2 == 0, now, accepted), "by both in turn")
	require.Equal(t, s.decoded.table.Stats(), s.bytes.table.Stats())
	require.Equal(t, s.decoded.known(), s.bytes.known(), "what is known, by name")
	s.turns++
	return want
}

func TestUnchangedReportIsItsHeartbeat(t *testing.T) {
	s := newSame()
	msg := encode(t, nodeReport())
	first, err := decode(s.push(t, msg, 0, true))
	require.NoError(t, err)
	assert.Equal(t, 321, first.DataPointCount())

	again, err := decode(s.push(t, msg, 20*time.Second, true))
	require.NoError(t, err)
	assert.Equal(t, 1, again.DataPointCount())
	m := again.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0)
	assert.Equal(t, "gpu.node.heartbeat", m.Name())
	assert.EqualValues(t, testEpoch/time.Second+20, m.Gauge().DataPoints().At(0).IntValue())
	assert.Empty(t, s.push(t, msg, 25*time.Second, true), "no heartbeat is due either")
	assert.Equal(t, 3, s.bytes.scans)
}

func TestDeadband(t *testing.T) {
	s := newSame()
	value := func(v float64) []byte { return pointRequest(point0.fixed(4, math.Float64bits(v))) }
	s.push(t, value(50), 0, true)
	assert.Empty(t, s.push(t, value(50.75), time.Second, true), "within the band of 1")
	assert.NotEmpty(t, s.push(t, value(51.5), 2*time.Second, true))
}

// The reports that senders in fact write must be compared by bytes.
func TestRegularForms(t *testing.T) {
	for name, msg := range regular(t) {
		t.Run(name, func(t *testing.T) {
			assert.True(t, NewWire(nil).Read(msg, testTime))
			sequence(t, msg, msg, 0)
		})
	}
}

// Legal but irregular requests are left to pdata, and so are malformed ones.
func TestIrregularForms(t *testing.T) {
	for name, msg := range irregular(t) {
		t.Run(name, func(t *testing.T) {
			assert.False(t, NewWire(nil).Read(msg, testTime))
			sequence(t, msg, msg, 0)
		})
	}
}

// A message that ends early is never taken for whole.
func TestTruncated(t *testing.T) {
	for name, msg := range regular(t) {
		for n := 1; n < len(msg); n++ {
			_, err := decode(msg[:n])
			if NewWire(nil).Read(msg[:n], testTime) {
				require.NoError(t, err, "%s, %d bytes", name, n)
			}
		}
	}
}

// sequence pushes a, then a and b as the script's bits say: which of the two,
// whether the next hop accepts, how long after.
func sequence(t testing.TB, a, b []byte, script uint32) {
	t.Helper()
	s := newSame()
	var now time.Duration
	for step := range 8 {
		bits := script >> (4 * step)
		msg := a
		if bits&1 != 0 {
			msg = b
		}
		s.push(t, msg, now, bits&2 == 0)
		now += []time.Duration{time.Second, 10 * time.Second, 40 * time.Second, 2 * time.Hour}[bits>>2&3]
		s.decoded.table.Sweep(now)
		s.bytes.table.Sweep(now)
		s.both.table.Sweep(now)
	}
}

// FuzzEquivalence: for any bytes, and however the next hop answers, the bytes
// compared give what the decoded report gives, now and in the pushes after.
func FuzzEquivalence(f *testing.F) {
	var forms [][]byte
	for _, set := range []map[string][]byte{regular(f), irregular(f)} {
		for _, msg := range set {
			if len(msg) < 4096 { // small inputs are mutated faster
				forms = append(forms, msg)
			}
		}
	}
	for i, msg := range forms {
		f.Add(msg, forms[(i+1)%len(forms)], uint32(0x59c1_35a7))
		f.Add(msg, msg, uint32(0x2110_4101))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, script uint32) {
		sequence(t, a, b, script)
	})
}

func TestUnchangedReportDoesNotAllocate(t *testing.T) {
	d := newDoor()
	msg := encode(t, nodeReport())
	out := make([]byte, 0, len(msg)+1024)
	d.push(t, msg, true, 0, true)
	allocs := testing.AllocsPerRun(100, func() {
		if !d.wire.Read(msg, testTime) {
			t.Fatal("not regular")
		}
		d.wire.Report = d.table.Begin(1)
		out = d.wire.Filter(out[:0])
		d.wire.Report.Commit()
		d.wire.Reset()
	})
	if !raceEnabled {
		assert.Zero(t, allocs)
	}
	assert.LessOrEqual(t, len(out), 1024)
}

func BenchmarkWire(b *testing.B) {
	md := nodeReport()
	msg := encode(b, md)
	run := func(b *testing.B, msgs [][]byte) {
		d := newDoor()
		d.push(b, msgs[len(msgs)-1], true, 0, true)
		out := make([]byte, 0, 2*len(msg))
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if !d.wire.Read(msgs[i%len(msgs)], testTime) {
				b.Fatal("not regular")
			}
			d.wire.Report = d.table.Begin(0)
			out = d.wire.Filter(out[:0])
			d.wire.Report.Commit()
			d.wire.Reset()
			i++
		}
	}
	b.Run("unchanged", func(b *testing.B) { run(b, [][]byte{msg}) })
	b.Run("read_only", func(b *testing.B) {
		w := NewWire(nil)
		b.ReportAllocs()
		for b.Loop() {
			w.Read(msg, testTime)
		}
	})
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
