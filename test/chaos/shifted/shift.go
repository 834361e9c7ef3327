// SPDX-License-Identifier: Apache-2.0

//go:build shifted

package main

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// init shifts the wall clock by the seconds in the file of CHAOS_CLOCK, each time the
// file changes. scripts/shifted.sh builds this into a collector, with a time package
// that has Shift.
func init() {
	go func() {
		for {
			if text, err := os.ReadFile(os.Getenv("CHAOS_CLOCK")); err == nil {
				if by, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
					atomic.StoreInt64(&time.Shift, by)
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
}
