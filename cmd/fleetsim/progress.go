// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// lineEvery is how often a line tells of the progress.
const lineEvery = 10 * time.Second

// showProgress tells of a run until it is stopped.
func showProgress(p *fleetpush.Pusher, to io.Writer) (stop func()) {
	begin := time.Now()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(lineEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				_, _ = fmt.Fprintln(to, progress(p, begin))
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// progress is one line about the run so far.
func progress(p *fleetpush.Pusher, begin time.Time) string {
	r := p.Report()
	return fmt.Sprintf("%s: %d pushes, %d refused, %d skipped, p99 %.1f ms, %d of %d nodes know a threshold",
		time.Since(begin).Round(time.Second), r.Pushes, r.Pushes-r.Accepted,
		r.Skipped["late"]+r.Skipped["busy"]+r.Skipped["told"], 1000*r.Latency.P99, r.NodesWithThreshold, r.Nodes)
}
