// SPDX-License-Identifier: Apache-2.0

package clientidentity

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/internal/platform/pushheaders"
)

type auth map[string]any

func (a auth) GetAttribute(name string) any { return a[name] }
func (auth) GetAttributeNames() []string    { return nil }

func TestOf(t *testing.T) {
	long := strings.Repeat("x", 300)
	for name, tc := range map[string]struct {
		rule Rule
		auth client.AuthData
		want Identity
		err  error
	}{
		"a cluster":           {Rule{ClusterAuthAttribute: "tenant"}, auth{"tenant": "lab"}, Identity{"lab", ""}, nil},
		"a slash in a name":   {Rule{ClusterAuthAttribute: "tenant"}, auth{"tenant": "eu/lab"}, Identity{"eu/lab", ""}, nil},
		"both":                {Rule{ClusterAuthAttribute: "tenant", NodeAuthAttribute: "host"}, auth{"tenant": "lab", "host": "n7"}, Identity{"lab", "n7"}, nil},
		"both in one":         {Rule{ClusterAuthAttribute: "username", NodeAuthAttribute: "username"}, auth{"username": "lab/n7"}, Identity{"lab", "n7"}, nil},
		"a tier of a cluster": {Rule{ClusterAuthAttribute: "username", NodeAuthAttribute: "username"}, auth{"username": "lab/*"}, Identity{"lab", ""}, nil},
		"a tier":              {Rule{ClusterAuthAttribute: "username", NodeAuthAttribute: "username"}, auth{"username": "*/*"}, Identity{}, nil},
		"nobody":              {Rule{ClusterAuthAttribute: "tenant"}, nil, Identity{}, ErrNobody},
		"another attribute":   {Rule{ClusterAuthAttribute: "tenant"}, auth{"username": "lab"}, Identity{}, ErrNoCluster},
		"no text":             {Rule{ClusterAuthAttribute: "tenant"}, auth{"tenant": 7}, Identity{}, ErrNoCluster},
		"an empty cluster":    {Rule{ClusterAuthAttribute: "username", NodeAuthAttribute: "username"}, auth{"username": "/n7"}, Identity{}, ErrNoCluster},
		"a long cluster":      {Rule{ClusterAuthAttribute: "tenant"}, auth{"tenant": long}, Identity{}, ErrNoCluster},
		"no node":             {Rule{ClusterAuthAttribute: "username", NodeAuthAttribute: "username"}, auth{"username": "lab"}, Identity{}, ErrNoNode},
		"another's node":      {Rule{ClusterAuthAttribute: "tenant", NodeAuthAttribute: "host"}, auth{"tenant": "lab"}, Identity{}, ErrNoNode},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := tc.rule.Of(client.NewContext(t.Context(), client.Info{Auth: tc.auth}))
			require.ErrorIs(t, err, tc.err)
			assert.Equal(t, tc.want, id)
		})
	}
}

func TestClaimsCountForTiersOnly(t *testing.T) {
	caller, invalid := Identity{"lab", "n7"}.Caller("victim")
	assert.Equal(t, pushheaders.Caller{Cluster: "lab", Authenticated: true}, caller)
	assert.False(t, invalid)
	tier, err := (&Rule{}).Of(t.Context())
	require.NoError(t, err)
	caller, _ = tier.Caller("claimed")
	assert.Equal(t, pushheaders.Caller{Cluster: "claimed"}, caller)
	caller, invalid = tier.Caller("a\nb")
	assert.Equal(t, pushheaders.Caller{}, caller)
	assert.True(t, invalid)
}

// TestSettle has each resource as it comes and as it goes on. Owns reports beforehand whether
// it stays as it is.
func TestSettle(t *testing.T) {
	type kv = map[string]any
	cluster, node, tier := Identity{"lab", ""}, Identity{"lab", "a"}, Identity{}
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
			owns := tc.id.Owns(attrs)
			foreign := tc.id.Settle(attrs)
			assert.Equal(t, tc.want, attrs.AsRaw())
			assert.Equal(t, owns, assert.ObjectsAreEqual(before, attrs.AsRaw()))
			assert.True(t, tc.id.Owns(attrs), "settled")
			if tc.foreign == "" {
				require.NoError(t, foreign)
			} else {
				require.ErrorIs(t, foreign, ErrForeign)
				require.ErrorContains(t, foreign, "`"+tc.foreign+"` is ")
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
			assert.False(t, id.Owns(attrs))
			assert.Equal(t, tt.own == "lab", id.Settle(attrs) != nil)
			assert.Equal(t, map[string]any{"k8s.cluster.name": tt.own}, attrs.AsRaw())
			assert.Equal(t, 1, attrs.Len())
		})
	}
}
