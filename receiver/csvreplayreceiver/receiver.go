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
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/receiverhelper"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/replay"
)

// csvReplay replays one file from one goroutine.
type csvReplay struct {
	cfg       *Config
	logger    *zap.Logger
	next      consumer.Metrics
	telemetry *metadata.TelemetryBuilder
	obs       *receiverhelper.ObsReport
	host      component.Host

	file   *os.File
	size   int64
	reader *replay.Reader

	translator translator
	pacer      pacer
	progress   progress

	cancel context.CancelFunc
	done   chan struct{}
}

var _ receiver.Metrics = (*csvReplay)(nil)

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
	r := &csvReplay{
		cfg:        cfg,
		logger:     set.Logger.With(zap.String("path", cfg.Path)),
		next:       next,
		telemetry:  telemetry,
		obs:        obs,
		translator: translator{cluster: cfg.Cluster, version: set.BuildInfo.Version, starts: replay.NewStarts(maxSumSeries)},
		pacer:      pacer{speed: cfg.Speed, maxGap: cfg.MaxGap},
	}
	r.progress = newProgress(r.logger, telemetry)
	return r, nil
}

// Start opens the file and checks its columns, then replays in the background.
func (r *csvReplay) Start(_ context.Context, host component.Host) error {
	ctx, cancel := context.WithCancel(context.Background())
	if err := r.open(ctx); err != nil {
		cancel()
		return fmt.Errorf("csv_replay: `path` %s: %w", r.cfg.Path, err)
	}
	r.host = host
	r.cancel = cancel
	r.done = make(chan struct{})
	go func() {
		defer close(r.done)
		r.run(ctx)
	}()
	return nil
}

// Shutdown stops the replay. It works without Start, and more than once.
func (r *csvReplay) Shutdown(ctx context.Context) error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("csv_replay: the next consumer still holds a batch: %w", ctx.Err())
	}
}

func (r *csvReplay) open(ctx context.Context) (err error) {
	// Stat first: to open a named pipe would block until someone writes.
	info, err := os.Stat(r.cfg.Path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return errors.New("it is a directory, and must be a CSV file")
	case !info.Mode().IsRegular():
		return fmt.Errorf("it is no regular file (%v), and a replay must be able to start over", info.Mode().Type())
	}
	file, err := os.Open(r.cfg.Path)
	if err != nil {
		return err
	}
	if r.reader, err = r.newReader(ctx, file); err != nil {
		return errors.Join(err, file.Close())
	}
	r.file, r.size = file, info.Size()
	return nil
}

func (r *csvReplay) newReader(ctx context.Context, file *os.File) (*replay.Reader, error) {
	opts := replay.Options{
		MaxLineBytes: r.cfg.MaxLineBytes,
		MaxStepRows:  r.cfg.MaxStepRows,
		StepWindow:   r.cfg.StepWindow,
		OnSkip:       r.progress.onSkip,
	}
	in := contextReader{ctx: ctx, r: file}
	if r.cfg.Format == formatTable {
		return replay.NewTable(in, r.cfg.Table.Get().spec(), opts)
	}
	return replay.NewDCGM(in, opts)
}

func (r *csvReplay) run(ctx context.Context) {
	defer func() {
		if err := r.file.Close(); err != nil {
			r.logger.Warn("closing the recording failed", zap.Error(err))
		}
	}()
	r.progress.begin(r.cfg.ProgressInterval, r.size)
	defer r.progress.stop()
	for {
		steps, err := r.pass(ctx)
		if err == nil && r.cfg.Loop && steps > 0 {
			err = r.rewind(ctx)
			if err == nil {
				continue
			}
		}
		r.progress.finish(ctx, err)
		if err != nil && ctx.Err() == nil {
			componentstatus.ReportStatus(r.host, componentstatus.NewRecoverableErrorEvent(err))
		}
		return
	}
}

func (r *csvReplay) rewind(ctx context.Context) (err error) {
	if _, err = r.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if r.reader, err = r.newReader(ctx, r.file); err != nil {
		return err
	}
	r.pacer.rewind()
	return nil
}

// pass replays the file once and returns how many steps were sent.
func (r *csvReplay) pass(ctx context.Context) (steps int64, err error) {
	r.progress.beginPass()
	var first time.Duration
	for read := 0; ; read++ {
		step, err := r.reader.Next()
		r.progress.read(ctx, r.reader.Stats())
		switch {
		case errors.Is(err, io.EOF):
			return steps, nil
		case err != nil:
			return steps, err
		}
		if read == 0 {
			first = step.Time
		}
		if step.Time-first < r.cfg.StartOffset {
			r.progress.poll()
			continue
		}
		due, cut := r.pacer.next(step.Time, time.Now())
		if cut > 0 {
			r.progress.onCut(cut)
		}
		if err := r.wait(ctx, due); err != nil {
			return steps, err
		}
		if steps == 0 {
			r.translator.starts.Begin(time.Now())
		}
		r.send(ctx, step)
		steps++
		r.progress.sent(ctx, r.reader.Stats().Bytes)
	}
}

func (r *csvReplay) wait(ctx context.Context, due time.Time) error {
	r.progress.poll()
	delay := time.Until(due)
	if delay <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-r.progress.tick():
			r.progress.log()
		}
	}
}

// send hands a step on in batches; all of them carry the same time.
func (r *csvReplay) send(ctx context.Context, step *replay.Step) {
	now := time.Now()
	md := pmetric.NewMetrics()
	rows := 0
	for i := range step.Nodes {
		node := &step.Nodes[i]
		if rows > 0 && r.cfg.BatchSize > 0 && rows+node.Rows > r.cfg.BatchSize {
			r.consume(ctx, md, rows)
			md, rows = pmetric.NewMetrics(), 0
		}
		r.translator.appendNode(md, node, now)
		rows += node.Rows
	}
	r.consume(ctx, md, rows)
	if r.translator.dropped > 0 {
		r.telemetry.ReceiverCsvReplayDroppedPoints.Add(ctx, r.translator.dropped)
		r.translator.dropped = 0
	}
}

// consume hands a batch on. A refused one is not sent again: the next step
// holds newer state.
func (r *csvReplay) consume(ctx context.Context, md pmetric.Metrics, rows int) {
	if ctx.Err() != nil {
		return
	}
	points := md.DataPointCount()
	obsCtx := r.obs.StartMetricsOp(ctx)
	callCtx, cancel := context.WithTimeout(obsCtx, r.cfg.Timeout)
	err := r.next.ConsumeMetrics(callCtx, md)
	cancel()
	r.obs.EndMetricsOp(obsCtx, "csv", points, err)
	r.progress.handedOn(ctx, rows, err)
}

// contextReader ends a long read, as that of a large file without one good
// row, when the receiver is shut down.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
