// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func newLimiter(permits int, share float64) *Limiter {
	return New(Settings{Permits: permits, Bytes: 1000, ClusterShare: share, RetryMin: time.Second, RetryMax: 5 * time.Second})
}

// TestGreedyClusters get what the share says, one after another, and are told why not more.
func TestGreedyClusters(t *testing.T) {
	for share, want := range map[float64][]int{
		1:     {1000, 0},
		0.5:   {500, 250, 125, 63, 31, 16, 8, 4, 2, 1, 0},
		0.8:   {800, 160, 32, 7, 1, 0},
		0.001: {1, 1, 1},
	} {
		l := newLimiter(1000, share)
		for i, want := range want {
			held := 0
			_, err := l.Acquire(strconv.Itoa(i))
			for ; err == nil; _, err = l.Acquire(strconv.Itoa(i)) {
				held++
			}
			assert.Equal(t, want, held, "cluster %d of share %v", i, share)
			var refused *RefusedError
			require.ErrorAs(t, err, &refused)
			if inUse, _ := l.InUse(); inUse == 1000 {
				assert.Equal(t, ReasonPermits, refused.Reason)
			} else {
				assert.Equal(t, ReasonShare, refused.Reason)
			}
		}
	}
}

func TestRetryAfterIsWholeSecondsOverTheRange(t *testing.T) {
	l := newLimiter(1, 1)
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

// TestClustersWithoutAValidName are one, whatever they call themselves.
func TestClustersWithoutAValidName(t *testing.T) {
	l := newLimiter(4, 0.5)
	for _, name := range []string{"", "a\nb"} {
		_, err := l.Acquire(name)
		require.NoError(t, err)
	}
	_, err := l.Acquire("ä")
	require.ErrorContains(t, err, "too many concurrent requests: the cluster holds its share of the permits; try again in ")
}

func TestTooLargeIsNotToBeTriedAgain(t *testing.T) {
	l := newLimiter(10, 0.5)
	a, err := l.Acquire("a")
	require.NoError(t, err)
	require.NoError(t, a.Reserve(400))
	var tooLarge *TooLargeError
	require.ErrorAs(t, a.Reserve(101), &tooLarge)
	assert.Equal(t, TooLargeError{Bytes: 501, Most: 500}, *tooLarge)
	require.ErrorAs(t, a.Reserve(math.MaxInt), &tooLarge)
	require.NoError(t, a.Reserve(100))
	a.Release()
	inUse, bytes := l.InUse()
	assert.Zero(t, inUse)
	assert.Zero(t, bytes)
}

// TestRoomForAMessageThatIsToCome goes back when the message is there, or the permit is not.
func TestRoomForAMessageThatIsToCome(t *testing.T) {
	l := newLimiter(10, 0.5)
	p, err := l.Acquire("a")
	require.NoError(t, err)
	arrived, err := p.Expect(9999)
	require.NoError(t, err)
	_, bytes := l.InUse()
	assert.Equal(t, int64(500), bytes, "at most the share of a cluster")
	other, err := l.Acquire("a")
	require.NoError(t, err)
	_, err = other.Expect(1)
	require.ErrorContains(t, err, "its share of the memory")
	arrived()
	require.NoError(t, p.Reserve(400))
	p.Release()
	other.Release()
	_, bytes = l.InUse()
	assert.Zero(t, bytes)
}

// TestProperties drives the limiter with any sequence of operations beside a model that is
// a plain list.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		permits := rapid.IntRange(1, 40).Draw(t, "permits")
		share := rapid.Float64Range(0.01, 1).Draw(t, "share")
		l := newLimiter(permits, share)
		type push struct {
			*Permit
			bytes int
		}
		var held []*push
		count := func(cluster string) (own, ownBytes, bytes int) {
			for _, p := range held {
				bytes += p.bytes
				if p.cluster == cluster {
					own++
					ownBytes += p.bytes
				}
			}
			return own, ownBytes, bytes
		}
		pick := func(t *rapid.T) int {
			if len(held) == 0 {
				t.Skip("none held")
			}
			return rapid.IntRange(0, len(held)-1).Draw(t, "permit")
		}
		most := func(of, others int) int { return int(math.Ceil(share * float64(of-others))) }
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				cluster := rapid.SampledFrom([]string{"", "a", "b", "c", "_OTHER"}).Draw(t, "cluster")
				own, _, _ := count(cluster)
				p, err := l.Acquire(cluster)
				if want := own < most(permits, len(held)-own); (err == nil) != want {
					t.Fatalf("%q holds %d of %d in use: %v", cluster, own, len(held), err)
				}
				if err == nil {
					held = append(held, &push{Permit: p})
				}
			},
			"release": func(t *rapid.T) {
				i := pick(t)
				held[i].Release()
				held = append(held[:i], held[i+1:]...)
			},
			"reserve": func(t *rapid.T) {
				p, n := held[pick(t)], rapid.IntRange(1, 600).Draw(t, "bytes")
				_, own, all := count(p.cluster)
				switch err := p.Reserve(n).(type) { //nolint:errorlint // it is not wrapped
				case nil:
					p.bytes += n
				case *TooLargeError:
					if p.bytes+n <= most(1000, 0) {
						t.Fatal(err)
					}
					return
				}
				if _, now, _ := count(p.cluster); (now > own) != (own+n <= most(1000, all-own)) {
					t.Fatalf("%d bytes beside %d of %d", n, own, all)
				}
			},
			"": func(t *rapid.T) {
				permits, bytes := l.InUse()
				if _, _, want := count(""); permits != len(held) || bytes != int64(want) {
					t.Fatalf("%d with %d bytes in use, %d held with %d", permits, bytes, len(held), want)
				}
			},
		})
	})
}

func TestConcurrentUse(t *testing.T) {
	l := newLimiter(10, 0.5)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				p, err := l.Acquire("c" + strconv.Itoa((g+i)%5))
				if err != nil {
					continue
				}
				_ = p.Reserve(100)
				if permits, bytes := l.InUse(); permits > 10 || bytes > 1000 {
					t.Error(permits, bytes)
				}
				p.Release()
			}
		})
	}
	wg.Wait()
	permits, bytes := l.InUse()
	assert.Zero(t, permits)
	assert.Zero(t, bytes)
}
