// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"fmt"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/configoptional"

	"github.com/gpu-collector/gpu-collector/internal/fleetapi"
)

// basicAuth is the type of the authenticator whose challenge browsers answer by
// themselves.
const basicAuth = "basicauth"

// withoutAuth takes the authenticator out of a server's settings. The server
// would ask it for the page too, for which a browser sends no token; the API asks
// it for what tells of the fleet.
func withoutAuth(ctx context.Context, server confighttp.ServerConfig, host component.Host) (confighttp.ServerConfig, *fleetapi.Auth, error) {
	if !server.Auth.HasValue() {
		return server, nil, nil
	}
	cfg := *server.Auth.Get()
	server.Auth = configoptional.None[confighttp.AuthConfig]()
	authenticator, err := cfg.GetServerAuthenticator(ctx, host.GetExtensions())
	if err != nil {
		return server, nil, fmt.Errorf("`http::auth`: %w", err)
	}
	auth := &fleetapi.Auth{Authenticate: authenticator.Authenticate, Params: cfg.RequestParameters, Challenge: `Bearer realm="gpu-collector"`}
	if cfg.AuthenticatorID.Type().String() == basicAuth {
		auth.Challenge = `Basic realm="gpu-collector", charset="UTF-8"`
	}
	return server, auth, nil
}
