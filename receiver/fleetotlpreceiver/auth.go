// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"time"

	"go.opentelemetry.io/collector/component"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/webguard"
)

// unknownShare is one part of the permits of so many: that many clients are authenticated at
// once, before they have a permit.
const unknownShare = 20

// busyError refuses a client that the authenticator was not asked about.
type busyError struct{ wait time.Duration }

func (busyError) Error() string { return webguard.ErrBusy.Error() }

// GRPCStatus is for the interceptor of gRPC.
func (e busyError) GRPCStatus() *status.Status {
	return later(codes.ResourceExhausted, e.Error(), e.wait)
}

func (r *fleetReceiver) queue(extensions map[component.ID]component.Component, id component.ID) map[component.ID]component.Component {
	a := &r.cfg.Admission
	return serverguard.Queue(extensions, id, max(2, a.MaxConcurrent/unknownShare), busyError{a.RetryAfter.Max})
}
