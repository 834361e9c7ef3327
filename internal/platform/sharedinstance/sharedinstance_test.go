// SPDX-License-Identifier: Apache-2.0

package sharedinstance

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneInstancePerKey(t *testing.T) {
	var all Instances[string, *int]
	made := 0
	acquire := func(key string) *Handle[*int] {
		h, err := all.Acquire(key, func() (*int, error) { made++; return new(int), nil })
		require.NoError(t, err)
		return h
	}
	a, b, other := acquire("x"), acquire("x"), acquire("y")
	assert.Same(t, a.Get(), b.Get())
	assert.NotSame(t, a.Get(), other.Get())
	assert.Equal(t, 2, made)

	started, stopped := 0, 0
	start := func() error { started++; return nil }
	stop := func() error { stopped++; return errors.New("stopped") }
	require.NoError(t, a.Start(start))
	require.NoError(t, b.Start(start))
	assert.Equal(t, 1, started)

	require.NoError(t, a.Shutdown(stop))
	require.NoError(t, a.Shutdown(stop), "a second call gives no second handle back")
	assert.Zero(t, stopped)
	again := acquire("x")
	assert.Same(t, a.Get(), again.Get(), "it has not ended")
	require.NoError(t, again.Shutdown(stop))
	require.EqualError(t, b.Shutdown(stop), "stopped")
	assert.Equal(t, 1, stopped)
	assert.Same(t, other.Get(), acquire("y").Get())

	assert.NotSame(t, a.Get(), acquire("x").Get(), "what has ended is not found again")
	require.NoError(t, b.Shutdown(stop))
}

func TestErrorsOfTheInstance(t *testing.T) {
	var all Instances[string, int]
	_, err := all.Acquire("x", func() (int, error) { return 0, errors.New("not made") })
	require.EqualError(t, err, "not made")
	a, err := all.Acquire("x", func() (int, error) { return 1, nil })
	require.NoError(t, err)
	b, err := all.Acquire("x", func() (int, error) { return 2, nil })
	require.NoError(t, err)
	fail := func() error { return errors.New("not started") }
	require.EqualError(t, a.Start(fail), "not started")
	require.EqualError(t, b.Start(func() error { return nil }), "not started", "the others are no better off")
}
