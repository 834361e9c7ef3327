// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
					var refused *RefusedError
					require.ErrorAs(t, err, &refused)
					assert.Equal(t, map[int]string{10: "permits", 5: "cluster_share"}[permits], refused.Reason)
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
