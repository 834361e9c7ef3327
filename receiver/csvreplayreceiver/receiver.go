// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
)

const (
	// timeout is how long the next consumer may take for one step.
	timeout = 10 * time.Second
	// Of each message the log has at most so many lines in so long.
	logLines, logEvery = 10, 10 * time.Second
)

// csvReplay replays one file from one goroutine.
type csvReplay struct {
	cfg       *Config
	version   string
	logger    *zap.Logger
	next      consumer.Metrics
	telemetry *metadata.TelemetryBuilder
	obs       *receiverhelper.ObsReport
	host      component.Host

	file   *os.File
	reader *reader
	pacer  pacer

	steps, refused, skipped int64 // for the closing line

	cancel context.CancelFunc
	done   chan struct{}
}

func newReceiver(set receiver.Settings, cfg *Config, next consumer.Metrics) (*csvReplay, error) {
	telemetry, err := metadata.NewTelemetryBuilder(set.TelemetrySettings)
	if err != nil {
		return nil, err
	}
	obs, err := receiverhelper.NewObsReport(receiverhelper.ObsReportSettings{
		ReceiverID:             set.ID,
		Transport:              "file",
		ReceiverCreateSettings: set,
	})
	if err != nil {
		return nil, err
	}
	sampled := zap.WrapCore(func(c zapcore.Core) zapcore.Core {
		return zapcore.NewSamplerWithOptions(c, logEvery, logLines, 0)
	})
	return &csvReplay{
		cfg:       cfg,
		version:   set.BuildInfo.Version,
		logger:    set.Logger.With(zap.String("path", cfg.Path)).WithOptions(sampled),
		next:      next,
		telemetry: telemetry,
		obs:       obs,
		pacer:     pacer{speed: cfg.Speed},
	}, nil
}

// Start opens the file and checks its columns, then replays in the background.
func (r *csvReplay) Start(_ context.Context, host component.Host) error {
	var err error
	if r.file, err = os.Open(r.cfg.Path); err == nil {
		if err = r.rewind(); err != nil {
			err = errors.Join(err, r.file.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("csv_replay: `path` %s: %w", r.cfg.Path, err)
	}
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.host, r.done = host, make(chan struct{})
	go func() {
		defer close(r.done)
		r.run(ctx)
	}()
	return nil
}

// Shutdown stops the replay. It works without Start, and more than once.
func (r *csvReplay) Shutdown(context.Context) error {
	if r.cancel != nil {
		r.cancel()
		<-r.done
	}
	return nil
}

func (r *csvReplay) rewind() (err error) {
	if _, err = r.file.Seek(0, io.SeekStart); err == nil {
		r.reader, err = newReader(r.file, r.cfg, r.version, time.Now(), r.skip)
	}
	return err
}

func (r *csvReplay) run(ctx context.Context) {
	defer func() { _ = r.file.Close() }() // it was only read
	r.logger.Info("replay begins", zap.Strings("not_in_the_file", r.reader.table.missing))
	err := r.pass(ctx)
	for before := int64(0); err == nil && r.cfg.Loop && r.steps > before; {
		before = r.steps
		if err = r.rewind(); err == nil {
			r.logger.Info("replay begins anew")
			err = r.pass(ctx)
		}
	}
	r.finish(ctx, err)
}

// pass replays the file once.
func (r *csvReplay) pass(ctx context.Context) error {
	for {
		s, err := r.reader.step(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(r.pacer.next(s.at, time.Now()))):
		}
		r.send(ctx, s)
	}
}

// send hands a step on. A refused one is not sent again: the next step holds
// newer state.
func (r *csvReplay) send(ctx context.Context, s *step) {
	s.stamp(time.Now())
	obsCtx := r.obs.StartMetricsOp(ctx)
	callCtx, cancel := context.WithTimeout(obsCtx, timeout)
	err := r.next.ConsumeMetrics(callCtx, s.md)
	cancel()
	r.obs.EndMetricsOp(obsCtx, "csv", len(s.points), err)
	r.steps++
	if err == nil {
		return
	}
	r.refused++
	if ctx.Err() == nil {
		r.logger.Warn("the next consumer refused a step; the next one goes on with newer state", zap.Error(err))
	}
}

// skip counts a row or a cell that is left out, and names its line.
func (r *csvReplay) skip(line int, why reason, err error) {
	r.skipped++
	r.telemetry.ReceiverCsvReplaySkipped.Add(context.Background(), 1, metric.WithAttributes(attribute.String("reason", string(why))))
	r.logger.Warn("row or cell skipped", zap.Int("line", line), zap.String("reason", string(why)), zap.Error(err))
}

// finish is the closing line: the end, or a file that cannot be read.
func (r *csvReplay) finish(ctx context.Context, err error) {
	fields := []zap.Field{zap.Int64("steps", r.steps), zap.Int64("refused", r.refused), zap.Int64("skipped", r.skipped)}
	switch {
	case ctx.Err() != nil: // a shutdown
	case err != nil:
		r.logger.Error("replay ended: the recording cannot be read further", append(fields, zap.Error(err))...)
		componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
	case r.steps == 0:
		r.logger.Warn("replay finished without a step: every row was skipped", fields...)
	default:
		r.logger.Info("replay finished", fields...)
	}
}

// NewFactory returns the factory of the csv_replay receiver.
func NewFactory() receiver.Factory {
	return receiver.NewFactory(
		metadata.Type,
		createDefaultConfig,
		receiver.WithMetrics(func(_ context.Context, set receiver.Settings, cfg component.Config, next consumer.Metrics) (receiver.Metrics, error) {
			return newReceiver(set, cfg.(*Config), next)
		}, metadata.MetricsStability),
	)
}

// pacer computes when a step is due.
type pacer struct {
	speed float64

	due  time.Time // zero before the first step
	last time.Time
	gap  time.Duration // the last gap, of the replay
}

// next returns when the step at the recording's time at is due. It keeps the schedule over small
// delays, but after one of more than a gap it starts from now: a consumer that was slow gets
// no burst of old states.
func (p *pacer) next(at, now time.Time) time.Time {
	switch {
	case p.due.IsZero():
		p.gap = p.scale(time.Second)
		p.due = now.Add(-p.gap)
	case at.After(p.last):
		p.gap = p.scale(at.Sub(p.last))
	} // else the recording has started over: its end and beginning are as far apart as the last two steps
	p.last, p.due = at, p.due.Add(p.gap)
	if now.Sub(p.due) > p.gap {
		p.due = now
	}
	return p.due
}

func (p *pacer) scale(d time.Duration) time.Duration {
	// About 146 years: far from overflow in time arithmetic.
	return time.Duration(min(float64(d)/p.speed, 1<<62))
}
