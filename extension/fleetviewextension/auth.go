// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleetapi"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

// basicAuth is the type of the authenticator whose challenge browsers answer by
// themselves.
const basicAuth = "basicauth"

// withoutAuth moves the authenticator from a server's settings to the API, which asks it for
// the fleet's data. The server would also ask it for the page, for which a browser sends no token.
func withoutAuth(ctx context.Context, server confighttp.ServerConfig, host component.Host) (confighttp.ServerConfig, *fleetapi.Auth, error) {
	if !server.Auth.HasValue() {
		return server, nil, nil
	}
	cfg := *server.Auth.Get()
	server.Auth = configoptional.None[confighttp.AuthConfig]()
	authenticator, err := cfg.GetServerAuthenticator(ctx, serverguard.Queue(host.GetExtensions(), cfg.AuthenticatorID, serverguard.ReadersAuth, webguard.ErrBusy))
	if err != nil {
		return server, nil, fmt.Errorf("`http::auth`: %w", err)
	}
	auth := &fleetapi.Auth{Authenticate: authenticator.Authenticate, Params: cfg.RequestParameters, Challenge: `Bearer realm="gpu-collector"`}
	if cfg.AuthenticatorID.Type().String() == basicAuth {
		auth.Challenge = `Basic realm="gpu-collector", charset="UTF-8"`
	}
	return server, auth, nil
}

// reader names the client of a request: the authenticator's user or subject.
func reader(ctx context.Context) string {
	if auth := client.FromContext(ctx).Auth; auth != nil {
		for _, attribute := range []string{"username", "subject"} {
			if name, _ := auth.GetAttribute(attribute).(string); name != "" {
				return attribute + " " + name
			}
		}
	}
	return ""
}
