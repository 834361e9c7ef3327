// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/pkg/fleetclient"
)

// TestLoadsAllPages of a cluster with a comma in its name. The
// node that is looked at is gone.
func TestLoadsAllPages(t *testing.T) {
	pages := map[string]string{
		"":   `{"nodes":[{"cluster":"a,b","node":"n0"},{"cluster":"a,b","node":"n1"}],"more":true,"next":"n1"}`,
		"n1": `{"nodes":[{"cluster":"a,b","node":"n2"}]}`,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cluster := `a\,b` // a list; that of one node is none
		switch r.URL.Path {
		case "/api/v1/nodes":
			_, _ = w.Write([]byte(pages[r.URL.Query().Get("after")]))
		case "/api/v1/episodes":
			assert.Equal(t, `n\\9`, r.URL.Query().Get("node"))
			_, _ = w.Write([]byte(`{"episodes":[{"id":"e"}]}`))
		case `/api/v1/nodes/n\9`:
			cluster = "a,b"
			w.WriteHeader(http.StatusNotFound)
		default:
			_, _ = w.Write([]byte(`{}`))
		}
		assert.Equal(t, cluster, r.URL.Query().Get("cluster"), r.URL)
	}))
	defer srv.Close()
	client, err := fleetclient.NewClient(srv.URL, fleetclient.WithHTTPClient(srv.Client()))
	require.NoError(t, err)
	f, err := NewSource(client, []string{"a,b"}).Load(t.Context(), &Key{"a,b", `n\9`})
	require.NoError(t, err)
	var names []string
	for _, n := range f.Nodes {
		names = append(names, n.Node)
	}
	assert.Equal(t, []string{"n0", "n1", "n2"}, names)
	assert.Nil(t, f.Detail)
	assert.Equal(t, "e", f.Episodes[0].ID)
}
