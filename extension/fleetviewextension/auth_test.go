// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/basicauthextension"
	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/bearertokenauthextension"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"

	"github.com/gpu-collector/gpu-collector/test/loopback"
)

type host map[component.ID]component.Component

func (h host) GetExtensions() map[component.ID]component.Component { return h }

// TestAuthenticators asks as a browser would that first loads the page, and then
// asks for data with and without credentials, with the Collector's own authenticators.
func TestAuthenticators(t *testing.T) {
	for _, tt := range []struct {
		factory            extension.Factory
		cfg                map[string]any
		good, bad, refusal string
	}{
		{
			bearertokenauthextension.NewFactory(),
			map[string]any{"token": "secret"},
			"Bearer secret", "Bearer other", `Bearer realm="gpu-collector"`,
		},
		{
			basicauthextension.NewFactory(),
			map[string]any{"htpasswd": map[string]any{"inline": "me:secret"}},
			"Basic bWU6c2VjcmV0", "Basic bWU6b3RoZXI=", `Basic realm="gpu-collector", charset="UTF-8"`,
		},
	} {
		id := component.NewID(tt.factory.Type())
		t.Run(id.String(), func(t *testing.T) {
			cfg := tt.factory.CreateDefaultConfig()
			require.NoError(t, confmap.NewFromStringMap(tt.cfg).Unmarshal(cfg))
			auth, err := tt.factory.Create(t.Context(), extensiontest.NewNopSettings(tt.factory.Type()), cfg)
			require.NoError(t, err)
			require.NoError(t, auth.Start(t.Context(), componenttest.NewNopHost()))
			addr := loopback.FreeAddr(t)
			e, _ := newTestExtension(t, func(c *Config) {
				c.HTTP.NetAddr.Endpoint = addr
				require.NoError(t, confmap.NewFromStringMap(map[string]any{"http": map[string]any{"auth": map[string]any{"authenticator": id.String()}}}).Unmarshal(c))
			})
			require.NoError(t, e.Start(t.Context(), host{id: auth}))
			get := func(path, credentials string) *http.Response {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
				require.NoError(t, err)
				if credentials != "" {
					req.Header.Set("Authorization", credentials)
				}
				resp, err := http.DefaultClient.Do(req)
				require.NoError(t, err)
				if path != "/api/v1/observe" || resp.StatusCode != http.StatusOK {
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
				}
				require.NoError(t, resp.Body.Close())
				return resp
			}
			for _, path := range []string{"/", "/js/app.js", "/docs/", "/openapi.json"} {
				assert.Equal(t, http.StatusOK, get(path, "").StatusCode, path)
			}
			for _, path := range []string{"/api/v1/nodes", "/api/v1/observe", "/api/v1/telemetry", "/api/v1/health"} {
				for _, credentials := range []string{"", tt.bad} {
					resp := get(path, credentials)
					assert.Equal(t, http.StatusUnauthorized, resp.StatusCode, path)
					assert.Equal(t, tt.refusal, resp.Header.Get("WWW-Authenticate"), path)
					assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"), path)
				}
				assert.Equal(t, http.StatusOK, get(path, tt.good).StatusCode, path)
			}
			http.DefaultClient.CloseIdleConnections()
			require.NoError(t, e.Shutdown(t.Context()))
			require.NoError(t, auth.Shutdown(t.Context()))
		})
	}
}

func TestAuthenticatorThatIsNotThere(t *testing.T) {
	e, _ := newTestExtension(t, func(c *Config) {
		require.NoError(t, confmap.NewFromStringMap(map[string]any{"http": map[string]any{"auth": map[string]any{"authenticator": "bearertokenauth"}}}).Unmarshal(c))
	})
	require.ErrorContains(t, e.Start(t.Context(), host{}), "`http::auth`")
	require.NoError(t, e.Shutdown(t.Context()))
}

// TestForeignNamesAreRefused where nobody is asked who they are: a page of the web
// may have its name lead here.
func TestForeignNamesAreRefused(t *testing.T) {
	addr := loopback.FreeAddr(t)
	e, _ := newTestExtension(t, func(c *Config) {
		c.HTTP.NetAddr.Endpoint, c.AllowedHosts = addr, []string{"fleet.example.com"}
	})
	require.NoError(t, e.Start(t.Context(), host{}))
	defer func() { require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context()))) }()
	for name, want := range map[string]int{
		"": http.StatusOK, "localhost": http.StatusOK, "fleet.example.com": http.StatusOK,
		"evil.example.com": http.StatusMisdirectedRequest, "evil.example.com:8086": http.StatusMisdirectedRequest,
	} {
		for _, path := range []string{"/api/v1/nodes", "/api/v1/observe?names=none", "/"} {
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
			require.NoError(t, err)
			req.Host = name
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			assert.Equal(t, want, resp.StatusCode, "%s %s", name, path)
			cancel()
			_ = resp.Body.Close()
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
