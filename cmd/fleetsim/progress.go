// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
)

// How often progress is shown: in place on a terminal, as lines elsewhere.
const (
	barEvery  = 500 * time.Millisecond
	lineEvery = 10 * time.Second
)

// showProgress tells of a run until it is stopped.
func showProgress(p *fleetpush.Pusher, of time.Duration, to io.Writer) (stop func()) {
	begin := time.Now()
	every, show := lineEvery, func() { _, _ = fmt.Fprintln(to, progress(p, begin)) }
	last := func() {}
	if terminal(to) {
		most := int64(-1) // without an end
		if of > 0 {
			most = int64(of)
		}
		bar := progressbar.NewOptions64(most, progressbar.OptionSetWriter(to), progressbar.OptionSetWidth(20),
			progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false), progressbar.OptionClearOnFinish())
		every, show = barEvery, func() {
			bar.Describe(progress(p, begin))
			_ = bar.Set64(min(int64(time.Since(begin)), max(most, 0))) // a terminal that is gone
		}
		last = func() { _ = bar.Finish() }
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				last()
				return
			case <-ticker.C:
				show()
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progress is one line about the run so far.
func progress(p *fleetpush.Pusher, begin time.Time) string {
	r := p.Report()
	return fmt.Sprintf("%s: %d pushes, %d refused, %d skipped, p99 %.1f ms, %d of %d nodes know a threshold",
		time.Since(begin).Round(time.Second), r.Pushes, r.Pushes-r.Accepted,
		r.Skipped["late"]+r.Skipped["busy"]+r.Skipped["told"], 1000*r.Latency.P99, r.NodesWithThreshold, r.Nodes)
}
