// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"encoding/json"
	"math"
	"net/http"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// Numbers that JSON cannot say are left out of each answer, and end none.
func TestEachRouteSurvivesWhatJSONCannotSay(t *testing.T) {
	a := newAPI(nil)
	for _, node := range []string{"odd-a", "odd-b"} {
		u, ok := a.o.Store.Begin(fleetstate.Key{Cluster: "c", Node: node}, a.o.Now())
		require.True(t, ok)
		u.SetGroup("g")
		// Each node's power is finite, and that of both is not.
		u.SetGPU(u.GPU("GPU-"+node), reading.Power, 1.7e308)
		u.SetSignal(nodesignal.Power, 1)
		u.Commit(a.o.Now())
	}
	inf := math.Inf(1)
	a.o.Store.PutEpisode(&fleetstate.Episode{ID: "e", Cluster: "c", Node: "odd-a", Since: a.o.Now(), Gap: &inf, Evidence: []fleetstate.Evidence{{Fact: "hot", Value: &inf}}})
	srv := serve(t, a)
	for path, want := range map[string]string{
		"/api/v1/stats/summary": `"nodes":2`, "/api/v1/nodes": `"odd-a"`, "/api/v1/nodes/odd-a": `"odd-a"`, "/api/v1/gpus": "GPU-odd-b",
		"/api/v1/episodes": `"fact":"hot"`, "/api/v1/groups": `"groups"`,
	} {
		resp, err := http.Get(srv.URL + path)
		require.NoError(t, err, path)
		var text json.RawMessage
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&text), path)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, http.StatusOK, resp.StatusCode, path)
		assert.Contains(t, string(text), want, path)
	}
	w := startWatch(t, srv, "")
	var snapshot struct {
		Nodes []Node `json:"nodes"`
	}
	w.next("snapshot", &snapshot)
	assert.Len(t, snapshot.Nodes, 2)
	var episodes EpisodeList
	w.next("episodes", &episodes)
	require.Len(t, episodes.Episodes, 1)
	assert.Nil(t, episodes.Episodes[0].Gap)
}

// JSON says the same on either way.
func TestSayableIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{math.Inf(1), math.Inf(-1), math.NaN()})).Draw(t, "x")
		in := NodePage{Nodes: []Node{{Node: rapid.String().Draw(t, "node"), Usage: &x, Signals: []Signal{{Signal: "power", Value: x}}}}}
		text, err := marshal(in)
		require.NoError(t, err)
		plain, err := json.Marshal(in)
		if err == nil {
			require.JSONEq(t, string(plain), string(text))
			makeSayable(reflect.ValueOf(&in))
			same, err := json.Marshal(in)
			require.NoError(t, err)
			require.JSONEq(t, string(plain), string(same))
			return
		}
		require.True(t, math.IsInf(x, 0) || math.IsNaN(x), "the view's own number stays")
		require.NotContains(t, string(text), "usage")
		require.Contains(t, string(text), `"power"`)
	})
}
