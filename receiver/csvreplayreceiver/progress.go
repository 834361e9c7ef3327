// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/replay"
)

const (
	// maxSkipLines is how many skipped rows are named in the log; more are counted only.
	maxSkipLines = 10
	// refusalLogInterval is the least time between two lines on refused batches.
	refusalLogInterval = 10 * time.Second
)

// progress counts what happens and tells it in log lines and telemetry. Like
// the replay it belongs to one goroutine.
type progress struct {
	logger    *zap.Logger
	telemetry *metadata.TelemetryBuilder
	reasons   map[replay.Reason]metric.AddOption

	began  time.Time
	size   int64
	ticker *time.Ticker
	passes int

	rows, steps, refused int64
	skipped              map[string]int64
	unknown              map[string]struct{}
	skipLines, cutLines  int

	// Of the current pass.
	seen                  replay.Stats
	firstSent, lastSent   time.Time
	firstBytes, sentBytes int64

	refusalLogged   time.Time
	refusalsSkipped int
}

func newProgress(logger *zap.Logger, telemetry *metadata.TelemetryBuilder) progress {
	p := progress{
		logger:    logger,
		telemetry: telemetry,
		reasons:   make(map[replay.Reason]metric.AddOption),
		skipped:   make(map[string]int64),
		unknown:   make(map[string]struct{}),
	}
	for _, reason := range replay.Reasons() {
		p.reasons[reason] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason.String())))
	}
	return p
}

func (p *progress) begin(interval time.Duration, size int64) {
	p.began, p.size = time.Now(), size
	if interval > 0 {
		p.ticker = time.NewTicker(interval)
	}
	p.logger.Info("replay begins", zap.Int64("bytes", size))
}

func (p *progress) stop() {
	if p.ticker != nil {
		p.ticker.Stop()
	}
}

func (p *progress) beginPass() {
	p.passes++
	p.seen = replay.Stats{}
	p.firstSent, p.lastSent = time.Time{}, time.Time{}
	p.firstBytes, p.sentBytes = 0, 0
}

// tick never fires where progress lines are off.
func (p *progress) tick() <-chan time.Time {
	if p.ticker == nil {
		return nil
	}
	return p.ticker.C
}

// poll logs if a line is due, for a replay that never waits.
func (p *progress) poll() {
	select {
	case <-p.tick():
		p.log()
	default:
	}
}

// read takes over what the reader has skipped since the last call.
func (p *progress) read(ctx context.Context, stats *replay.Stats) {
	for _, reason := range replay.Reasons() {
		if n := stats.Skipped[reason] - p.seen.Skipped[reason]; n > 0 {
			p.telemetry.ReceiverCsvReplaySkippedRows.Add(ctx, n, p.reasons[reason])
			p.skipped[reason.String()] += n
		}
	}
	p.seen.Skipped = stats.Skipped
	// The reader bounds the names of one pass, and every pass has the same.
	if len(p.unknown) < len(stats.Unknown) {
		for name := range stats.Unknown {
			p.unknown[name] = struct{}{}
		}
	}
}

func (p *progress) sent(ctx context.Context, bytes int64) {
	p.steps++
	p.telemetry.ReceiverCsvReplaySteps.Add(ctx, 1)
	p.lastSent, p.sentBytes = time.Now(), bytes
	if p.firstSent.IsZero() {
		p.firstSent, p.firstBytes = p.lastSent, bytes
	}
}

func (p *progress) handedOn(ctx context.Context, rows int, err error) {
	if err == nil {
		p.rows += int64(rows)
		p.telemetry.ReceiverCsvReplayRows.Add(ctx, int64(rows))
		return
	}
	p.refused += int64(rows)
	p.telemetry.ReceiverCsvReplayRefusedRows.Add(ctx, int64(rows))
	if ctx.Err() != nil {
		return
	}
	if now := time.Now(); p.refusalLogged.IsZero() || now.Sub(p.refusalLogged) >= refusalLogInterval {
		p.logger.Warn("the next consumer refused a batch; the next step goes on with newer state",
			zap.Error(err), zap.Int("rows", rows), zap.Int("refusals_not_logged", p.refusalsSkipped))
		p.refusalLogged, p.refusalsSkipped = now, 0
		return
	}
	p.refusalsSkipped++
}

func (p *progress) onSkip(line int64, reason replay.Reason, detail string) {
	p.skipLines++
	if p.skipLines > maxSkipLines {
		return
	}
	p.logger.Warn("row skipped", zap.Int64("line", line), zap.Stringer("reason", reason), zap.String("detail", detail))
	if p.skipLines == maxSkipLines {
		p.logger.Warn("further skipped rows are only counted", zap.Int("logged", maxSkipLines))
	}
}

func (p *progress) onCut(cut time.Duration) {
	if p.cutLines++; p.cutLines <= maxSkipLines {
		p.logger.Info("a pause in the recording was shortened to `max_gap`", zap.Duration("cut", cut))
	}
}

// left estimates the rest of the pass from the bytes sent and the time they took.
func (p *progress) left(now time.Time) (time.Duration, bool) {
	bytes := p.sentBytes - p.firstBytes
	if p.firstSent.IsZero() || bytes <= 0 {
		return 0, false
	}
	rest := float64(p.lastSent.Sub(p.firstSent)) * float64(p.size-p.sentBytes) / float64(bytes)
	return max(0, time.Duration(rest)-now.Sub(p.lastSent)), true
}

func (p *progress) log() {
	fields := p.totals()
	percent := 100.0
	if p.size > 0 {
		percent = min(100, 100*float64(p.sentBytes)/float64(p.size))
	}
	fields = append(fields, zap.String("done", fmt.Sprintf("%.1f%%", percent)))
	if left, ok := p.left(time.Now()); ok {
		fields = append(fields, zap.Duration("time_left", left.Round(time.Second)))
	}
	p.logger.Info("replay progress", fields...)
}

// finish is the closing line: the end, a stop, or a file that cannot be read.
func (p *progress) finish(ctx context.Context, err error) {
	fields := append(p.totals(), zap.Duration("took", time.Since(p.began)))
	if len(p.skipped) > 0 {
		fields = append(fields, zap.Any("skipped_by_reason", p.skipped))
	}
	if len(p.unknown) > 0 {
		fields = append(fields, zap.Strings("unknown_metrics", slices.Sorted(maps.Keys(p.unknown))))
	}
	switch {
	case ctx.Err() != nil:
		p.logger.Info("replay stopped before its end", fields...)
	case err != nil:
		p.logger.Error("replay ended: the recording cannot be read further", append(fields, zap.Error(err))...)
	case p.steps == 0:
		p.logger.Warn("replay finished without a step: every row was skipped or lies before `start_offset`", fields...)
	default:
		p.logger.Info("replay finished", fields...)
	}
}

func (p *progress) totals() []zap.Field {
	var skipped int64
	for _, n := range p.skipped {
		skipped += n
	}
	return []zap.Field{
		zap.Int64("rows", p.rows), zap.Int64("skipped", skipped), zap.Int64("refused", p.refused),
		zap.Int64("steps", p.steps), zap.Int("pass", p.passes),
	}
}
