// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
)

// malformedError is a message that cannot be decoded.
type malformedError struct{ error }

// errLate is a push whose message was not there in time.
var errLate = errors.New("the message was not there within `receive_timeout` of the receiver")

// status is what the error of a push is to its sender, who repeats a push after the wait in
// RetryInfo, and after Unavailable, and drops one that is at fault itself.
// https://opentelemetry.io/docs/specs/otlp/#failures
func (r *fleetReceiver) status(ctx context.Context, transport threshold.Transport, err error) *status.Status {
	var refused *admission.RefusedError
	var large *admission.TooLargeError
	var tooMany *http.MaxBytesError
	var malformed *malformedError
	var foreign *clientidentity.ForeignError
	reject := func(cause string, code codes.Code, text string) *status.Status {
		r.telemetry.ReceiverFleetOtlpRejections.Add(ctx, 1, option("cause", cause))
		return status.New(code, text)
	}
	switch {
	case errors.As(err, &refused):
		cluster, _ := r.refused.Note(refused.Cluster, time.Time{}) // the second result is for logs
		r.telemetry.ReceiverFleetOtlpRefusals.Add(ctx, 1, metric.WithAttributes(r.id(),
			attribute.String("cluster", cluster), attribute.String("reason", string(refused.Reason))))
		return later(codes.ResourceExhausted, err.Error(), refused.RetryAfter)
	case errors.Is(err, errLate):
		r.telemetry.ReceiverFleetOtlpReceiveTimeouts.Add(context.WithoutCancel(ctx), 1)
		return later(codes.Unavailable, fmt.Sprintf("%v, %s", errLate, r.cfg.Admission.ReceiveTimeout), r.cfg.Admission.RetryAfter.Max)
	case errors.As(err, &large):
		return reject("large", codes.InvalidArgument, err.Error()+", see `admission::max_bytes` of the receiver")
	case errors.As(err, &tooMany):
		return reject("large", codes.InvalidArgument, fmt.Sprintf("the body has more than %d bytes, see `max_request_body_size` of the receiver", tooMany.Limit))
	case errors.Is(err, admission.ErrTooDeep):
		return reject("deep", codes.InvalidArgument, err.Error())
	case errors.As(err, &malformed), errors.Is(err, admission.ErrMalformed):
		if transport == threshold.GRPC { // as gRPC has it of its own codec
			return reject("malformed", codes.Internal, "grpc: error unmarshalling request: "+err.Error())
		}
		return reject("malformed", codes.InvalidArgument, err.Error())
	case errors.As(err, &foreign):
		return reject("foreign", codes.PermissionDenied, err.Error())
	case errors.Is(err, clientidentity.ErrNobody), errors.Is(err, clientidentity.ErrNoCluster), errors.Is(err, clientidentity.ErrNoNode):
		return reject("unauthenticated", codes.PermissionDenied, err.Error())
	}
	if s, ok := status.FromError(err); ok {
		return s
	}
	if consumererror.IsPermanent(err) {
		return status.New(codes.Internal, err.Error())
	}
	return status.New(codes.Unavailable, err.Error())
}

// later asks the sender to come back. RESOURCE_EXHAUSTED without RetryInfo would have it
// drop the push. https://opentelemetry.io/docs/specs/otlp/#otlpgrpc-throttling
func later(code codes.Code, text string, wait time.Duration) *status.Status {
	s := status.New(code, text)
	// Fails for the code OK only.
	if d, err := s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}); err == nil {
		return d
	}
	return s
}
