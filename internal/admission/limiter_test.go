// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newLimiter(tb testing.TB, permits int, share float64, clusters int) *Limiter {
	tb.Helper()
	l, err := New(Settings{
		Permits: permits, Bytes: 1000, ClusterShare: share, UnknownShare: 0.02, MaxClusters: clusters,
		RetryMin: time.Second, RetryMax: 5 * time.Second,
	})
	require.NoError(tb, err)
	return l
}

// greedy takes permits until refused and returns them.
func greedy(l *Limiter, cluster string) (held []*Permit, refusal error) {
	for {
		p, err := l.Acquire(cluster)
		if err != nil {
			return held, err
		}
		held = append(held, p)
	}
}

func TestSettings(t *testing.T) {
	_, err := New(Settings{Permits: 0, ClusterShare: math.NaN(), MaxClusters: 0, RetryMin: time.Millisecond, RetryMax: 0})
	require.Error(t, err)
	for _, want := range []string{"permits are 0", "bytes are 0", "cluster share is NaN", "unknown share is 0", "clusters are at most 0", "[1ms,0s]"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestShares(t *testing.T) {
	for _, tt := range []struct {
		share float64
		want  []int // what greedy clusters get one after another
	}{
		{share: 1, want: []int{1000, 0}},
		{share: 0.5, want: []int{500, 250, 125, 63, 31, 16, 8, 4, 2, 1, 0}},
		{share: 0.8, want: []int{800, 160, 32, 7, 1, 0}},
		{share: 0.001, want: []int{1, 1, 1}},
	} {
		t.Run(fmt.Sprint(tt.share), func(t *testing.T) {
			l := newLimiter(t, 1000, tt.share, 100)
			for i, want := range tt.want {
				held, err := greedy(l, "cluster-"+strconv.Itoa(i))
				assert.Len(t, held, want, "cluster %d", i)
				var refused *RefusedError
				require.ErrorAs(t, err, &refused)
				if l.Usage().InUse == 1000 {
					assert.Equal(t, ReasonPermits, refused.Reason)
				} else {
					assert.Equal(t, ReasonShare, refused.Reason)
				}
			}
		})
	}
}

// TestGreedyClustersBecomeEqual: whoever came first and took most does not keep it.
func TestGreedyClustersBecomeEqual(t *testing.T) {
	l := newLimiter(t, 1000, 0.5, 10)
	first, _ := greedy(l, "first")
	second, _ := greedy(l, "second")
	for range 1000 {
		first[0].Release()
		first = first[1:]
		more, _ := greedy(l, "second")
		second = append(second, more...)
		more, _ = greedy(l, "first")
		first = append(first, more...)
	}
	// share·n/(1+(k-1)·share) = 1000·0.5/1.5
	assert.InDelta(t, 333, len(first), 2)
	assert.InDelta(t, 333, len(second), 2)
}

func TestNoisyClusterLeavesRoom(t *testing.T) {
	l := newLimiter(t, 100, 0.5, 10)
	_, err := greedy(l, "noisy")
	require.Error(t, err)
	for range 1000 {
		_, err := l.Acquire("noisy")
		require.Error(t, err)
		p, err := l.Acquire("quiet")
		require.NoError(t, err)
		p.Release()
	}
	assert.Equal(t, []ClusterUsage{
		{Cluster: "noisy", InUse: 50, Refused: map[Reason]int64{ReasonShare: 1001}},
		{Cluster: "quiet", Refused: map[Reason]int64{}},
	}, l.Usage().Clusters)
}

func TestRetryAfterIsWholeSecondsOverTheRange(t *testing.T) {
	l := newLimiter(t, 1, 1, 1)
	_, err := l.Acquire("a")
	require.NoError(t, err)
	seen := map[time.Duration]bool{}
	for range 1000 {
		_, err := l.Acquire("a")
		var refused *RefusedError
		require.ErrorAs(t, err, &refused)
		seen[refused.RetryAfter] = true
	}
	assert.Equal(t, map[time.Duration]bool{1e9: true, 2e9: true, 3e9: true, 4e9: true, 5e9: true}, seen)
}

func TestReleaseTwice(t *testing.T) {
	l := newLimiter(t, 2, 1, 1)
	a, err := l.Acquire("a")
	require.NoError(t, err)
	_, err = l.Acquire("a")
	require.NoError(t, err)
	a.Release()
	a.Release()
	assert.Equal(t, 1, l.Usage().InUse)
	require.Error(t, a.Move("b"))
	assert.Equal(t, 1, l.Usage().InUse)
}

func TestMove(t *testing.T) {
	l := newLimiter(t, 8, 0.5, 10)
	victim, _ := greedy(l, "victim") // 4 of 8
	claimed, err := l.Acquire("liar")
	require.NoError(t, err)
	require.Error(t, claimed.Move("victim"), "the victim's share is taken")
	require.NoError(t, claimed.Move("liar"), "moving to itself is no news")
	victim[0].Release()
	require.NoError(t, claimed.Move("victim"))
	assert.Equal(t, []ClusterUsage{
		{Cluster: "liar", Refused: map[Reason]int64{}},
		{Cluster: "victim", InUse: 4, Refused: map[Reason]int64{ReasonShare: 2}},
	}, l.Usage().Clusters)
}

func TestNamesAreBounded(t *testing.T) {
	l := newLimiter(t, 100, 0.5, 2)
	a, err := l.Acquire("a")
	require.NoError(t, err)
	b, err := l.Acquire("b")
	require.NoError(t, err)
	var others []*Permit
	for i := range 1000 { // both are busy: Usage has the newcomers in one count
		if p, err := l.Acquire("new-" + strconv.Itoa(i)); err == nil {
			others = append(others, p)
		}
	}
	assert.Equal(t, []ClusterUsage{
		{Cluster: Overflow, InUse: 98, Refused: map[Reason]int64{ReasonPermits: 902}},
		{Cluster: "a", InUse: 1, Refused: map[Reason]int64{}},
		{Cluster: "b", InUse: 1, Refused: map[Reason]int64{}},
	}, l.Usage().Clusters)
	assert.Len(t, l.clusters, 100, "one for each permit")

	for _, p := range others[1:] {
		p.Release()
	}
	assert.Len(t, l.clusters, 3, "who holds nothing is forgotten")

	a.Release() // idle: makes room for who is there already
	p, err := l.Acquire("new-0")
	require.NoError(t, err)
	assert.Equal(t, []ClusterUsage{
		{Cluster: Overflow, Refused: map[Reason]int64{ReasonPermits: 902}},
		{Cluster: "b", InUse: 1, Refused: map[Reason]int64{}},
		{Cluster: "new-0", InUse: 2, Refused: map[Reason]int64{}},
	}, l.Usage().Clusters)
	for _, p := range []*Permit{p, b, others[0]} {
		p.Release()
	}
	assert.Len(t, l.clusters, 2)
}

// TestForgedNamesLeaveRoomForANewcomer: however many names hold permits, one
// more that holds nothing gets in while a permit is left.
func TestForgedNamesLeaveRoomForANewcomer(t *testing.T) {
	l := newLimiter(t, 1000, 0.5, 64)
	for i := range 776 {
		_, err := l.Acquire("forged-" + strconv.Itoa(i%388))
		require.NoError(t, err)
	}
	_, err := greedy(l, "forged-387") // a name that has no metrics of its own
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, ReasonShare, refused.Reason)
	for left := 1000 - l.Usage().InUse; left > 0; left-- {
		_, err := l.Acquire("newcomer-" + strconv.Itoa(left))
		require.NoError(t, err, "%d permits left", left)
	}
	_, err = l.Acquire("last")
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, ReasonPermits, refused.Reason)
	assert.LessOrEqual(t, len(l.Usage().Clusters), 66)
}

// TestEvictionKeepsTheTotal: the refusals of a forgotten cluster are not lost.
func TestEvictionKeepsTheTotal(t *testing.T) {
	l := newLimiter(t, 1, 1, 3)
	p, err := l.Acquire("")
	require.NoError(t, err)
	for i := range 100 {
		_, err := l.Acquire("c" + strconv.Itoa(i))
		require.Error(t, err)
	}
	p.Release()
	var total int64
	for _, c := range l.Usage().Clusters {
		total += c.Refused[ReasonPermits]
	}
	assert.Equal(t, int64(100), total)
	assert.Len(t, l.clusters, 3)
	assert.Contains(t, l.clusters, "c99")
}

// TestProperties drives the limiter with any sequence of operations beside a
// model that is a plain list.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		permits := rapid.IntRange(1, 40).Draw(t, "permits")
		share := rapid.Float64Range(0.01, 1).Draw(t, "share")
		maxClusters := rapid.IntRange(1, 6).Draw(t, "clusters")
		l, err := New(Settings{
			Permits: permits, Bytes: 1000, ClusterShare: share, UnknownShare: share, MaxClusters: maxClusters,
			RetryMin: time.Second, RetryMax: 3 * time.Second, IntN: func(int) int { return 0 },
		})
		require.NoError(t, err)
		name := rapid.SampledFrom([]string{"", Overflow, Unknown, "a", "b", "c", "d", "e", "f", "g"})
		var held []*Permit
		refusals := int64(0)
		pick := func(t *rapid.T) *Permit {
			if len(held) == 0 {
				t.Skip("none held")
			}
			return held[rapid.IntRange(0, len(held)-1).Draw(t, "permit")]
		}
		allowed := func(own, others int) bool {
			return float64(own) < share*float64(permits-others)
		}
		count := func(cluster string) (own int) {
			for _, p := range held {
				if p.bucket.name == cluster {
					own++
				}
			}
			return own
		}
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				cluster := name.Draw(t, "cluster")
				own := count(cluster)
				p, err := l.Acquire(cluster)
				want := len(held) < permits && allowed(own, len(held)-own)
				if (err == nil) != want {
					t.Fatalf("%q holds %d of %d in use: %v", cluster, own, len(held), err)
				}
				if err != nil {
					refusals++
					return
				}
				held = append(held, p)
			},
			"release": func(t *rapid.T) {
				p := pick(t)
				for range rapid.IntRange(1, 3).Draw(t, "times") {
					p.Release()
				}
				for i, q := range held {
					if q == p {
						held = append(held[:i], held[i+1:]...)
						break
					}
				}
			},
			"move": func(t *rapid.T) {
				p, cluster := pick(t), name.Draw(t, "cluster")
				own := count(cluster)
				want := p.bucket.name == cluster || allowed(own, len(held)-1-own)
				err := p.Move(cluster)
				if (err == nil) != want {
					t.Fatalf("to %q, which holds %d of %d in use: %v", cluster, own, len(held), err)
				}
				if err != nil {
					refusals++
				}
			},
			"reserve": func(t *rapid.T) {
				p, n := pick(t), rapid.Int64Range(1, 600).Draw(t, "bytes")
				var own, others int64
				for _, q := range held {
					if q.bucket == p.bucket {
						own += q.bytes
					} else {
						others += q.bytes
					}
				}
				most := int64(math.Ceil(share * float64(1000-others)))
				ok := p.Reserve(n) == nil
				if !ok {
					refusals++
				}
				if want := own+n <= most; ok != want {
					t.Fatalf("%d bytes beside %d of %d: %t", n, own, most, ok)
				}
			},
			"": func(t *rapid.T) {
				u := l.Usage()
				var bytes int64
				for _, p := range held {
					bytes += p.bytes
				}
				if u.BytesInUse != bytes {
					t.Fatalf("%d bytes in use, %d held", u.BytesInUse, bytes)
				}
				sum, counted := 0, int64(0)
				for _, c := range u.Clusters {
					sum += c.InUse
					counted += c.Refused[ReasonPermits] + c.Refused[ReasonShare] + c.Refused[ReasonBytes]
				}
				if u.InUse != len(held) || sum != len(held) || len(held) > permits {
					t.Fatalf("%d in use, %d by cluster, %d held, %d permits", u.InUse, sum, len(held), permits)
				}
				if counted != refusals {
					t.Fatalf("%d refusals counted of %d", counted, refusals)
				}
				if len(u.Clusters) > maxClusters+3 {
					t.Fatalf("%d clusters of %d are named", len(u.Clusters), maxClusters)
				}
				listed := 0
				for name, b := range l.clusters {
					if b.listed {
						listed++
					}
					if b.held != count(name) || b.held == 0 && !b.listed {
						t.Fatalf("%q holds %d of %d, listed: %t", name, b.held, count(name), b.listed)
					}
				}
				if listed != l.listed || listed > maxClusters {
					t.Fatalf("%d clusters of %d are listed, counted as %d", listed, maxClusters, l.listed)
				}
				idle := 0
				for b := l.idle.next; b != &l.idle; b = b.next {
					idle++
					if b.held != 0 || l.clusters[b.name] != b {
						t.Fatalf("%q is in the idle list and holds %d", b.name, b.held)
					}
				}
				for _, b := range l.clusters {
					if b.held == 0 {
						idle--
					}
				}
				if idle != 0 {
					t.Fatalf("the idle list is off by %d", idle)
				}
			},
		})
		for _, p := range held {
			p.Release()
		}
		if u := l.Usage(); u.InUse != 0 || u.BytesInUse != 0 {
			t.Fatalf("%d permits leaked, %d bytes", u.InUse, u.BytesInUse)
		}
	})
}

// TestTheUnknownHaveOneShare: a few permits, which those pass through who become
// known, and which no cluster misses.
func TestTheUnknownHaveOneShare(t *testing.T) {
	l := newLimiter(t, 1000, 0.5, 100)
	held, err := greedy(l, Unknown)
	assert.Len(t, held, 20)
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, ReasonShare, refused.Reason)
	require.NoError(t, held[0].Move("a"))
	next, _ := greedy(l, Unknown)
	assert.Len(t, next, 1)
	a, _ := greedy(l, "a")
	assert.Len(t, a, 489, "half of what the unknown leave, and it has one")
}

// TestBytesGoBack with the permit, and not before; after that it takes none.
func TestBytesGoBack(t *testing.T) {
	l := newLimiter(t, 10, 0.5, 3)
	a, err := l.Acquire("a")
	require.NoError(t, err)
	require.NoError(t, a.Reserve(l.MostBytes()))
	var refused *RefusedError
	require.ErrorAs(t, a.Reserve(1), &refused)
	assert.Equal(t, ReasonBytes, refused.Reason)
	require.ErrorContains(t, refused, "memory")
	b, err := l.Acquire("b")
	require.NoError(t, err)
	require.NoError(t, b.Reserve(250), "half of the rest")
	require.Error(t, b.Reserve(1))
	a.Release()
	assert.Equal(t, int64(250), l.Usage().BytesInUse)
	require.Error(t, a.Reserve(1), "it has no permit")
	require.NoError(t, b.Reserve(250))
}

func TestConcurrentUse(t *testing.T) {
	l := newLimiter(t, 10, 0.5, 3)
	var wg sync.WaitGroup
	var mu sync.Mutex
	inside, most := 0, 0
	for g := range 16 {
		wg.Go(func() {
			for i := range 2000 {
				p, err := l.Acquire("c" + strconv.Itoa((g+i)%5))
				if err != nil {
					continue
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				_ = p.Move("c" + strconv.Itoa(g%5))
				_ = l.Usage()
				mu.Lock()
				inside--
				mu.Unlock()
				p.Release()
				p.Release()
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, most, 10)
	assert.Zero(t, l.Usage().InUse)
}

func BenchmarkAcquireRelease(b *testing.B) {
	l := newLimiter(b, 1000, 0.5, 64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if p, err := l.Acquire("cluster"); err == nil {
				p.Release()
			}
		}
	})
}

func BenchmarkRefuse(b *testing.B) {
	l := newLimiter(b, 1, 1, 64)
	_, err := l.Acquire("")
	require.NoError(b, err)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = l.Acquire("cluster")
		}
	})
}
