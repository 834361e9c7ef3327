// SPDX-License-Identifier: Apache-2.0

package nesting

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/protobuf/encoding/protowire"
)

// lists is an attribute's value of lists in lists.
func lists(t testing.TB, depth int, text string) []byte {
	t.Helper()
	md := pmetric.NewMetrics()
	v := md.ResourceMetrics().AppendEmpty().Resource().Attributes().PutEmpty("a")
	for i := range depth {
		if i%2 == 0 {
			v = v.SetEmptySlice().AppendEmpty()
		} else {
			v = v.SetEmptyMap().PutEmpty("k")
		}
	}
	v.SetStr(text)
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	return body
}

const room = 1 << 30

func check(body []byte) error {
	_, err := Check(body, Metrics, &Limits{Bytes: room})
	return err
}

func TestDepth(t *testing.T) {
	require.NoError(t, check(nil))
	require.NoError(t, check(lists(t, 38, "x")), "4 + 38 lists and maps in turn")
	require.ErrorIs(t, check(lists(t, 39, "x")), ErrTooDeep)
	require.ErrorIs(t, check(lists(t, 5000, "x")), ErrTooDeep)
	require.NoError(t, check([]byte(strings.Repeat("\x0a\x02", 1000))), "lengths that do not fit are no messages")
	require.NoError(t, check(bytes.Repeat([]byte{0x0a, 0}, 100_000)), "beside each other")
}

// TestNothingHidesWhatIsDeep: what precedes the deep part is skipped as a
// decoder skips it.
func TestNothingHidesWhatIsDeep(t *testing.T) {
	deep := lists(t, 100, "x")
	for name, before := range map[string][]byte{
		"group":       protowire.AppendTag(nil, 99, protowire.StartGroupType),
		"whole group": protowire.AppendTag(protowire.AppendTag(nil, 99, protowire.StartGroupType), 99, protowire.EndGroupType),
		"varint":      {0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
		"long tag":    {0x88, 0x80, 0x80, 0x80, 0x00, 0x01},
		"fixed":       {0x09, 2, 2, 2, 2, 2, 2, 2, 2, 0x0d, 2, 2, 2, 2},
		"text":        protowire.AppendString(protowire.AppendTag(nil, 3, protowire.BytesType), strings.Repeat("\x0a\x05z\xff", 99)),
		"empty":       {0x0a, 0},
		"bad inside":  {0x0a, 3, 0x0f, 0x0f, 0x0f},
	} {
		assert.ErrorIs(t, check(append(before, deep...)), ErrTooDeep, name)
	}
}

func TestHonestMessagesPass(t *testing.T) {
	md := pmetric.NewMetrics()
	for i := range 200 {
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", fmt.Sprint("node", i))
		var text strings.Builder
		for b := range 256 {
			text.WriteByte(byte(255 - b))
		}
		rm.Resource().Attributes().PutEmptyBytes("bytes").FromRaw([]byte(text.String()))
		rm.Resource().Attributes().PutStr("prose", strings.Repeat("Jazz zebras zip: \"2*2\" and \n\n\x12\x1a.", 50))
		m := rm.ScopeMetrics().AppendEmpty().Metrics().AppendEmpty()
		m.SetName("hw.temperature")
		p := m.SetEmptyGauge().DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.Timestamp(i))
		p.SetDoubleValue(float64(i) / 3)
		p.Attributes().PutStr("hw.id", fmt.Sprint("GPU-", i))
	}
	body, err := pmetricotlp.NewExportRequestFromMetrics(md).MarshalProto()
	require.NoError(t, err)
	require.NoError(t, check(body))
}

// FuzzDepth: no message is judged shallow when pdata found it deep.
func FuzzDepth(f *testing.F) {
	f.Add(lists(f, 3, "x"))
	f.Add(lists(f, 60, "x"))
	f.Add([]byte("\x0a\x03\x0f\x0f\x0f"))
	f.Fuzz(func(t *testing.T, body []byte) {
		whole := check(body)
		req := pmetricotlp.NewExportRequest()
		if req.UnmarshalProto(body) != nil {
			return
		}
		for _, rm := range req.Metrics().ResourceMetrics().All() {
			for _, v := range rm.Resource().Attributes().All() {
				if depthOf(v) > MaxDepth/2 {
					require.ErrorIs(t, whole, ErrTooDeep)
				}
			}
		}
	})
}

func depthOf(v pcommon.Value) (depth int) {
	switch v.Type() {
	case pcommon.ValueTypeSlice:
		for _, e := range v.Slice().All() {
			depth = max(depth, 1+depthOf(e))
		}
	case pcommon.ValueTypeMap:
		for _, e := range v.Map().All() {
			depth = max(depth, 1+depthOf(e))
		}
	}
	return depth
}

func BenchmarkCheck(b *testing.B) {
	body := bytes.Repeat(lists(b, 3, strings.Repeat("x", 100)), 1000)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if check(body) != nil {
			b.Fatal("deep")
		}
	}
}
