// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"cmp"
	"math"
	"slices"
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

type xidCount struct {
	xidSeries
	count int64
}

// all returns the counts, in an order that does not change.
func (x *xids) all() []xidCount {
	x.mu.Lock()
	all := make([]xidCount, 0, len(x.counts))
	for series, count := range x.counts {
		all = append(all, xidCount{series, count})
	}
	x.mu.Unlock()
	slices.SortFunc(all, func(a, b xidCount) int {
		return cmp.Or(cmp.Compare(a.uuid, b.uuid), cmp.Compare(a.parent, b.parent), cmp.Compare(a.code, b.code))
	})
	return all
}
