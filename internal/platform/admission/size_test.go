// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

type exportRequest interface {
	UnmarshalProto(msg []byte) error
	UnmarshalJSON(msg []byte) error
	MarshalProto() ([]byte, error)
	MarshalJSON() ([]byte, error)
}

func newRequest(s *Message) exportRequest {
	switch s {
	case Metrics:
		return pmetricotlp.NewExportRequest()
	case Logs:
		return plogotlp.NewExportRequest()
	}
	return ptraceotlp.NewExportRequest()
}

// noise is what the test itself keeps beside a decoded form.
const noise = 2048

// allocated is all that decoding a message allocates, garbage included.
func allocated(decode func() exportRequest) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decode()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// held is what the decoded form of a message takes.
func held(decode func() exportRequest) int {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // what lay in a sync.Pool
	runtime.ReadMemStats(&before)
	r := decode()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(r)
	runtime.KeepAlive(decode) // and its message
	return int(after.HeapAlloc) - int(before.HeapAlloc)
}

// over is how much more a decoded form takes than was counted. Others allocate at the same
// time, hence it is measured again before it counts.
func over(counted int, decode func() exportRequest) (more int) {
	counted += noise
	if more = allocated(decode) - counted; more <= 0 {
		return 0
	}
	for range 3 {
		if more = held(decode) - counted; more <= 0 {
			return 0
		}
	}
	return more
}

func decoding(s *Message, msg []byte, inJSON bool) func() exportRequest {
	return func() exportRequest {
		r := newRequest(s)
		unmarshal := r.UnmarshalProto
		if inJSON {
			unmarshal = r.UnmarshalJSON
		}
		_ = unmarshal(msg)
		return r
	}
}

// path is the way from a request to a message of the table.
type path struct {
	of      *Message
	signal  *Message
	numbers []protowire.Number
}

// to is the path on to the message in a field.
func (p path) to(i int) path {
	return path{p.of[i].of, p.signal, append(slices.Clone(p.numbers), numberAt(i))}
}

func (p path) wrap(msg []byte) []byte {
	for _, number := range slices.Backward(p.numbers) {
		msg = protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), msg)
	}
	return msg
}

// takes reports whether pdata takes these fields of the message.
func (p path) takes(msg []byte) bool { return newRequest(p.signal).UnmarshalProto(p.wrap(msg)) == nil }

// paths leads to each message of the table once.
func paths() (all []path) {
	var visit func(path)
	visit = func(p path) {
		if slices.ContainsFunc(all, func(known path) bool { return known.of == p.of }) {
			return
		}
		all = append(all, p)
		for i, f := range p.of {
			if f.of != nil {
				visit(p.to(i))
			}
		}
	}
	for _, s := range []*Message{Metrics, Logs, Traces} {
		visit(path{of: s, signal: s})
	}
	return all
}

func numberAt(i int) protowire.Number {
	if i == maxField {
		return deprecated
	}
	return protowire.Number(i)
}

// value is a field with that value, or with so much of it as its type takes.
func value(number protowire.Number, as protowire.Type, payload string) []byte {
	b := protowire.AppendTag(nil, number, as)
	switch as {
	case protowire.VarintType:
		return protowire.AppendVarint(b, 1)
	case protowire.Fixed64Type:
		return protowire.AppendFixed64(b, 1)
	case protowire.Fixed32Type:
		return protowire.AppendFixed32(b, 1)
	}
	return protowire.AppendString(b, payload)
}

var wireTypes = []protowire.Type{protowire.VarintType, protowire.Fixed64Type, protowire.BytesType, protowire.Fixed32Type}

// TestCosts: each cost of the table is what an element takes at the moment when its list
// grows: itself, the old list and the new one. It is the most for lists of any length.
func TestCosts(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // collecting garbage allocates, too
	for _, p := range paths() {
		for i, f := range p.of {
			if f.cost == 0 {
				continue
			}
			var one []byte
			for _, as := range wireTypes {
				one = value(numberAt(i), as, "")
				if p.takes(one) {
					break
				}
			}
			runtime.GC()
			var took []int
			for n := range 311 {
				decode := decoding(p.signal, p.wrap(slices.Repeat(one, n)), false)
				took = append(took, min(allocated(decode), allocated(decode), allocated(decode)))
			}
			var each []int
			for n := range took[1:] {
				each = append(each, took[n+1]-took[n])
			}
			itself := slices.Sorted(slices.Values(each))[len(each)/2]
			most, old := itself, 0
			for n, one := range each {
				if list := one - itself; list > 0 {
					most = max(most, itself+(old+list+n)/(n+1))
					old = list
				}
			}
			assert.GreaterOrEqual(t, f.cost, most, "field %d of message %v", i, p.numbers)
			assert.LessOrEqual(t, f.cost, most+number, "field %d of message %v", i, p.numbers)
		}
	}
}

// TestNothingIsMissing in the table: whatever fields a message has, the form that pdata
// makes of them takes no more than was counted.
func TestNothingIsMissing(t *testing.T) {
	for _, p := range paths() {
		for number := protowire.Number(1); number <= deprecated; number++ {
			if number == 40 {
				number = deprecated
			}
			for _, as := range wireTypes {
				// Text, a message with an unknown field, or packed numbers of either kind.
				for _, payload := range []string{"", strings.Repeat("\x79abcdefg\x01", 8), strings.Repeat("a", 16)} {
					msg := p.wrap(slices.Repeat(value(number, as, payload), 300))
					if newRequest(p.signal).UnmarshalProto(msg) == nil {
						counted, err := Decoded(p.signal, msg, false)
						require.NoError(t, err)
						require.Zero(t, over(counted, decoding(p.signal, msg, false)), "field %d, type %d, of message %v", number, as, p.numbers)
					}
				}
			}
		}
	}
}

func TestTextBytes(t *testing.T) {
	for n := 0; n < 1<<20; n += 1 + n/256 {
		if took := cap(append([]byte(nil), make([]byte, n)...)); took > textBytes(n) {
			t.Fatalf("%d bytes take %d", n, took)
		}
	}
}

// TestJSONMadeToTakeMuch: also what pdata's parser makes of a message before it refuses it.
func TestJSONMadeToTakeMuch(t *testing.T) {
	spans := func(list string) string {
		return `{"resourceSpans":[{"scopeSpans":[{"spans":[` + list + `]}]}]}`
	}
	for name, msg := range map[string]string{
		"empty spans":          spans(strings.Repeat(`{},`, 10_000) + `{}`),
		"numbers for spans":    spans(strings.Repeat(`1,`, 10_000) + `1`),
		"lists for spans":      spans(strings.Repeat(`[],`, 10_000) + `[]`),
		"commas in a text":     spans(`{"attributes":[{"value":{"boolValue":"` + strings.Repeat(`,`, 10_000) + `"}}]}`),
		"brackets in a text":   spans(`{"attributes":[{"value":{"boolValue":"` + strings.Repeat(`[`, 10_000) + `"}}]}`),
		"spans in a text":      spans(`{"status":1,"x` + strings.Repeat(`,x`, 10_000) + `":1}`),
		"numbers of other use": spans(`{"links":[{"flags":{"bucketCounts":[` + strings.Repeat(`1,`, 10_000) + `1]}}]}`),
		"a text with escapes":  spans(`{"name":"\n` + strings.Repeat(`x`, 100_000) + `"}`),
		"small texts":          spans(`{"attributes":[` + strings.Repeat(`{"key":"ab","value":{"stringValue":"cd"}},`, 10_000) + `{}]}`),
		"empty exemplars": `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"gauge":{"dataPoints":[{"exemplars":[` +
			strings.Repeat(`{},`, 302) + `{}]}]}}]}]}]}`,
	} {
		for _, s := range []*Message{Metrics, Traces} {
			counted, err := Decoded(Metrics, []byte(msg), true)
			require.NoError(t, err, name)
			assert.Zero(t, over(counted, decoding(s, []byte(msg), true)), name)
		}
	}
}

func TestDepth(t *testing.T) {
	nested := func(levels int) []byte {
		var msg []byte
		for range levels / 2 { // a list in a value
			msg = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), msg)
			msg = protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), msg)
		}
		return path{signal: Logs, numbers: []protowire.Number{1, 2, 2, 5}}.wrap(msg) // 5 levels, the value's own included
	}
	_, err := Decoded(Logs, nested(94), false)
	require.NoError(t, err)
	_, err = Decoded(Logs, nested(96), false)
	require.ErrorIs(t, err, ErrTooDeep)
	list := func(levels int) []byte {
		return []byte(strings.Repeat("[", levels) + `"\"[["` + strings.Repeat("]", levels))
	}
	_, err = Decoded(Metrics, list(100), true)
	require.NoError(t, err)
	_, err = Decoded(Metrics, list(101), true)
	require.ErrorIs(t, err, ErrTooDeep)
	for _, bad := range []string{"", "{", `{"a":1}}`, `{"a",{}}`, "{} {}"} {
		_, err = Decoded(Metrics, []byte(bad), true)
		require.ErrorIs(t, err, ErrMalformed, bad)
	}
}

// report is what a node with eight GPUs pushes.
func report(tb testing.TB) []byte {
	f, err := fleetpush.New(fleetpush.Config{Nodes: 1, GPUs: 8, Clusters: 1, Seed: 1, Raw: true})
	require.NoError(tb, err)
	msg, err := f.Next(0, 1, time.Unix(1_800_000_000, 0), nil)
	require.NoError(tb, err)
	return msg
}

// TestARealReport reserves not much more than it takes.
func TestARealReport(t *testing.T) {
	msg := report(t)
	counted, err := Decoded(Metrics, msg, false)
	require.NoError(t, err)
	took := held(decoding(Metrics, msg, false))
	r := pmetricotlp.NewExportRequest()
	require.NoError(t, r.UnmarshalProto(msg))
	asJSON, err := r.MarshalJSON()
	require.NoError(t, err)
	countedJSON, err := Decoded(Metrics, asJSON, true)
	require.NoError(t, err)
	t.Logf("%d points in %d bytes take %d, counted as %d; in %d bytes of JSON counted as %d",
		r.Metrics().DataPointCount(), len(msg), took, counted, len(asJSON), countedJSON)
	assert.GreaterOrEqual(t, counted, took)
	assert.Less(t, counted, 2*took)
	assert.Less(t, countedJSON, 10*took, "every comma may be a span")
}

// FuzzDecoded: no message takes more than was counted.
func FuzzDecoded(f *testing.F) {
	f.Add(uint8(0), report(f))
	f.Add(uint8(1), []byte("\x0a\x0a\x12\x08\x12\x06\x2a\x04\x2a\x02\x0a\x00"))
	f.Add(uint8(2), []byte("\x0a\x04\x12\x02\x12\x00"))
	f.Add(uint8(2), []byte("\x8a\x80\x00\x04\x12\x02\x12\x00")) // a long form of a number
	f.Fuzz(func(t *testing.T, signal uint8, msg []byte) {
		_, _ = Decoded(Metrics, msg, true)
		s := []*Message{Metrics, Logs, Traces}[signal%3]
		if counted, err := Decoded(s, msg, false); err == nil {
			require.Zero(t, over(counted, decoding(s, msg, false)))
		}
	})
}

func BenchmarkDecoded(b *testing.B) {
	msg := report(b)
	b.SetBytes(int64(len(msg)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decoded(Metrics, msg, false); err != nil {
			b.Fatal(err)
		}
	}
}
