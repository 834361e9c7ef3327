// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"maps"
	"time"

	"go.opentelemetry.io/collector/client"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/fairshare"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

// unknownShare is one part of the permits of so many: that many clients are authenticated at
// once, before they have a permit. To check a password takes some 50 ms of a core.
const unknownShare = 20

// busyError refuses a client that the authenticator was not asked about.
type busyError struct{ wait time.Duration }

func (busyError) Error() string { return "too many clients are being authenticated; try again later" }

// GRPCStatus is for the interceptor of gRPC.
func (e busyError) GRPCStatus() *status.Status {
	return later(codes.ResourceExhausted, e.Error(), e.wait)
}

// queue puts a bound before an authenticator: of the clients that it is asked about at
// once, an address may be half of what the others leave.
func (r *fleetReceiver) queue(extensions map[component.ID]component.Component, id component.ID) map[component.ID]component.Component {
	authenticator, ok := extensions[id].(extensionauth.Server)
	if !ok {
		return extensions // the server says so
	}
	bounded := maps.Clone(extensions)
	bounded[id] = &boundedAuthenticator{
		Server: authenticator, busy: busyError{r.cfg.Admission.RetryAfter.Max},
		places: fairshare.New[string](max(2, r.cfg.Admission.MaxConcurrent/unknownShare), fairshare.Half),
	}
	return bounded
}

type boundedAuthenticator struct {
	component.StartFunc
	component.ShutdownFunc
	extensionauth.Server
	busy   busyError
	places *fairshare.Ledger[string] // by address
}

// Authenticate implements extensionauth.Server.
func (b *boundedAuthenticator) Authenticate(ctx context.Context, headers map[string][]string) (context.Context, error) {
	address := ""
	if at := client.FromContext(ctx).Addr; at != nil {
		address = webguard.Network(at.String())
	}
	if b.places.Take(address, 1) == 0 {
		return ctx, b.busy
	}
	defer b.places.Give(address, 1)
	return b.Server.Authenticate(ctx, headers)
}
