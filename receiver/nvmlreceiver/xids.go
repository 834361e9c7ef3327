// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"cmp"
	"slices"
	"sync"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

// maxXidSeries bounds the counters: a code that is garbage may be any number.
const maxXidSeries = 4096

// xids counts the Xid events. They come from the driver's own goroutine at any time.
type xids struct {
	mu     sync.Mutex
	counts map[xidSeries]int64
}

type xidSeries struct {
	uuid, parent string
	code         uint64
}

// add counts the event. It returns false when there is no room for another series.
func (x *xids) add(ev *gpuhealth.XidEvent) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	series := xidSeries{ev.UUID, ev.Parent, ev.Code}
	if _, known := x.counts[series]; !known && len(x.counts) >= maxXidSeries {
		return false
	}
	if x.counts == nil {
		x.counts = map[xidSeries]int64{}
	}
	x.counts[series]++
	return true
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
