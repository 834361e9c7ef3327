// SPDX-License-Identifier: Apache-2.0

package clientidentity

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

// owned is Owns of decoded attributes.
func owned(id Identity, attrs pcommon.Map) bool {
	return id.Owns(func(key, text string) (all, same int) {
		for k, v := range attrs.All() {
			if k == key {
				all++
				if v.Type() == pcommon.ValueTypeStr && v.Str() == text {
					same++
				}
			}
		}
		return all, same
	})
}

// TestSettle has each resource as it comes and as it goes on. Owns says beforehand whether
// it stays as it is.
func TestSettle(t *testing.T) {
	type kv = map[string]any
	cluster, node, tier := Identity{"lab", Any}, Identity{"lab", "a"}, Identity{Any, Any}
	for name, tc := range map[string]struct {
		id      Identity
		in      kv
		want    kv
		foreign string
	}{
		"its own cluster":       {cluster, kv{"k8s.cluster.name": "lab", "host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, ""},
		"no cluster":            {cluster, kv{"host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, ""},
		"another cluster":       {cluster, kv{"k8s.cluster.name": "victim", "host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, "k8s.cluster.name"},
		"an empty cluster":      {cluster, kv{"k8s.cluster.name": ""}, kv{"k8s.cluster.name": "lab"}, "k8s.cluster.name"},
		"a tier":                {tier, kv{"k8s.cluster.name": "any", "host.name": "a"}, kv{"k8s.cluster.name": "any", "host.name": "a"}, ""},
		"nobody in particular":  {Identity{}, kv{"host.name": "a"}, kv{"host.name": "a"}, ""},
		"its own node":          {node, kv{"host.name": "a"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, ""},
		"no node":               {node, kv{}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, ""},
		"a machine's id only":   {node, kv{"host.id": "victim"}, kv{"k8s.cluster.name": "lab", "host.name": "a", "host.id": "victim"}, ""},
		"another host":          {node, kv{"host.name": "victim"}, kv{"k8s.cluster.name": "lab", "host.name": "a"}, "host.name"},
		"a pod on its node":     {node, kv{"k8s.node.name": "a", "host.name": "pod-1"}, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a"}, ""},
		"a pod on another node": {node, kv{"k8s.node.name": "victim", "host.name": "a"}, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a"}, "k8s.node.name"},
		"all as it should be":   {node, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a", "gpu.job.id": "llm"}, kv{"k8s.cluster.name": "lab", "k8s.node.name": "a", "host.name": "a", "gpu.job.id": "llm"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			attrs := pcommon.NewMap()
			require.NoError(t, attrs.FromRaw(tc.in))
			before := attrs.AsRaw()
			owns := owned(tc.id, attrs)
			foreign := tc.id.Settle(attrs)
			assert.Equal(t, tc.want, attrs.AsRaw())
			assert.Equal(t, owns, assert.ObjectsAreEqual(before, attrs.AsRaw()))
			assert.True(t, owned(tc.id, attrs), "settled")
			if assert.Equal(t, tc.foreign != "", foreign != nil) && foreign != nil {
				assert.Equal(t, tc.foreign, foreign.Attribute)
			}
		})
	}
}

// TestSameNameTwice: some readers take the first attribute of a name, others the last. An
// own name as a number is no foreign claim, and goes on as every reader takes it.
func TestSameNameTwice(t *testing.T) {
	for name, tt := range map[string]struct{ own, values string }{
		"own first":    {"lab", `{"key":"k8s.cluster.name","value":{"stringValue":"lab"}},{"key":"k8s.cluster.name","value":{"stringValue":"victim"}}`},
		"own last":     {"lab", `{"key":"k8s.cluster.name","value":{"stringValue":"victim"}},{"key":"k8s.cluster.name","value":{"stringValue":"lab"}}`},
		"a number":     {"lab", `{"key":"k8s.cluster.name","value":{"intValue":"7"}}`},
		"an own one":   {"7", `{"key":"k8s.cluster.name","value":{"intValue":"7"}}`},
		"an own float": {"7", `{"key":"k8s.cluster.name","value":{"doubleValue":7}}`},
	} {
		t.Run(name, func(t *testing.T) {
			md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics([]byte(`{"resourceMetrics":[{"resource":{"attributes":[` + tt.values + `]}}]}`))
			require.NoError(t, err)
			attrs, id := md.ResourceMetrics().At(0).Resource().Attributes(), Identity{Cluster: tt.own}
			assert.False(t, owned(id, attrs))
			assert.Equal(t, tt.own == "lab", id.Settle(attrs) != nil)
			assert.Equal(t, map[string]any{"k8s.cluster.name": tt.own}, attrs.AsRaw())
			assert.Equal(t, 1, attrs.Len())
		})
	}
}
