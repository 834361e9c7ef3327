// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
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

// start starts an extension that listens, and returns a way to ask it.
func start(t *testing.T, h component.Host, change func(*Config)) func(path string, header http.Header) *http.Response {
	t.Helper()
	addr := loopback.FreeAddr(t)
	e, _ := newTestExtension(t, func(c *Config) {
		c.HTTP.NetAddr.Endpoint = addr
		change(c)
	})
	require.NoError(t, e.Start(t.Context(), h))
	t.Cleanup(func() { require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context()))) })
	return func(path string, header http.Header) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
		require.NoError(t, err)
		req.Header, req.Host = header, header.Get("Host")
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		http.DefaultClient.CloseIdleConnections()
		return resp
	}
}

func withAuthenticator(t *testing.T, id string) func(*Config) {
	return func(c *Config) {
		require.NoError(t, confmap.NewFromStringMap(map[string]any{"http": map[string]any{"auth": map[string]any{"authenticator": id}}}).Unmarshal(c))
	}
}

// TestAuthenticators asks for the page, and for data with and without credentials, with the
// Collector's own authenticators.
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
			get := start(t, host{id: auth}, withAuthenticator(t, id.String()))
			assert.Equal(t, http.StatusOK, get("/", nil).StatusCode)
			bad := get("/api/v1/nodes", http.Header{"Authorization": {tt.bad}})
			assert.Equal(t, http.StatusUnauthorized, bad.StatusCode)
			assert.Equal(t, tt.refusal, bad.Header.Get("WWW-Authenticate"))
			assert.Equal(t, http.StatusOK, get("/api/v1/nodes", http.Header{"Authorization": {tt.good}}).StatusCode)
			require.NoError(t, auth.Shutdown(t.Context()))
		})
	}
}

func TestAuthenticatorThatIsNotThere(t *testing.T) {
	e, _ := newTestExtension(t, withAuthenticator(t, "bearertokenauth"))
	require.ErrorContains(t, e.Start(t.Context(), host{}), "`http::auth`")
	require.NoError(t, e.Shutdown(t.Context()))
}

// TestForeignNamesAreRefused without an authenticator: a web page may have its name lead here.
func TestForeignNamesAreRefused(t *testing.T) {
	get := start(t, host{}, func(c *Config) { c.AllowedHosts = []string{"fleet.example.com"} })
	for name, want := range map[string]int{
		"localhost": http.StatusOK, "fleet.example.com": http.StatusOK, "evil.example.com": http.StatusMisdirectedRequest,
	} {
		assert.Equal(t, want, get("/api/v1/nodes", http.Header{"Host": {name}}).StatusCode, name)
	}
}
