// SPDX-License-Identifier: Apache-2.0

package clientidentity

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"

	"github.com/gpu-collector/gpu-collector/internal/wire"
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
		"a cluster":           {Rule{Cluster: "tenant"}, auth{"tenant": "lab"}, Identity{"lab", Any}, nil},
		"a slash in a name":   {Rule{Cluster: "tenant"}, auth{"tenant": "eu/lab"}, Identity{"eu/lab", Any}, nil},
		"both":                {Rule{Cluster: "tenant", Node: "host"}, auth{"tenant": "lab", "host": "n7"}, Identity{"lab", "n7"}, nil},
		"both in one":         {Rule{Cluster: "username", Node: "username"}, auth{"username": "lab/n7"}, Identity{"lab", "n7"}, nil},
		"a tier of a cluster": {Rule{Cluster: "username", Node: "username"}, auth{"username": "lab/*"}, Identity{"lab", Any}, nil},
		"a tier":              {Rule{Cluster: "username", Node: "username"}, auth{"username": "*/*"}, Identity{Any, Any}, nil},
		"nobody":              {Rule{Cluster: "tenant"}, nil, Identity{}, ErrNobody},
		"another attribute":   {Rule{Cluster: "tenant"}, auth{"username": "lab"}, Identity{}, ErrNoCluster},
		"no text":             {Rule{Cluster: "tenant"}, auth{"tenant": 7}, Identity{}, ErrNoCluster},
		"an empty cluster":    {Rule{Cluster: "username", Node: "username"}, auth{"username": "/n7"}, Identity{}, ErrNoCluster},
		"a long cluster":      {Rule{Cluster: "tenant"}, auth{"tenant": long}, Identity{}, ErrNoCluster},
		"no node":             {Rule{Cluster: "username", Node: "username"}, auth{"username": "lab"}, Identity{}, ErrNoNode},
		"another's node":      {Rule{Cluster: "tenant", Node: "host"}, auth{"tenant": "lab"}, Identity{}, ErrNoNode},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := tc.rule.Of(client.NewContext(t.Context(), client.Info{Auth: tc.auth}))
			require.ErrorIs(t, err, tc.err)
			assert.Equal(t, tc.want, id)
		})
	}
}

func TestClaimsCountForTiersOnly(t *testing.T) {
	own := Identity{"lab", "n7"}
	caller, invalid := own.Caller("victim")
	assert.Equal(t, wire.Caller{Cluster: "lab", Authenticated: true}, caller)
	assert.False(t, invalid)
	assert.Equal(t, "n7", own.NodeOr("victim"))
	tier, err := Rule{}.Of(t.Context())
	require.NoError(t, err)
	caller, _ = tier.Caller("claimed")
	assert.Equal(t, wire.Caller{Cluster: "claimed"}, caller)
	assert.Empty(t, tier.NodeOr(""))
	caller, invalid = tier.Caller("a\nb")
	assert.Equal(t, wire.Caller{}, caller)
	assert.True(t, invalid)
	fixed, err := Rule{Everybody: own}.Of(t.Context())
	require.NoError(t, err)
	assert.Equal(t, own, fixed)
}
