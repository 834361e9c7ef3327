// SPDX-License-Identifier: Apache-2.0

package serverguard

import (
	"context"
	"maps"
	"net/http"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensionauth"

	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
)

// ReadersAuth is how many clients a server that is there to be read has authenticated at
// once. To check a password takes some 50 ms of a core.
const ReadersAuth = 16

// Queue puts a bound before an authenticator: of so many clients that it is asked about at
// once, an address may be half of what the others leave. The others get the error busy.
func Queue(extensions map[component.ID]component.Component, id component.ID, slots int, busy error) map[component.ID]component.Component {
	authenticator, ok := extensions[id].(extensionauth.Server)
	if !ok {
		return extensions // the server reports it
	}
	bounded := maps.Clone(extensions)
	bounded[id] = &boundedAuthenticator{Server: authenticator, busy: busy, slots: fairshare.New[string](slots, fairshare.Half)}
	return bounded
}

type boundedAuthenticator struct {
	component.StartFunc
	component.ShutdownFunc
	extensionauth.Server
	busy  error
	slots *fairshare.Ledger[string] // by address
}

// Authenticate implements extensionauth.Server.
func (b *boundedAuthenticator) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	address := ""
	if at := client.FromContext(ctx).Addr; at != nil {
		address = webguard.Network(at.String())
	}
	if !b.slots.TakeAll(address, 1) {
		return ctx, b.busy
	}
	defer b.slots.Give(address, 1)
	return b.Server.Authenticate(ctx, headers)
}

// refuse writes the errors of the Collector's server, with 429 for ErrBusy.
func refuse(w http.ResponseWriter, _ *http.Request, text string, code int) {
	if text == webguard.ErrBusy.Error() {
		code = http.StatusTooManyRequests
	}
	http.Error(w, text, code)
}

// Pages guards a server of pushes against web pages. A page has neither a certificate for
// its name nor a password. Its browser sends Origin with a push, and an agent does not,
// whatever name the agent knows the server by. Requests that read are guarded without Origin.
func Pages(next http.Handler, reads func(*http.Request) bool, named ...string) http.Handler {
	guarded := webguard.Hosts(next, named...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked := r.Header.Get("Origin") != "" || reads(r)
		if asked && r.TLS == nil && client.FromContext(r.Context()).Auth == nil {
			guarded.ServeHTTP(w, r)
		} else {
			next.ServeHTTP(w, r)
		}
	})
}
