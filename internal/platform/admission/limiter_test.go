// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"errors"
	"math"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// anotherPushes binds every cluster to its share.
func anotherPushes(l *Limiter) {
	if p, err := l.Acquire("another"); err == nil {
		p.Release()
	}
}

// TestALoneClusterHasAll until another one pushes, and again a minute after its last push.
func TestALoneClusterHasAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(10, 1000, 0.5)
		most := func() (permits, bytes int) {
			for {
				p, err := l.Acquire("a")
				if err != nil {
					return permits, bytes
				}
				defer p.Release()
				permits++
				for p.Reserve(100) == nil {
					bytes += 100
				}
			}
		}
		for _, another := range []bool{false, true, false} {
			if another {
				anotherPushes(l)
			}
			permits, bytes := most()
			assert.Equal(t, map[bool]int{false: 10, true: 5}[another], permits)
			assert.Equal(t, map[bool]int{false: 1000, true: 500}[another], bytes)
			time.Sleep(time.Minute)
		}
	})
}

func TestTooLargeIsNotToBeTriedAgain(t *testing.T) {
	l := New(10, 1000, 0.5)
	a, err := l.Acquire("a")
	require.NoError(t, err)
	require.NoError(t, a.Reserve(400))
	require.ErrorIs(t, a.Reserve(101), ErrTooLarge)
	require.ErrorContains(t, a.Reserve(101), "takes 501 bytes when decoded, must be at most 500")
	require.ErrorIs(t, a.Reserve(math.MaxInt), ErrTooLarge)
	require.NoError(t, a.Reserve(100))
}

// TestRoomForAMessageThatIsToCome goes back when the message is there, or the permit is not.
func TestRoomForAMessageThatIsToCome(t *testing.T) {
	l := New(10, 1000, 0.5)
	anotherPushes(l)
	p, err := l.Acquire("a")
	require.NoError(t, err)
	arrived, err := p.Expect(9999)
	require.NoError(t, err)
	_, bytes := l.InUse()
	assert.Equal(t, int64(500), bytes, "at most the share of a cluster")
	other, err := l.Acquire("a")
	require.NoError(t, err)
	_, err = other.Expect(1)
	require.ErrorContains(t, err, "the cluster's share of it")
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
		l := New(permits, 1000, share)
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
				var refused *RefusedError
				if err == nil {
					held = append(held, &push{Permit: p})
				} else if !errors.As(err, &refused) || refused.Reason != map[bool]string{true: "permits", false: "cluster_share"}[len(held) == permits] {
					t.Fatalf("%d of %d permits are taken: %v", len(held), permits, err)
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
				err := p.Reserve(n)
				if tooLarge := p.bytes+n > most(1000, 0); errors.Is(err, ErrTooLarge) != tooLarge {
					t.Fatal(err)
				} else if tooLarge {
					return
				}
				if err == nil {
					p.bytes += n
				}
				if _, now, _ := count(p.cluster); (now > own) != (own+n <= most(1000, all-own)) {
					t.Fatalf("%d bytes beside %d of %d", n, own, all)
				}
			},
			"": func(t *rapid.T) {
				anotherPushes(l)
				permits, bytes := l.InUse()
				if _, _, want := count(""); permits != len(held) || bytes != int64(want) {
					t.Fatalf("%d with %d bytes in use, %d held with %d", permits, bytes, len(held), want)
				}
			},
		})
	})
}

func TestConcurrentUse(t *testing.T) {
	l := New(10, 1000, 0.5)
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
