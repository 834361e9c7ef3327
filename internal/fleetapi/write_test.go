// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
)

// writable is an API that knows two people by their tokens, and a board in two clusters.
func writable(writers ...string) *API {
	a := newAPI(func(o *Options) {
		o.Ledger, o.People = ledger.New(ledger.DefaultConfig()), people.New(0.5)
		o.Writers = writers
		o.Auth = &Auth{Challenge: "Bearer", Authenticate: func(ctx context.Context, headers map[string][]string) (context.Context, error) {
			switch v := headers["Authorization"]; {
			case len(v) == 1 && (v[0] == "ann" || v[0] == "bob"):
				return context.WithValue(ctx, userKey{}, v[0]), nil
			default:
				return ctx, errors.New("no such token")
			}
		}}
		o.Reader = func(ctx context.Context) string {
			name, _ := ctx.Value(userKey{}).(string)
			return "username " + name
		}
	})
	fleet(a)
	for _, s := range []ledger.Sighting{
		{Cluster: "c1", Node: "n1", UUID: "GPU-a", Slot: "0:1", Facts: ledger.Facts{Serial: "1650"}},
		{Cluster: "c1", Node: "n1", UUID: "GPU-b", Slot: "0:2", Facts: ledger.Facts{Serial: "1650"}},
		{Cluster: "c2", Node: "n9", UUID: "GPU-a"},
	} {
		a.o.Ledger.See(&s, t0)
	}
	return a
}

func send(a *API, method, path, who, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://gateway"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if who != "" {
		r.Header["Authorization"] = []string{who}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	return w
}

func until(d time.Duration) string { return t0.Add(d).Format(time.RFC3339) }

func silenceOf(what string) string {
	return `{"cluster":"c1",` + what + `,"reason":"psu swap","until":"` + until(time.Hour) + `"}`
}

func TestWritesNeedAPerson(t *testing.T) {
	const node = `"node":"n1"`
	for name, tc := range map[string]struct {
		api     *API
		who     string
		headers []string
		status  int
		text    string
	}{
		"no authenticator":       {func() *API { a := newAPI(nil); fleet(a); return a }(), "", nil, http.StatusForbidden, "set `http::auth` of the fleet_view extension"},
		"nobody":                 {writable(), "", nil, http.StatusUnauthorized, "no such token"},
		"somebody else":          {writable("bob"), "ann", nil, http.StatusForbidden, "ann may read, but not write: `ledger::writers`"},
		"a page of another site": {writable(), "ann", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden, "another site"},
		"a form":                 {writable(), "ann", []string{"Content-Type", "text/plain"}, http.StatusUnsupportedMediaType, "must be JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			w := send(tc.api, http.MethodPost, silencesPath, tc.who, silenceOf(node), tc.headers...)
			assert.Equal(t, tc.status, w.Code)
			assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
			assert.Contains(t, w.Body.String(), tc.text)
			assert.Empty(t, tc.api.o.People.Silences(nil, false, t0))
			log := tc.api.o.People.Audit(nil)
			require.Len(t, log, 1, "the refusal is in the audit")
			assert.Equal(t, []string{people.Refused, people.WordSilence, "POST " + silencesPath}, []string{log[0].Outcome, log[0].Word, log[0].Target})
		})
	}
	assert.Equal(t, http.StatusCreated, send(writable("ann"), http.MethodPost, silencesPath, "ann", silenceOf(node)).Code)
}

func TestASilenceHidesNothing(t *testing.T) {
	a := writable()
	w := send(a, http.MethodPost, silencesPath, "ann", silenceOf(`"node":"n1"`))
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	var s people.Silence
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
	assert.Equal(t, "ann", s.By)

	get := func(path string) string { return send(a, http.MethodGet, path, "bob", "").Body.String() }
	node := get("/api/v1/nodes/n1?cluster=c1")
	assert.Contains(t, node, `"silenced":{"id":"`+s.ID+`"`)
	assert.Contains(t, node, `"straggler":`, "the verdict stands")
	assert.NotContains(t, get("/api/v1/nodes/n2?cluster=c1"), `"silenced"`)
	assert.Contains(t, get(silencesPath+"?active=true&cluster=c1"), s.ID)

	require.Equal(t, http.StatusNotFound, send(a, http.MethodDelete, silencesPath+"/s0", "bob", "").Code)
	w = send(a, http.MethodDelete, silencesPath+"/"+s.ID+"?reason=wrong+node", "bob", "")
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.NotContains(t, get("/api/v1/nodes/n1?cluster=c1"), `"silenced"`)
	assert.Contains(t, get("/api/v1/audit"), `"override":true`)
	assert.Equal(t, http.StatusUnprocessableEntity, send(a, http.MethodDelete, silencesPath+"/"+s.ID, "bob", "").Code, "it is over")
}

func TestWordsThatAreRefused(t *testing.T) {
	a := writable()
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		text               string
	}{
		"the past":             {http.MethodPost, silencesPath, `{"cluster":"c1","node":"n","reason":"r","until":"` + until(-time.Hour) + `"}`, 422, "must be after now"},
		"no reason":            {http.MethodPost, silencesPath, `{"cluster":"c1","node":"n","reason":"","until":"` + until(time.Hour) + `"}`, 422, "reason"},
		"everything":           {http.MethodPost, silencesPath, `{"cluster":"c1","reason":"r","until":"` + until(time.Hour) + `"}`, 422, "must be one"},
		"no end":               {http.MethodPost, silencesPath, `{"cluster":"c1","node":"n","reason":"r"}`, 422, "until"},
		"a misspelt key":       {http.MethodPost, silencesPath, `{"cluster":"c1","nod":"n","reason":"r","until":"` + until(time.Hour) + `"}`, 422, "nod"},
		"no JSON":              {http.MethodPost, silencesPath, `{`, 400, ""},
		"too much":             {http.MethodPost, silencesPath, `{"reason":"` + strings.Repeat("x", maxBody) + `"}`, 413, ""},
		"an unknown episode":   {http.MethodPost, acknowledgementsPath, `{"cluster":"c1","episode_id":"nope","reason":"on it"}`, 404, "no episode nope"},
		"an unknown board":     {http.MethodPost, "/api/v1/boards/GPU-x", `{"kind":"repair","text":"t"}`, 404, "no board GPU-x"},
		"a board of two":       {http.MethodPost, "/api/v1/boards/GPU-a", `{"kind":"repair","text":"t"}`, 422, "c1, c2"},
		"a test without proof": {http.MethodPost, "/api/v1/boards/GPU-b", `{"kind":"test","text":"t","test":"dcgmi diag"}`, 422, "exit_code"},
		"another method":       {http.MethodPut, silencesPath, `{}`, 405, "only GET"},
		"a page":               {http.MethodPost, "/", `{}`, 405, "only GET"},
	} {
		t.Run(name, func(t *testing.T) {
			w := send(a, tc.method, tc.path, "ann", tc.body)
			assert.Equal(t, tc.status, w.Code, w.Body)
			assert.Contains(t, w.Body.String(), tc.text)
			assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		})
	}
	assert.Empty(t, a.o.People.Silences(nil, false, t0))
}

func TestAcknowledge(t *testing.T) {
	a := writable()
	eps := a.o.Store.Episodes(&fleetstate.EpisodeFilter{})
	require.NotEmpty(t, eps)
	ep := eps[0]
	w := send(a, http.MethodPost, acknowledgementsPath, "ann", `{"cluster":"`+ep.Cluster+`","episode_id":"`+ep.ID+`","reason":"on it"}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	assert.Contains(t, send(a, http.MethodGet, "/api/v1/episodes", "bob", "").Body.String(), `"acknowledged":{"by":"ann","reason":"on it"`)
}

func TestBoards(t *testing.T) {
	a := writable()
	w := send(a, http.MethodPost, "/api/v1/boards/GPU-a?cluster=c1", "ann", `{"kind":"test","text":"passed after reseating","test":"dcgmi diag -r 3","exit_code":0,"output":"PASS"}`)
	require.Equal(t, http.StatusCreated, w.Code, w.Body)
	var board ledger.Board
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &board))
	require.Len(t, board.Entries, 1)
	assert.Equal(t, []string{"ann", "dcgmi diag -r 3", "PASS", "n1"}, []string{board.Entries[0].By, board.Entries[0].Test, board.Entries[0].Output, board.Entries[0].Node})

	for path, want := range map[string][]string{
		"/api/v1/boards":                         {"c1 GPU-a 0", "c1 GPU-b 0", "c2 GPU-a 0"},
		"/api/v1/boards?serial=1650":             {"c1 GPU-a 0", "c1 GPU-b 0"},
		"/api/v1/boards?kind=test&entries=true":  {"c1 GPU-a 1"},
		"/api/v1/boards?node=n9":                 {"c2 GPU-a 0"},
		"/api/v1/boards?uuid=GPU-a&cluster=c2":   {"c2 GPU-a 0"},
		"/api/v1/boards?uuid=GPU-a&entries=true": {"c1 GPU-a 1", "c2 GPU-a 0"},
	} {
		var page BoardPage
		require.NoError(t, json.Unmarshal(send(a, http.MethodGet, path, "bob", "").Body.Bytes(), &page), path)
		var got []string
		for i := range page.Boards {
			got = append(got, page.Boards[i].Cluster+" "+page.Boards[i].UUID+" "+string(rune('0'+len(page.Boards[i].Entries))))
		}
		assert.Equal(t, want, got, path)
	}
	assert.Equal(t, http.StatusUnprocessableEntity, send(a, http.MethodGet, "/api/v1/boards/GPU-a", "bob", "").Code, "two clusters have had it")
}
