// SPDX-License-Identifier: Apache-2.0

//go:build race

package delta

// The race detector makes sync.Pool drop items at random, so allocations cannot
// be counted under it.
const raceEnabled = true
