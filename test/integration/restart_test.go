// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
)

// firstAnswer is the first that a server answers, asked all the time.
func firstAnswer(t *testing.T, url string, into any) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	eventually(t, url+" answers", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		require.NoError(t, err)
		resp, err := client.Do(req)
		if err != nil {
			return false
		}
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode, string(body))
		require.NoError(t, json.Unmarshal(body, into))
		return true
	})
}

// TestAStragglerOutlivesTheGateway: after a kill or a signal a gateway tells nothing new of a
// node that is slow all the time. It knows the threshold from its first answer on.
func TestAStragglerOutlivesTheGateway(t *testing.T) {
	t.Parallel()
	gp := newGatewayPorts(t)
	state := t.TempDir()
	gateway := start(t, options{configs: []string{"configs/gateway.yaml", gp.overlay(t), patient}, env: []string{"STATE_DIRECTORY=" + state}})
	ap := startAgent(t, gp, "last")
	f := &fleet{cluster: "last", hot: -1}
	f.run(t, ap.grpc)
	awaitWarm(t, gp, "last")
	f.set(-1, map[int]float64{5: 0.2})
	thresholds, view := "http://"+gp.api+"/api/v1/threshold?cluster_id=last", "http://"+gp.fleet+"/api/v1/episodes?cluster=last"
	onsets := func() int { return gateway.log.Count("STRAGGLER") }
	var page fleetapi.EpisodePage
	eventually(t, "the straggler is found", func() bool {
		getJSON(t, view, &page)
		return len(page.Episodes) == 1 && page.Episodes[0].Open
	})
	ep := page.Episodes[0]
	require.Equal(t, 1, onsets())
	told := time.Now()
	eventually(t, "the history has it", func() bool { return time.Since(told) > 3*time.Second })

	for restarts, end := range []func(){gateway.kill, gateway.stop, gateway.kill} {
		var before, first object
		getJSON(t, thresholds, &before)
		require.Greater(t, before["threshold"], 0.5)
		end()
		gateway.restart()
		firstAnswer(t, thresholds, &first)
		assert.InDelta(t, before["threshold"], first["threshold"], 0.01)
		assert.Equal(t, true, first["quorum_met"])
		// Whoever looks sees one episode, which is open.
		same := func() {
			require.Len(t, page.Episodes, 1)
			require.True(t, page.Episodes[0].Open)
			require.Equal(t, ep.ID, page.Episodes[0].ID)
			require.True(t, ep.Since.Equal(page.Episodes[0].Since))
		}
		firstAnswer(t, view, &page)
		same()
		back := time.Now()
		eventually(t, "it goes on, for twenty pushes", func() bool {
			getJSON(t, view, &page)
			same()
			var now object
			getJSON(t, thresholds, &now)
			require.Greater(t, now["threshold"], 0.5)
			return time.Since(back) > 4*time.Second && gateway.log.Count("n5 goes on after a restart") == restarts+1
		})
		assert.Equal(t, 1, onsets())
		assert.Zero(t, gateway.log.Count("no straggler any more"))
	}

	// Without its file it begins anew, says why, and keeps what it learns then.
	gateway.kill()
	file := filepath.Join(state, "processor_straggler__state")
	require.NoError(t, os.WriteFile(file, make([]byte, 16<<10), 0o600))
	gateway.restart()
	eventually(t, "that is told, and the node is found anew", func() bool {
		return onsets() == 2 && gateway.log.Count("is set aside, and a new one begins", file) == 1
	})
	gateway.stop()
	gateway.restart()
	eventually(t, "it goes on once more", func() bool { return gateway.log.Count("n5 goes on after a restart") == 4 })

	f.set(-1, nil)
	eventually(t, "its end", func() bool {
		getJSON(t, view+"&open=true", &page)
		return len(page.Episodes) == 0 && gateway.log.Count("no straggler any more") == 1
	})
}
