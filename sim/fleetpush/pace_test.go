// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

type fakeSender struct {
	answer func(ctx context.Context, node string, nth int) result

	mu             sync.Mutex
	sent           map[string][]time.Time
	inFlight, most int
	closed         bool
}

func (s *fakeSender) send(ctx context.Context, _ int, h Headers, _ pmetric.Metrics) result {
	s.mu.Lock()
	if s.sent == nil {
		s.sent = map[string][]time.Time{}
	}
	s.sent[h.Node] = append(s.sent[h.Node], time.Now())
	nth := len(s.sent[h.Node])
	s.inFlight++
	s.most = max(s.most, s.inFlight)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inFlight--
	}()
	if s.answer == nil {
		return result{answered: true}
	}
	return s.answer(ctx, h.Node, nth)
}

func (s *fakeSender) close() error {
	s.closed = true
	return nil
}

// simulate runs a pusher for some time in a bubble of synctest.
func simulate(t *testing.T, nodes int, cfg PushConfig, sender *fakeSender, d time.Duration) (*Pusher, *Fleet) {
	t.Helper()
	f := newFleet(t, Config{Nodes: nodes, GPUs: 1, Step: 10 * time.Second})
	cfg.Endpoint = "127.0.0.1:1"
	p, err := NewPusher(cfg, f)
	require.NoError(t, err)
	require.NoError(t, p.sender.close())
	p.sender = sender
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	require.NoError(t, p.Run(ctx))
	assert.True(t, sender.closed)
	assert.Zero(t, sender.inFlight, "a push is on its way after the end")
	return p, f
}

func TestNodesPushEvenlySpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &fakeSender{}
		p, f := simulate(t, 20, DefaultPushConfig(), s, 59900*time.Millisecond)
		var all []time.Time
		for i := range 20 {
			at := s.sent[NodeName(i)]
			require.Len(t, at, 6)
			for k := 1; k < len(at); k++ {
				assert.Equal(t, 10*time.Second, at[k].Sub(at[k-1]), "each node has a phase of its own")
			}
			assert.EqualValues(t, 6, f.nodes[i].ticks)
			all = append(all, at...)
		}
		slices.SortFunc(all, time.Time.Compare)
		for i := 1; i < len(all); i++ {
			assert.InDelta(t, 0.5, all[i].Sub(all[i-1]).Seconds(), 0.45)
		}
		r := p.Report()
		assert.EqualValues(t, 120, r.Pushes)
		assert.EqualValues(t, 120, r.Accepted)
		assert.InDelta(t, 59.9, r.Seconds, 0.001)
	})
}

// A slow receiver makes no backlog: so many pushes are under way at most. A node
// that is late by an interval skips a turn, while its world goes on.
func TestLatePushesAreSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultPushConfig()
		cfg.InFlight = 2
		s := &fakeSender{answer: func(context.Context, string, int) result {
			time.Sleep(4 * time.Second)
			return result{answered: true}
		}}
		p, f := simulate(t, 10, cfg, s, 199*time.Second)
		assert.Equal(t, 2, s.most)
		r := p.Report()
		assert.InDelta(t, 100, r.Pushes, 4, "two at a time, 4 s each")
		assert.InDelta(t, 100, r.Skipped["late"]+r.Skipped["busy"], 12, "of 200 that were due")
		var most int64
		for i := range f.nodes {
			most = max(most, f.nodes[i].ticks)
		}
		assert.InDelta(t, 19, most, 1, "time does not stop for a node that skips")
		assert.InDelta(t, 4, r.Latency.P50, 0.01)
		assert.InDelta(t, 4, r.Latency.Max, 0.01)
	})
}

// A push that has not ended when the node's next is due keeps only that node.
func TestABusyNodeKeepsOnlyItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultPushConfig()
		cfg.Timeout = 25 * time.Second
		s := &fakeSender{answer: func(ctx context.Context, node string, _ int) result {
			if node != NodeName(3) {
				return result{answered: true}
			}
			<-ctx.Done()
			return result{err: status.FromContextError(ctx.Err()).Err()}
		}}
		p, f := simulate(t, 4, cfg, s, 119*time.Second)
		assert.Len(t, s.sent[NodeName(0)], 12)
		assert.Len(t, s.sent[NodeName(3)], 4, "every third of 12")
		r := p.Report()
		assert.Equal(t, map[string]int64{"DeadlineExceeded": 4}, r.Refusals)
		assert.EqualValues(t, 8, r.Skipped["busy"])
		assert.InDelta(t, 25, r.Latency.Max, 0.01)
		assert.False(t, f.nodes[3].reachable)
		assert.True(t, f.nodes[0].reachable)
	})
}

// A node that is asked to wait does so, also without an interval.
func TestNodesWaitAsAsked(t *testing.T) {
	for name, interval := range map[string]time.Duration{"paced": 10 * time.Second, "as fast as answers come": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultPushConfig()
				cfg.Interval = interval
				s := &fakeSender{answer: func(_ context.Context, node string, nth int) result {
					time.Sleep(time.Second)
					if node == NodeName(1) && nth == 2 {
						return result{answered: true, err: status.Error(codes.ResourceExhausted, "full"), wait: 35 * time.Second}
					}
					return result{answered: true}
				}}
				p, _ := simulate(t, 2, cfg, s, 98500*time.Millisecond)
				at := s.sent[NodeName(1)]
				require.Greater(t, len(at), 3)
				assert.GreaterOrEqual(t, at[2].Sub(at[1]), 36*time.Second)
				assert.LessOrEqual(t, at[2].Sub(at[1]), 46*time.Second)
				r := p.Report()
				assert.Equal(t, map[string]int64{"ResourceExhausted": 1}, r.Refusals)
				assert.Contains(t, r.LastError, "full")
				if interval > 0 {
					assert.EqualValues(t, 3, r.Skipped["told"])
				} else {
					assert.Len(t, s.sent[NodeName(0)], 99, "the other one goes on")
				}
			})
		})
	}
}
