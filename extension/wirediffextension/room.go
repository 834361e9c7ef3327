// SPDX-License-Identifier: Apache-2.0

package wirediffextension

import (
	"sync/atomic"
	"time"
)

// pause is for how long nodes of a cluster that are new wait where the pipeline behind
// had no room for one: a fraction of a flush, so that who then has room is found soon.
const pause = 250 * time.Millisecond

// room knows for which clusters the pipeline has none. To decode and compare whole
// states that find none would take the time in which it is made.
type room struct {
	until [256]atomic.Int64 // by the cluster's hash, since the extension's epoch
}

func (r *room) lacks(cluster uint64, now time.Duration) {
	r.until[cluster%uint64(len(r.until))].Store(int64(now + pause))
}

func (r *room) isLacking(cluster uint64, now time.Duration) bool {
	return int64(now) < r.until[cluster%uint64(len(r.until))].Load()
}
