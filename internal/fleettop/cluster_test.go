// SPDX-License-Identifier: Apache-2.0

package fleettop

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
)

// TestAnUnknownClusterIsAnError asks the API itself.
func TestAnUnknownClusterIsAnError(t *testing.T) {
	store := fleetstate.New(fleetstate.DefaultConfig())
	u, ok := store.Begin(fleetstate.Key{Cluster: "east", Node: "n1"}, t0)
	require.True(t, ok)
	u.Commit(t0)
	srv := httptest.NewServer(fleetapi.New(fleetapi.Options{Store: store, Feed: fleetstate.NewFeed(store, 1)}))
	defer srv.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for _, once := range []string{"--once", "--once=false"} {
		cmd := Command()
		cmd.SetArgs([]string{"--endpoint", strings.TrimPrefix(srv.URL, "http://"), "--cluster", "west", once})
		cmd.SilenceErrors = true
		err := cmd.ExecuteContext(t.Context())
		require.Error(t, err)
		assert.Contains(t, err.Error(), "`--cluster`: no cluster \"west\" is known, known are east")
	}
}
