// SPDX-License-Identifier: Apache-2.0

package thresholdextension

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/collector/client"

	"github.com/gpu-collector/gpu-collector/internal/delta/resync"
	"github.com/gpu-collector/gpu-collector/internal/wire"
)

type authData map[string]string

func (a authData) GetAttribute(name string) any { return a[name] }

func (a authData) GetAttributeNames() []string { return nil }

func TestClusterIsBoundToTheCredentials(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.ClusterAuthAttribute = "tenant" })
	publish(t, e, "victim", 0.9)

	ctx := client.NewContext(t.Context(), client.Info{Auth: authData{"tenant": "mine"}})
	caller, headers := e.answer(ctx, "http", "victim", nil)
	assert.Equal(t, wire.Caller{Cluster: "mine", Authenticated: true}, caller)
	assert.Empty(t, headers)

	caller, headers = e.answer(t.Context(), "http", "victim", nil)
	assert.Equal(t, wire.Caller{}, caller, "without credentials there is no cluster")
	assert.Empty(t, headers)

	rec := httptest.NewRecorder()
	e.apiHandler(http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/thresholds", http.NoBody).WithContext(ctx))
	assert.JSONEq(t, `[]`, rec.Body.String(), "other tenants' clusters are not listed")
}

// TestNodeIsBoundToTheCredentials: an impostor that only claims a node's name does
// not take the request for its state off the list.
func TestNodeIsBoundToTheCredentials(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) { c.ClusterAuthAttribute, c.NodeAuthAttribute = "username", "username" })
	publish(t, e, "mine", 0.9)
	as := func(user string) context.Context {
		return client.NewContext(t.Context(), client.Info{Auth: authData{"username": user}})
	}
	assert.Equal(t, "n7", e.node(as("mine/n7"), "victim"))
	assert.Equal(t, "claimed", e.node(as("mine/*"), "claimed"), "a tier speaks for its nodes")
	assert.Empty(t, e.node(as("mine"), "victim"))
	assert.Empty(t, e.node(t.Context(), "victim"))

	e.wanted.Add(resync.Request{Node: "victim"})
	_, asked := resync.ContextWithAnswer(as("mine/n7"))
	e.state(as("mine/n7"), asked, "mine", e.node(as("mine/n7"), "victim"))
	assert.True(t, e.wanted.Take("mine", "victim"), "still wanted")

	// Nor does the owner of a node of the same name in another cluster.
	e.wanted.Add(resync.Request{Node: "n7"})
	h := handlerOf(t, e, http.NotFoundHandler())
	for i, push := range []struct{ user, want string }{{"other/n7", `"n7"`}, {"other/n7", ""}, {"mine/n7", `"n7"`}, {"mine/n7", ""}} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, metricsPath, http.NoBody).WithContext(as(push.user)))
		assert.Equal(t, push.want, rec.Header().Get("gpu-resync"), "%d %s", i, push.user)
	}

	// A tier of all clusters asks for the one it names, and sees all of them.
	caller, headers := e.answer(as("*/*"), "grpc", "mine", nil)
	assert.Equal(t, wire.Caller{Cluster: "mine"}, caller)
	assert.NotEmpty(t, headers)
	for user, want := range map[string]int{"*/*": 1, "mine/n7": 1, "other/n7": 0, "nobody": 0} {
		rec := httptest.NewRecorder()
		e.apiHandler(http.NotFoundHandler()).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/api/v1/thresholds", http.NoBody).WithContext(as(user)))
		assert.Equal(t, want, strings.Count(rec.Body.String(), `"cluster_id"`), user)
	}
}
