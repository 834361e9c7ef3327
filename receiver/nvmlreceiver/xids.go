// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"maps"
	"math"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

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
	strange map[string]int // by UUID, series of codes that the rubric does not know
}

type xidSeries struct {
	uuid, parent string
	code         uint64
}

// add counts the event; known tells that the rubric knows its code. The GPUs
// are bounded by those that the poller has registered for events.
func (x *xids) add(ev *gpuhealth.XidEvent, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.counts == nil {
		x.counts, x.strange = map[xidSeries]int64{}, map[string]int{}
	}
	series := xidSeries{ev.UUID, ev.Parent, ev.Code}
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
}

// all returns the counts so far.
func (x *xids) all() map[xidSeries]int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return maps.Clone(x.counts)
}
