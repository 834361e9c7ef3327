// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/delta/statetable"
	ids "github.com/gpu-collector/gpu-collector/internal/reading/identity"
	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
)

// anyAttributes draws a small attribute set, so that equal ones are common.
func anyAttributes(t *rapid.T, depth int) map[string]any {
	out := map[string]any{}
	for _, k := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "a", "b", "ab"}), 0, 3, rapid.ID).Draw(t, "keys") {
		out[k] = anyValue(t, depth)
	}
	return out
}

func anyValue(t *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 6+depth).Draw(t, "kind"); kind {
	case 0:
		return rapid.SampledFrom([]string{"", "a", "1", "true"}).Draw(t, "string")
	case 1:
		return rapid.Int64Range(0, 1).Draw(t, "int")
	case 2:
		return float64(rapid.Int64Range(0, 1).Draw(t, "double"))
	case 3:
		return rapid.Bool().Draw(t, "bool")
	case 4:
		return []byte(rapid.SampledFrom([]string{"", "a", "1"}).Draw(t, "bytes"))
	case 5, 6:
		return nil
	case 7:
		return anyAttributes(t, depth-1)
	default:
		values := make([]any, rapid.IntRange(0, 2).Draw(t, "length"))
		for i := range values {
			values[i] = anyValue(t, depth-1)
		}
		return values
	}
}

// Two attribute sets have one identity exactly when they are equal, in whatever
// order they come.
func TestIdentityIsEquality(t *testing.T) {
	var id identity
	rapid.Check(t, func(t *rapid.T) {
		a, b := pcommon.NewMap(), pcommon.NewMap()
		require.NoError(t, a.FromRaw(anyAttributes(t, 2)))
		require.NoError(t, b.FromRaw(anyAttributes(t, 2)))
		assert.Equal(t, a.Equal(b), id.node(a) == id.node(b), "%v %v", a.AsRaw(), b.AsRaw())
		assert.Equal(t, a.Equal(b), seriesKey(1, a) == seriesKey(1, b), "%v %v", a.AsRaw(), b.AsRaw())

		reversed := pcommon.NewMap()
		keys := make([]string, 0, a.Len())
		for k := range a.All() {
			keys = append(keys, k)
		}
		for i := range keys {
			k := keys[len(keys)-1-i]
			v, _ := a.Get(k)
			v.CopyTo(reversed.PutEmpty(k))
		}
		assert.Equal(t, id.node(a), id.node(reversed))
		assert.Equal(t, seriesKey(1, a), seriesKey(1, reversed))
		assert.NotEqual(t, seriesKey(1, a), seriesKey(2, a))
	})
}

func TestIdentityKeepsNoReport(t *testing.T) {
	var id identity
	attrs := pcommon.NewMap()
	attrs.PutStr("host.name", "n")
	attrs.PutEmptyMap("m").PutStr("k", "v")
	id.node(attrs)
	for _, a := range id.keys[:cap(id.keys)] {
		assert.Zero(t, a)
	}
	for i := range 300 {
		attrs.PutInt(string(rune('a'+i)), 1)
	}
	id.node(attrs)
	assert.Zero(t, cap(id.keys), "the room that one odd resource took is given back")
}

// The table, the buffer and the receiver's bytes say of a resource what the readers say.
func TestAResourceIsWhoTheReadersSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		attrs := pcommon.NewMap()
		for _, key := range []string{"k8s.node.name", "host.name", "host.id", "k8s.cluster.name", "ingero.node.id"} {
			if rapid.Bool().Draw(t, key) {
				require.NoError(t, attrs.PutEmpty(key).FromRaw(anyValue(t, 1)))
			}
		}
		var want ids.Names
		metricreading.Identify(&want, attrs)
		var d describer
		d.attributes(attrs)
		got := statetable.Identify(d.attrs)
		assert.Equal(t, want.Node(), got.Node())
		assert.Equal(t, want.Cluster("", ""), got.Cluster("", ""))
		assert.Equal(t, clusterOf(attrs), statetable.HashCluster(&got))
		if want.Node() != "" {
			assert.True(t, isNode(attrs))
		}
		md := pmetric.NewMetrics()
		attrs.CopyTo(md.ResourceMetrics().AppendEmpty().Resource().Attributes())
		if w := NewWire(nil); w.Read(encode(t, md), testTime) {
			assert.Equal(t, isNode(attrs), w.resources[0].isNode)
		}
	})
}

// A sender who can compute a hash can make up two series with the same key: the hash of a
// list does not begin with its length alone.
func TestListsHaveNoKnownHash(t *testing.T) {
	assert.NotEqual(t, typedHash(pcommon.ValueTypeSlice, 0), valueHash(pcommon.NewValueSlice()))
	assert.NotEqual(t, typedHash(pcommon.ValueTypeBytes, 0), valueHash(pcommon.NewValueBytes()))
}
