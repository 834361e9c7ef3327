// SPDX-License-Identifier: Apache-2.0

package fleetotlpreceiver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	"github.com/gpu-collector/gpu-collector/internal/admission"
	"github.com/gpu-collector/gpu-collector/internal/clientidentity"
	"github.com/gpu-collector/gpu-collector/internal/delta"
	"github.com/gpu-collector/gpu-collector/internal/hostextension"
	"github.com/gpu-collector/gpu-collector/internal/memorybudget"
	"github.com/gpu-collector/gpu-collector/internal/serverguard"
	"github.com/gpu-collector/gpu-collector/internal/threshold"
	"github.com/gpu-collector/gpu-collector/receiver/fleetotlpreceiver/internal/metadata"
)

type fleetReceiver struct {
	cfg       *Config
	set       receiver.Settings
	telemetry *metadata.TelemetryBuilder
	limiter   *admission.Limiter
	refused   memorybudget.Shortages // names the clusters of refusals
	rule      clientidentity.Rule
	observers map[threshold.Transport]*receiverhelper.ObsReport

	// The pipelines, nil where there is none.
	metrics consumer.Metrics
	logs    consumer.Logs
	traces  consumer.Traces

	answers threshold.Server // nil without `threshold_extension`
	engine  *delta.Engine    // nil without `table`
	buffers sync.Pool        // of *[]byte

	grpc    *grpc.Server
	largest int // bytes of a message over gRPC
	http    *serverguard.Server
	serving sync.WaitGroup

	pipelines int // that have not started
	end       sync.Once
	endErr    error
}

func newReceiver(set receiver.Settings, cfg *Config) (*fleetReceiver, error) {
	tb, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	r := &fleetReceiver{
		cfg: cfg, set: set, telemetry: tb, limiter: admission.New(cfg.admission()), rule: cfg.Identity.rule(),
		observers: map[threshold.Transport]*receiverhelper.ObsReport{}, buffers: sync.Pool{New: func() any { return new([]byte) }},
	}
	for _, transport := range []threshold.Transport{threshold.GRPC, threshold.HTTP} {
		obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
			ReceiverID: set.ID, Transport: string(transport), ReceiverCreateSettings: set,
		})
		if err != nil {
			return nil, err
		}
		r.observers[transport] = obs
	}
	return r, r.observe()
}

// observe has the figures of the limiter read when somebody reads them. Without the
// receiver's id one of several would take the place of the others.
func (r *fleetReceiver) observe() error {
	gauge := func(figure func() int64) metric.Int64Callback {
		return func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(figure(), metric.WithAttributes(r.id()))
			return nil
		}
	}
	return errors.Join(
		r.telemetry.RegisterReceiverFleetOtlpPermitsInUseCallback(gauge(func() int64 { n, _ := r.limiter.InUse(); return int64(n) })),
		r.telemetry.RegisterReceiverFleetOtlpPermitsLimitCallback(gauge(func() int64 { return int64(r.limiter.Permits) })),
		r.telemetry.RegisterReceiverFleetOtlpBytesInUseCallback(gauge(func() int64 { _, n := r.limiter.InUse(); return n })),
		r.telemetry.RegisterReceiverFleetOtlpBytesLimitCallback(gauge(func() int64 { return r.limiter.Bytes })),
	)
}

func (r *fleetReceiver) id() attribute.KeyValue {
	return attribute.String("receiver", r.set.ID.String())
}

// start finds the extensions and serves. The processors have started.
func (r *fleetReceiver) start(ctx context.Context, host component.Host) (err error) {
	if id := r.cfg.ThresholdExtension; id != nil {
		if r.answers, err = hostextension.Find[threshold.Server](host, "threshold_extension", "straggler_threshold", *id); err != nil {
			return err
		}
		r.answers.Serve()
	}
	if id := r.cfg.Table; id != nil && r.metrics != nil {
		tables, err := hostextension.Find[delta.Exposition](host, "table", "exposition", *id)
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

// Unfinished header blocks may take at most these percents of the memory. gRPC has most,
// since each agent of a fleet holds a connection.
const grpcPercent, httpPercent = 50, 20

func (r *fleetReceiver) connections(percent int64, each int) int {
	return cmp.Or(r.cfg.MaxConnections, serverguard.Connections(percent, each))
}

func (r *fleetReceiver) shutdown(ctx context.Context) error {
	var err error
	if r.http != nil {
		err = r.http.Shutdown(ctx)
	}
	if r.grpc != nil {
		late := time.AfterFunc(r.cfg.Admission.ReceiveTimeout, r.grpc.Stop)
		r.grpc.GracefulStop()
		late.Stop()
	}
	r.serving.Wait()
	r.telemetry.Shutdown()
	return err
}
