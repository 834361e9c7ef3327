// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// maxLogsQueued bounds what waits for a pipeline that is slow. A storm of Xids
// is counted in hw.gpu.xid.events all the same.
const maxLogsQueued = 256

// logSink hands log records to the pipeline from a goroutine of its own: who
// reports an Xid must not wait, and a scrape should not.
type logSink struct {
	next     consumer.Logs // nil: there is no logs pipeline
	resource pcommon.Resource
	version  string
	log      *zap.Logger
	dropped  func()
	now      func() time.Time

	queue chan plog.Logs
	stop  chan struct{}
	done  chan struct{}
}

func (l *logSink) start() {
	if l.next == nil {
		return
	}
	l.queue, l.stop, l.done = make(chan plog.Logs, maxLogsQueued), make(chan struct{}), make(chan struct{})
	go l.run()
}

func (l *logSink) run() {
	defer close(l.done)
	for {
		select {
		case ld := <-l.queue:
			l.consume(context.Background(), ld)
		case <-l.stop:
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			for len(l.queue) > 0 && ctx.Err() == nil {
				l.consume(ctx, <-l.queue)
			}
			return
		}
	}
}

func (l *logSink) consume(ctx context.Context, ld plog.Logs) {
	if err := l.next.ConsumeLogs(ctx, ld); err != nil {
		l.dropped()
		l.log.Debug("the pipeline refused a log record", zap.Error(err))
	}
}

// shutdown hands on what is queued, and does not wait long for it.
func (l *logSink) shutdown() {
	if l.done == nil {
		return
	}
	close(l.stop)
	select {
	case <-l.done:
	case <-time.After(2 * closeTimeout):
	}
}

// record queues one log record that fill completes.
func (l *logSink) record(at time.Time, name string, severity plog.SeverityNumber, fill func(plog.LogRecord)) {
	if l.queue == nil {
		return
	}
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	l.resource.CopyTo(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(l.version)
	lr := sl.LogRecords().AppendEmpty()
	lr.SetTimestamp(pcommon.NewTimestampFromTime(at))
	lr.SetObservedTimestamp(pcommon.NewTimestampFromTime(l.now()))
	lr.SetEventName(name)
	lr.SetSeverityNumber(severity)
	lr.SetSeverityText(severity.String())
	fill(lr)
	select {
	case l.queue <- ld:
	default:
		l.dropped()
	}
}

// xid logs one Xid event with what the catalogue says of its code.
func (l *logSink) xid(ev *gpuhealth.XidEvent, xid *gpuhealth.Xid) {
	l.record(ev.Time, gpusemconv.EventXid, xidSeverity(xid), func(lr plog.LogRecord) {
		lr.Body().SetStr(fmt.Sprintf("Xid %d on %s", ev.Code, ev.UUID))
		a := lr.Attributes()
		a.PutStr(gpusemconv.AttrHWID, ev.UUID)
		putText(a, gpusemconv.AttrHWParent, ev.Parent)
		a.PutInt(gpusemconv.AttrXIDCode, int64(ev.Code))
		a.PutStr(gpusemconv.AttrXIDClass, string(xid.Class))
		putText(a, gpusemconv.AttrXIDImmediateAction, xid.Immediate)
		a.PutStr(gpusemconv.AttrHealthAction, string(xid.Action))
		if ev.GPUInstance.OK {
			a.PutInt(gpusemconv.AttrGPUInstance, int64(ev.GPUInstance.V))
		}
		if ev.ComputeInstance.OK {
			a.PutInt(gpusemconv.AttrComputeInstance, int64(ev.ComputeInstance.V))
		}
	})
}

// xidSeverity follows the effect on the health. An application that died is
// worth a warning, whatever the GPU thinks of it.
func xidSeverity(xid *gpuhealth.Xid) plog.SeverityNumber {
	switch state := gpuhealth.StateOf(xid.Cap); {
	case state == gpuhealth.StateUnhealthy:
		return plog.SeverityNumberError
	case state == gpuhealth.StateDegraded, xid.Class == gpuhealth.XidApplication:
		return plog.SeverityNumberWarn
	default:
		return plog.SeverityNumberInfo
	}
}

// health logs that a GPU went from one state to another. An operator's word, or a
// new board in its place, ends a state too. A GPU that is well when it is first
// seen is no news.
func (l *logSink) health(s *gpuhealth.Sample, v *gpuhealth.Verdict, cause roster.Cause) {
	if cause == "" && (!v.Changed || v.Previous == "" && v.State == gpuhealth.StateHealthy) {
		return
	}
	at := v.Since
	if !v.Changed {
		at = l.now()
	}
	severity := plog.SeverityNumberWarn
	switch v.State {
	case gpuhealth.StateHealthy:
		severity = plog.SeverityNumberInfo
	case gpuhealth.StateUnhealthy:
		severity = plog.SeverityNumberError
	}
	l.record(at, gpusemconv.EventHealthChange, severity, func(lr plog.LogRecord) {
		a := lr.Attributes()
		a.PutStr(gpusemconv.AttrHWID, s.UUID)
		putText(a, gpusemconv.AttrHWParent, s.Parent)
		putText(a, gpusemconv.AttrHealthFrom, string(v.Previous))
		a.PutStr(gpusemconv.AttrHealthTo, string(v.State))
		if v.Score.OK {
			a.PutInt(gpusemconv.AttrHealthScore, int64(v.Score.V))
		}
		reasons, actions := a.PutEmptySlice(gpusemconv.AttrHealthReasons), a.PutEmptySlice(gpusemconv.AttrHealthActions)
		names := make([]string, 0, len(v.Reasons)+1)
		if cause != "" {
			reasons.AppendEmpty().SetStr(string(cause))
			actions.AppendEmpty().SetStr(string(gpuhealth.ActionNone))
			names = append(names, string(cause))
		}
		for _, r := range v.Reasons {
			reasons.AppendEmpty().SetStr(r.Reason)
			actions.AppendEmpty().SetStr(string(r.Action))
			names = append(names, r.Reason)
		}
		text := fmt.Sprintf("%s is %s", s.UUID, v.State)
		if len(names) > 0 {
			text += ": " + strings.Join(names, ", ")
		}
		lr.Body().SetStr(text)
	})
}

func putText(a pcommon.Map, key, text string) {
	if text != "" {
		a.PutStr(key, text)
	}
}
