// SPDX-License-Identifier: Apache-2.0

package serverguard

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/configauth"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"
)

var doorman = component.MustNewID("doorman")

// slowDoor is an authenticator that refuses all, and takes its time.
type slowDoor struct {
	component.StartFunc
	component.ShutdownFunc
	here   chan struct{}
	answer chan struct{}
}

func (a *slowDoor) Authenticate(ctx context.Context, _ map[string][]string) (context.Context, error) {
	a.here <- struct{}{}
	<-a.answer
	return ctx, errors.New("nobody")
}

type host struct {
	component.Host
	a *slowDoor
}

func (h host) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{doorman: h.a}
}

// TestReadersAreAuthenticatedSomeAtATime: one address has half of the slots.
func TestReadersAreAuthenticatedSomeAtATime(t *testing.T) {
	a := &slowDoor{here: make(chan struct{}), answer: make(chan struct{})}
	cfg := confighttp.NewDefaultServerConfig()
	cfg.NetAddr.Endpoint = "127.0.0.1:0"
	cfg.Auth = configoptional.Some(confighttp.AuthConfig{Config: configauth.Config{AuthenticatorID: doorman}})
	server, err := StartReaders(t.Context(), host{componenttest.NewNopHost(), a}, componenttest.NewNopTelemetrySettings(), "mine", "http",
		&cfg, nil, http.NotFoundHandler())
	require.NoError(t, err)
	get := func() int {
		resp, err := http.Get("http://" + server.Addr().String())
		if !assert.NoError(t, err) {
			return 0
		}
		assert.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	var all sync.WaitGroup
	for range ReadersAuth / 2 {
		all.Go(func() { assert.Equal(t, http.StatusUnauthorized, get()) })
		<-a.here
	}
	assert.Equal(t, http.StatusTooManyRequests, get())
	close(a.answer)
	all.Wait()
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, server.Shutdown(t.Context()))
}

// TestNamesOfReaders: without authentication the server has some names only.
func TestNamesOfReaders(t *testing.T) {
	cfg := confighttp.NewDefaultServerConfig()
	cfg.NetAddr.Endpoint = "127.0.0.1:0"
	server, err := StartReaders(t.Context(), componenttest.NewNopHost(), componenttest.NewNopTelemetrySettings(), "mine", "http",
		&cfg, []string{"gateway.example.com"}, http.NotFoundHandler())
	require.NoError(t, err)
	for name, want := range map[string]int{
		"": http.StatusNotFound, "gateway.gpu.svc": http.StatusNotFound, "gateway.example.com:9464": http.StatusNotFound,
		"evil.example.com": http.StatusMisdirectedRequest,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+server.Addr().String(), http.NoBody)
		require.NoError(t, err)
		req.Host = name
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		assert.NoError(t, resp.Body.Close())
		assert.Equal(t, want, resp.StatusCode, name)
	}
	http.DefaultClient.CloseIdleConnections()
	require.NoError(t, server.Shutdown(t.Context()))
}
