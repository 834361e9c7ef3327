// SPDX-License-Identifier: Apache-2.0

package fleetapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleetstate"
	"github.com/gpu-collector/gpu-collector/internal/nodescore/nodesignal"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// largeFleet has nodes of 8 GPUs, one in a thousand of them a straggler.
func largeFleet(a *API, nodes int) {
	for i := range nodes {
		report(a, i, 0)
	}
}

// report is what a node of 8 GPUs says at a tick.
func report(a *API, i, tick int) {
	put(a, fmt.Sprint("cluster-", i%4), fmt.Sprintf("node-%05d", i), t0, func(u *fleetstate.Update) {
		u.SetGroup(fmt.Sprint("group-", i%500))
		u.SetState("active", true)
		u.Set(reading.NodeHealthScore, 0.95+float64(tick%10)/1000)
		u.Set(reading.NodeSuspicion, float64(i%100)/200)
		if i%1000 == 0 {
			u.Set(reading.NodeStraggler, 1)
		}
		u.SetSignal(nodesignal.Throughput, 1)
		for g := range 8 {
			j := u.GPU(uuids[g])
			u.SetHealth(j, fleetstate.Healthy, true)
			u.SetGPU(j, reading.Utilization, float64(i%100)/100)
			u.SetGPU(j, reading.Temperature, float64(50+(tick+g)%30))
			u.SetGPU(j, reading.Power, 600)
		}
	})
}

var uuids = [8]string{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7"}

// BenchmarkNodesPage asks for pages of 100 of 50,000 nodes while the nodes
// report on, 5,000 of them per second: each once in ten seconds.
func BenchmarkNodesPage(b *testing.B) {
	const nodes = 50_000
	a := newAPI(nil)
	largeFleet(a, nodes)
	for name, query := range map[string]string{
		"first":     "?limit=100",
		"last":      "?limit=100&page=500",
		"cluster":   "?limit=100&page=50&cluster=cluster-2",
		"names":     "?limit=100&names=node-049*",
		"straggler": "?limit=100&straggler=true",
		"usage":     "?limit=100&page=100&min_usage=0.5",
	} {
		b.Run(name, func(b *testing.B) {
			ctx, stop := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			wg.Go(func() { ingest(ctx, a, nodes, 5000, nil) })
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				began := time.Now()
				w := httptest.NewRecorder()
				a.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/nodes"+query, http.NoBody))
				if w.Code != http.StatusOK {
					b.Fatal(w.Body)
				}
				took = append(took, time.Since(began))
			}
			stop()
			wg.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// ingest has nodes report at a rate, until the context ends, and hands on how
// long each report took.
func ingest(ctx context.Context, a *API, nodes, perSecond int, took func(time.Duration)) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for range perSecond / 100 {
			began := time.Now()
			report(a, n%nodes, n/nodes+1)
			if took != nil {
				took(time.Since(began))
			}
			n++
		}
	}
}

// BenchmarkIngestWithStreams measures the cost of a report of 8 GPUs while
// clients watch 1,000 nodes. Each client selects 20 nodes.
func BenchmarkIngestWithStreams(b *testing.B) {
	const nodes = 1000
	for _, clients := range []int{0, 1000} {
		b.Run(fmt.Sprint(clients, " clients"), func(b *testing.B) {
			a := newAPI(func(o *Options) { o.Feed = fleetstate.NewFeed(o.Store, clients) })
			largeFleet(a, nodes)
			srv := httptest.NewServer(a)
			ctx, stop := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			var received atomic.Int64
			ready := make(chan struct{}, clients)
			client := &http.Client{Transport: &http.Transport{}}
			for c := range clients {
				wg.Go(func() {
					req, _ := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/api/v1/observe?names=node-%04d*", srv.URL, c%100), http.NoBody)
					resp, err := client.Do(req)
					if err != nil {
						b.Error(err)
						ready <- struct{}{}
						return
					}
					ready <- struct{}{}
					n, _ := io.Copy(io.Discard, resp.Body)
					received.Add(n)
					_ = resp.Body.Close()
				})
			}
			for range clients {
				<-ready
			}
			wg.Go(func() {
				tick := time.NewTicker(time.Second)
				defer tick.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case now := <-tick.C:
						a.o.Feed.Advance(now)
					}
				}
			})
			var took []time.Duration
			b.ResetTimer()
			for b.Loop() {
				// 1,000 nodes that report every second, for three seconds.
				span, end := context.WithTimeout(ctx, 3*time.Second)
				ingest(span, a, nodes, 1000, func(d time.Duration) { took = append(took, d) })
				end()
			}
			stop()
			a.Close()
			wg.Wait()
			srv.Close()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns/report")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds()), "p99-ns/report")
			b.ReportMetric(float64(received.Load())/1e6, "MB-to-clients")
		})
	}
}
