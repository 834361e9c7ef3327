// SPDX-License-Identifier: Apache-2.0

package clientidentity

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/client"
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
		"both":                {Rule{"tenant", "host"}, auth{"tenant": "lab", "host": "n7"}, Identity{"lab", "n7"}, nil},
		"both in one":         {Rule{"username", "username"}, auth{"username": "lab/n7"}, Identity{"lab", "n7"}, nil},
		"a tier of a cluster": {Rule{"username", "username"}, auth{"username": "lab/*"}, Identity{"lab", Any}, nil},
		"a tier":              {Rule{"username", "username"}, auth{"username": "*/*"}, Identity{Any, Any}, nil},
		"nobody":              {Rule{Cluster: "tenant"}, nil, Identity{}, ErrNobody},
		"another attribute":   {Rule{Cluster: "tenant"}, auth{"username": "lab"}, Identity{}, ErrNoCluster},
		"no text":             {Rule{Cluster: "tenant"}, auth{"tenant": 7}, Identity{}, ErrNoCluster},
		"an empty cluster":    {Rule{"username", "username"}, auth{"username": "/n7"}, Identity{}, ErrNoCluster},
		"a long cluster":      {Rule{Cluster: "tenant"}, auth{"tenant": long}, Identity{}, ErrNoCluster},
		"no node":             {Rule{"username", "username"}, auth{"username": "lab"}, Identity{}, ErrNoNode},
		"another's node":      {Rule{"tenant", "host"}, auth{"tenant": "lab"}, Identity{}, ErrNoNode},
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
	assert.Equal(t, "lab", own.ClusterOr("victim"))
	assert.Equal(t, "n7", own.NodeOr("victim"))
	tier := Identity{Any, Any}
	assert.Equal(t, "claimed", tier.ClusterOr("claimed"))
	assert.Empty(t, tier.NodeOr(""))
	assert.False(t, Rule{}.On())
	assert.True(t, Rule{Cluster: "tenant"}.On())
}
