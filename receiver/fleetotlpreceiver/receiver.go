// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/detect/threshold"
	"github.com/gpu-collector/gpu-collector/internal/lastvalue/otlp"
	"github.com/gpu-collector/gpu-collector/internal/platform/admission"
	"github.com/gpu-collector/gpu-collector/internal/platform/gauge"
	"github.com/gpu-collector/gpu-collector/internal/platform/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/platform/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/platform/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/platform/webguard"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadata"
)

type fleetReceiver struct {
	cfg       *Config
	set       receiver.Settings
	telemetry *metadata.TelemetryBuilder
	limiter   *admission.Limiter
	id        attribute.KeyValue     // of the receiver, in its metrics
	refused   memorybudget.Shortages // names the clusters of refusals
	busy      *status.Status         // refuses a client that the authenticator was not asked about
	observers map[threshold.Transport]*observer

	// The pipelines, nil where there is none.
	metrics consumer.Metrics
	logs    consumer.Logs
	traces  consumer.Traces

	answers threshold.Server // nil without `threshold_extension`
	engine  *otlp.Engine     // nil without `table`
	buffers sync.Pool        // of *bytes.Buffer

	grpc *serverguard.GRPCServer
	http *serverguard.Server

	pipelines int // that have not started
	end       sync.Once
	endErr    error
}

func newReceiver(set receiver.Settings, cfg *Config) (*fleetReceiver, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	a, bytesLimit := &cfg.Admission, cfg.MemoryBytes()
	r := &fleetReceiver{
		cfg: cfg, set: set, telemetry: tb, id: attribute.String("receiver", set.ID.String()),
		limiter:   admission.New(a.MaxConcurrent, bytesLimit, a.ClusterShare),
		busy:      later(codes.ResourceExhausted, webguard.ErrBusy.Error(), a.RetryAfter.Max),
		observers: map[threshold.Transport]*observer{},
		buffers:   sync.Pool{New: func() any { return new(bytes.Buffer) }},
	}
	for _, transport := range []threshold.Transport{threshold.GRPC, threshold.HTTP} {
		if r.observers[transport], err = receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
			ReceiverID: set.ID, Transport: string(transport), ReceiverCreateSettings: set,
		}); err != nil {
			return nil, err
		}
	}
	id := metric.WithAttributes(r.id) // or one of several receivers would replace the others
	return r, errors.Join(
		tb.RegisterReceiverFleetOtlpPermitsInUseCallback(gauge.Of(func() int64 { n, _ := r.limiter.InUse(); return int64(n) }, id)),
		tb.RegisterReceiverFleetOtlpPermitsLimitCallback(gauge.Of(func() int64 { return int64(a.MaxConcurrent) }, id)),
		tb.RegisterReceiverFleetOtlpBytesInUseCallback(gauge.Of(func() int64 { _, n := r.limiter.InUse(); return n }, id)),
		tb.RegisterReceiverFleetOtlpBytesLimitCallback(gauge.Of(func() int64 { return bytesLimit }, id)),
	)
}

// start finds the extensions and serves. The processors have started.
func (r *fleetReceiver) start(ctx context.Context, host component.Host) (err error) {
	if id := r.cfg.ThresholdExtension; id != nil {
		if r.answers, err = hostextension.Find[threshold.Server](host, "threshold_extension", "straggler_threshold", *id); err != nil {
			return err
		}
	}
	if id := r.cfg.Table; id != nil && r.metrics != nil {
		tables, err := hostextension.Find[otlp.Owner](host, "table", "exposition", *id)
		if err != nil {
			return err
		}
		if r.engine, err = tables.Follows(r.set.ID.String()); err != nil {
			return fmt.Errorf("`table` is %q: %w", id, err)
		}
	}
	if err := errors.Join(r.startGRPC(ctx, host), r.startHTTP(ctx, host)); err != nil {
		return errors.Join(err, r.shutdown(ctx))
	}
	return nil
}

// queue bounds the clients that are authenticated at once, before they have a permit.
func (r *fleetReceiver) queue(extensions map[component.ID]component.Component, id component.ID) map[component.ID]component.Component {
	return serverguard.Queue(extensions, id, max(2, r.cfg.Admission.MaxConcurrent/20), r.busy.Err())
}

func (r *fleetReceiver) shutdown(ctx context.Context) error {
	err := r.http.Shutdown(ctx)
	r.grpc.Shutdown(r.cfg.Admission.ReceiveTimeout)
	r.telemetry.Shutdown()
	return err
}
