// SPDX-License-Identifier: Apache-2.0

// Package heap says, for tests, what is on the heap.
package heap

import "runtime"

// Live is what is on the heap once garbage is collected, in bytes. It grows by what a
// test makes and keeps, as long as nothing else runs.
func Live() int {
	runtime.GC()
	runtime.GC() // what pools had kept through the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
