// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/gpu-collector/gpu-collector/internal/platform/admission"
	"github.com/gpu-collector/gpu-collector/internal/platform/clientidentity"
)

// errLate is a push whose message was not there in time.
var errLate = errors.New("the message was not there within `receive_timeout` of the receiver")

// rejections are the errors of pushes that go nowhere, with their causes of metadata.yaml.
var rejections = []struct {
	err   error
	cause string
	code  codes.Code
}{
	{admission.ErrTooLarge, "large", codes.InvalidArgument},
	{admission.ErrTooDeep, "deep", codes.InvalidArgument},
	{admission.ErrMalformed, "malformed", codes.InvalidArgument},
	{clientidentity.ErrForeign, "foreign", codes.PermissionDenied},
	{clientidentity.ErrNobody, "unauthenticated", codes.PermissionDenied},
	{clientidentity.ErrNoCluster, "unauthenticated", codes.PermissionDenied},
	{clientidentity.ErrNoNode, "unauthenticated", codes.PermissionDenied},
}

// status is what the error of a push is to its sender, which repeats a push after the wait in
// RetryInfo, and after Unavailable, and drops one that is at fault itself.
// https://opentelemetry.io/docs/specs/otlp/#failures
func (r *fleetReceiver) status(ctx context.Context, err error) *status.Status {
	wait := r.cfg.Admission.RetryAfter
	var refused *admission.RefusedError
	switch {
	case errors.As(err, &refused):
		cluster, _ := r.refused.Note(refused.Cluster, time.Time{}) // the second result is for logs
		r.telemetry.ReceiverFleetOtlpRefusals.Add(ctx, 1, metric.WithAttributes(r.id,
			attribute.String("cluster", cluster), attribute.String("reason", refused.Reason)))
		// In whole seconds, as HTTP has it. Clients that were refused together do not return together.
		drawn := wait.Min + rand.N((wait.Max-wait.Min)/time.Second+1)*time.Second
		return later(codes.ResourceExhausted, fmt.Sprintf("%v; try again in %s", err, drawn), drawn)
	case errors.Is(err, errLate):
		r.telemetry.ReceiverFleetOtlpReceiveTimeouts.Add(context.WithoutCancel(ctx), 1)
		return later(codes.Unavailable, fmt.Sprintf("%v, %s", errLate, r.cfg.Admission.ReceiveTimeout), wait.Max)
	}
	for _, known := range rejections {
		if errors.Is(err, known.err) {
			r.telemetry.ReceiverFleetOtlpRejections.Add(ctx, 1, option("cause", known.cause))
			return status.New(known.code, err.Error())
		}
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.OK {
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
	s, _ := status.New(code, text).WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)}) // fails for OK only
	return s
}
