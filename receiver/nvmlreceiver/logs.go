// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/platform/logsink"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/metadata"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

// maxLogsQueued bounds what waits for a pipeline that is slow. A storm of Xids
// is counted in hw.gpu.xid.events all the same.
const maxLogsQueued = 256

// logs makes the log records.
type logs struct {
	sink     *logsink.Sink // nil: there is no logs pipeline
	resource pcommon.Resource
	version  string
	now      func() time.Time
}

// record queues one log record that fill completes.
func (l *logs) record(at time.Time, name string, severity plog.SeverityNumber, fill func(plog.LogRecord)) {
	if l.sink == nil {
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
	l.sink.Offer(ld)
}

// xid logs one Xid event with what the catalogue has of its code.
func (l *logs) xid(ev *gpuhealth.XidEvent, xid *gpuhealth.Xid) {
	l.record(ev.Time, gpusemconv.EventXid, xidSeverity(xid), func(lr plog.LogRecord) {
		lr.Body().SetStr(fmt.Sprintf("Xid %d on %s", ev.Code, ev.UUID))
		a := lr.Attributes()
		a.PutStr(gpusemconv.AttrHWID, ev.UUID)
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
	state := gpuhealth.StateOf(xid.Cap)
	if state == gpuhealth.StateHealthy && xid.Class == gpuhealth.XidApplication {
		return plog.SeverityNumberWarn
	}
	return severityOf(state)
}

func severityOf(state gpuhealth.State) plog.SeverityNumber {
	switch state {
	case gpuhealth.StateHealthy:
		return plog.SeverityNumberInfo
	case gpuhealth.StateUnhealthy:
		return plog.SeverityNumberError
	default:
		return plog.SeverityNumberWarn
	}
}

// health logs that a GPU went from one state to another. An acknowledgement, or a new
// board at its address, ends a state too. A GPU that is well when it is first seen is
// not logged.
func (l *logs) health(s *gpuhealth.Sample, v *gpuhealth.Verdict, cause roster.Cause) {
	if cause == "" && (!v.Changed || v.Previous == "" && v.State == gpuhealth.StateHealthy) {
		return
	}
	at := v.Since
	if !v.Changed {
		at = l.now()
	}
	l.record(at, gpusemconv.EventHealthChange, severityOf(v.State), func(lr plog.LogRecord) {
		a := lr.Attributes()
		a.PutStr(gpusemconv.AttrHWID, s.UUID)
		putText(a, gpusemconv.AttrHWParent, s.Parent)
		putText(a, gpusemconv.AttrHealthFrom, string(v.Previous))
		a.PutStr(gpusemconv.AttrHealthTo, string(v.State))
		if v.Score.OK {
			a.PutInt(gpusemconv.AttrHealthScore, int64(v.Score.V))
		}
		reasons, actions := a.PutEmptySlice(gpusemconv.AttrHealthReasons), a.PutEmptySlice(gpusemconv.AttrHealthActions)
		var names []string
		add := func(reason string, action gpuhealth.Action) {
			reasons.AppendEmpty().SetStr(reason)
			actions.AppendEmpty().SetStr(string(action))
			names = append(names, reason)
		}
		if cause != "" {
			add(string(cause), gpuhealth.ActionNone)
		}
		for _, r := range v.Reasons {
			add(r.Reason, r.Action)
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

const (
	// maxStrangeXids bounds the series of one GPU for codes that the rubric does
	// not know: a code that is garbage may be any number. Those that it knows
	// are few, and always have room.
	maxStrangeXids = 64
	// otherXid counts the codes beyond a GPU's series. As the signed attribute it is
	// -1, which no Xid is.
	otherXid = math.MaxUint64
)

// xids counts the Xid events. They come from the driver's own goroutine at any time.
type xids struct {
	mu      sync.Mutex
	counts  map[xidSeries]int64
	last    map[string]int64 // the code, by UUID
	strange map[string]int   // by UUID, series of codes that the rubric does not know
}

type xidSeries struct {
	uuid string
	code uint64
}

// add counts the event; known: the rubric knows its code. The GPUs
// are bounded by those that the poller has registered for events.
func (x *xids) add(ev *gpuhealth.XidEvent, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts == nil {
		x.counts, x.last, x.strange = map[xidSeries]int64{}, map[string]int64{}, map[string]int{}
	}
	series := xidSeries{ev.UUID, ev.Code}
	if ev.Code > math.MaxInt64 {
		series.code = otherXid
	}
	if _, seen := x.counts[series]; !seen && !known && series.code != otherXid {
		if x.strange[ev.UUID] < maxStrangeXids {
			x.strange[ev.UUID]++
		} else {
			series.code = otherXid
		}
	}
	x.counts[series]++
	x.last[ev.UUID] = int64(series.code)
}

// all returns the counts so far, and the last code of each GPU.
func (x *xids) all() (counts map[xidSeries]int64, last map[string]int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.counts), maps.Clone(x.last)
}
