// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

type userKey struct{}

// guarded is an API that wants a token, as a header or as a parameter.
func guarded(t *testing.T) *API {
	t.Helper()
	a := newAPI(func(o *Options) {
		o.Pages = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("page")) })
		o.Auth = &Auth{
			Challenge: "Bearer", Params: []string{"access"},
			Authenticate: func(ctx context.Context, headers map[string][]string) (context.Context, error) {
				for _, name := range []string{"Authorization", "access"} {
					if v := headers[name]; len(v) == 1 && v[0] == "Bearer x" {
						return context.WithValue(ctx, userKey{}, "x"), nil
					}
				}
				if headers["Authorization"] != nil {
					return ctx, webguard.ErrBusy
				}
				return ctx, errors.New("no such token")
			},
		}
	})
	fleet(a)
	return a
}

// TestWithoutToken gets pages and the document of the API, and nothing of the
// fleet whatever the path looks like.
func TestWithoutToken(t *testing.T) {
	a := guarded(t)
	for _, path := range []string{"/", "/js/app.js", "/docs/", "/docs/docs.js", "/openapi.json", "/openapi-3.0.json", "/openapi.yaml"} {
		w := ask(a, path)
		assert.Equal(t, http.StatusOK, w.Code, path)
		assert.Empty(t, w.Header().Get("WWW-Authenticate"), path)
	}
	ops := operations(document(t, a))
	require.Greater(t, len(ops), 10)
	paths := []string{"/api", "/api/", "/api/v1/nope", "/api/v1/nodes/n2", "//api/v1/nodes", "/x/../api/v1/nodes", "/api/v1/nodes?access=y", "/api/v1/nodes?access=Bearer+x&access=y"}
	for _, op := range ops {
		paths = append(paths, op.path)
	}
	for _, path := range paths {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			w := httptest.NewRecorder()
			a.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
			require.Equal(t, http.StatusUnauthorized, w.Code, path)
			assert.Equal(t, "Bearer", w.Header().Get("WWW-Authenticate"), path)
			assert.Equal(t, "application/problem+json", w.Header().Get("Content-Type"), path)
			var p huma.ErrorModel
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
			assert.Equal(t, "no such token", p.Detail)
		}
	}
}

func TestWithToken(t *testing.T) {
	a := guarded(t)
	r := httptest.NewRequest(http.MethodGet, "/api/v1/nodes?node=n2", http.NoBody)
	r.Header.Set("Authorization", "Bearer x")
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	assert.Equal(t, http.StatusOK, w.Code, w.Body)
	assert.Equal(t, http.StatusOK, ask(a, "/api/v1/nodes?access=Bearer%20x&node=n2").Code, "the API does not see the parameter")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(a, "/api/v1/nodes?access=Bearer%20x&node=%zz").Code, "the rest is as it was")
	assert.Equal(t, http.StatusOK, ask(a, "/api/v1/health?access=Bearer+x").Code)

	r.Header.Set("Authorization", "another")
	w = httptest.NewRecorder()
	a.ServeHTTP(w, r)
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Empty(t, w.Header().Get("WWW-Authenticate"), "or a browser would ask for the password again")
}
