// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"time"

	_ "go.opentelemetry.io/collector/config/configgrpc" // registers snappy
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
	"google.golang.org/grpc/encoding/gzip"

	"github.com/gpu-collector/gpu-collector/internal/grpczstd"
)

// Compressions of requests.
const (
	CompressionNone   = "none"
	CompressionGzip   = gzip.Name
	CompressionZstd   = grpczstd.Name
	CompressionSnappy = "snappy"
)

// Compressions returns all of them.
func Compressions() []string {
	return []string{CompressionNone, CompressionGzip, CompressionZstd, CompressionSnappy}
}

// sender carries requests to the other end.
type sender interface {
	// send pushes one request over one of the connections.
	send(ctx context.Context, connection int, h Headers, body []byte) result
	close() error
}

// result is how a push ended.
type result struct {
	Answer
	// code names the refusal or failure, empty for a push that was accepted.
	code string
	err  error
	// wait is how long the other end asks to be left alone.
	wait time.Duration
	// rejected are points of an accepted push that were not taken.
	rejected int64
}

// rejected reads the answer to an accepted push.
func rejected(response []byte) int64 {
	if len(response) == 0 {
		return 0
	}
	r := pmetricotlp.NewExportResponse()
	if r.UnmarshalProto(response) != nil {
		return 0
	}
	return r.PartialSuccess().RejectedDataPoints()
}
