// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
	"github.com/gpu-collector/gpu-collector/test/process"
)

const (
	// interval of the pushes, a tenth of the shipped one.
	interval = time.Second
	// pushTimeout ends a push that hangs. An agent answers by itself, at once.
	pushTimeout = time.Minute

	cluster     = "lab"
	gpusPerNode = 2
)

// fleet is the workload side: nodes that push their whole state to their agents.
type fleet struct {
	rnd    *rand.Rand
	agents []*feed
	last   time.Time // when it pushed

	mu      sync.Mutex
	slow    int           // the node that is slow by a quarter, -1 for none
	longest time.Duration // a push took
	late    int           // beats with a push that took longer than latePush
	expired int           // pushes that their timeout ended
}

type feed struct {
	conn  *grpc.ClientConn
	nodes []*simNode
}

type simNode struct {
	index  int
	joules [gpusPerNode]float64 // since started
}

// newFleet returns a fleet of so many nodes behind each of the agents' addresses.
func newFleet(t *testing.T, rnd *rand.Rand, addrs []string, nodes []int) *fleet {
	t.Helper()
	f := &fleet{rnd: rnd, slow: -1}
	index := 0
	for i, addr := range addrs {
		reconnect := backoff.DefaultConfig
		reconnect.MaxDelay = interval // a workload's agent is on the same node
		feed := &feed{conn: process.Dial(t, addr, grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: interval}))}
		for range nodes[i] {
			feed.nodes = append(feed.nodes, &simNode{index: index})
			index++
		}
		f.agents = append(f.agents, feed)
	}
	return f
}

func nodeName(i int) string { return fmt.Sprintf("node-%02d", i) }

// push has every node's state change and pushes all of it, whatever becomes of
// the pushes. It reports whether all agents took theirs. It keeps the pace: of
// reports that follow faster an agent does not score each. Nobody calls it while
// a beat runs.
func (f *fleet) push(ctx context.Context) bool {
	time.Sleep(time.Until(f.last.Add(interval)))
	f.last = time.Now()
	f.mu.Lock()
	reports := make([]pmetric.Metrics, len(f.agents))
	for i, feed := range f.agents {
		reports[i] = f.report(feed.nodes)
	}
	f.mu.Unlock()
	var all sync.WaitGroup
	refused, late := make([]bool, len(f.agents)), false
	for i, feed := range f.agents {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, pushTimeout)
			defer cancel()
			began := time.Now()
			_, err := process.Export(ctx, feed.conn, reports[i])
			took := time.Since(began)
			f.mu.Lock()
			defer f.mu.Unlock()
			f.longest = max(f.longest, took)
			late = late || took > latePush
			if status.Code(err) == codes.DeadlineExceeded {
				f.expired++
			}
			refused[i] = err != nil
		})
	}
	all.Wait()
	if late {
		f.mu.Lock()
		f.late++
		f.mu.Unlock()
	}
	return !slices.Contains(refused, true)
}

// beat pushes at every interval until it is stopped.
func (f *fleet) beat() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			f.push(context.Background())
		}
	})
	return func() {
		cancel()
		done.Wait()
	}
}

// setSlow makes one node's steps longer by a quarter, none's with -1.
func (f *fleet) setSlow(node int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.slow = node
}

var started = time.Now()

func (f *fleet) report(nodes []*simNode) pmetric.Metrics {
	md := pmetric.NewMetrics()
	for _, n := range nodes {
		metrics := process.Node(md, nodeName(n.index), "k8s.cluster.name", cluster, "gpu.job.id", "job", "gpu.job.role", "worker")
		factor := 1.0
		if f.slow == n.index {
			factor = 1.25
		}
		// Steps of one job scatter by a percent or so.
		process.Gauge(metrics, "gpu.app.step.duration", "s", factor*(1+0.01*f.rnd.NormFloat64()))
		// Never changes after the start: only full state brings it back.
		process.Gauge(metrics, "hw.gpu.devices", "{gpu}", gpusPerNode, gpusemconv.AttrState, "expected")
		for i := range n.joules {
			watts := 600 + 10*f.rnd.NormFloat64()
			n.joules[i] += watts * interval.Seconds()
			of := []string{"hw.id", fmt.Sprintf("GPU-%02d-%d", n.index, i), "hw.type", "gpu"}
			process.Gauge(metrics, "hw.temperature", "Cel", float64(60+f.rnd.IntN(2)), append(of, "hw.sensor_location", "gpu")...)
			process.Gauge(metrics, "hw.power", "W", watts, of...)
			process.Gauge(metrics, "hw.gpu.utilization", "1", 1, append(of, "hw.gpu.task", "general")...)
			process.Gauge(metrics, "hw.status", "", 1, append(of, "hw.state", "ok")...)
			counter(process.Gauge(metrics, "hw.energy", "J", n.joules[i], of...), metrics)
			counter(process.Gauge(metrics, "hw.errors", "{error}", 0, append(of, "error.type", "corrected")...), metrics)
		}
	}
	return md
}

// counter turns the last metric, a gauge with the point, into a sum.
func counter(p pmetric.NumberDataPoint, metrics pmetric.MetricSlice) {
	point := pmetric.NewNumberDataPoint()
	p.CopyTo(point)
	point.SetStartTimestamp(pcommon.NewTimestampFromTime(started))
	s := metrics.At(metrics.Len() - 1).SetEmptySum()
	s.SetIsMonotonic(true)
	s.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
	point.MoveTo(s.DataPoints().AppendEmpty())
}

// waits returns the longest push since the last call, the number of late beats, and
// the number of pushes that ended without an answer.
func (f *fleet) waits() (longest time.Duration, late, expired int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	longest, late, expired = f.longest, f.late, f.expired
	f.longest, f.late, f.expired = 0, 0, 0
	return longest, late, expired
}
