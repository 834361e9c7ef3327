// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestWatchEvery(t *testing.T) {
	for setting, want := range map[string]time.Duration{"": 0, "0": 0, "10s": 10 * time.Second, "1s": time.Second} {
		got, err := watchEvery(setting)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for _, setting := range []string{"10", "999ms", "-1s", "often"} {
		_, err := watchEvery(setting)
		require.ErrorContains(t, err, "must be a duration of at least 1s", setting)
	}
}

// TestPollWaitsForFilesToSettle: two polls agree, or nothing has changed yet.
func TestPollWaitsForFilesToSettle(t *testing.T) {
	one, two, three := sum{1}, sum{2}, sum{3}
	now := map[string]sum{"file:a": one, "file:b": one}
	c := changes{read: func(uri string) (sum, bool) { s, ok := now[uri]; return s, ok }}
	known := map[string]sum{"file:a": one, "file:b": one}
	assert.Empty(t, c.poll(known))
	now["file:a"] = two
	assert.Empty(t, c.poll(known), "half written, for all we know")
	now["file:b"] = three
	assert.Empty(t, c.poll(known), "one file settled, the other one did not")
	assert.Equal(t, map[string]sum{"file:a": two, "file:b": three}, c.poll(known))
	known = map[string]sum{"file:a": two, "file:b": three}
	assert.Empty(t, c.poll(known), "once")
	delete(now, "file:a")
	assert.Empty(t, c.poll(known))
	assert.Empty(t, c.poll(known), "a file that is gone is no change")
	now["file:a"] = one
	assert.Empty(t, c.poll(known))
	assert.Equal(t, map[string]sum{"file:a": one}, c.poll(known))
}

// TestWatchValidatesOnce: a bad file is refused once, and a good file is taken.
func TestWatchValidatesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "config.yaml")
		write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
		var r reloads
		load := func() {
			r.begin()
			_, err := r.retrieve("file:"+file, func() (*confmap.Retrieved, error) { return confmap.NewRetrieved("x") })
			require.NoError(t, err)
			_, err = r.retrieve("env:HOME", func() (*confmap.Retrieved, error) { return confmap.NewRetrieved("y") })
			require.NoError(t, err)
		}
		write("first")
		load()
		var validated, taken atomic.Int64
		var bad atomic.Bool
		core, logs := observer.New(zapcore.InfoLevel)
		ctx, cancel := context.WithCancel(t.Context())
		go r.watch(ctx, 10*time.Second, func(context.Context) error {
			validated.Add(1)
			if bad.Load() {
				return errors.New("`quorum` is 0")
			}
			return nil
		}, func() error {
			taken.Add(1)
			load()
			return t.Context().Err()
		}, zap.New(core))
		minute := func() { time.Sleep(time.Minute); synctest.Wait() }
		minute()
		assert.Zero(t, validated.Load())

		write("bad")
		bad.Store(true)
		minute()
		assert.EqualValues(t, 1, validated.Load(), "it is not tried again")
		assert.Zero(t, taken.Load())
		assert.Len(t, logs.FilterMessageSnippet("is not valid").All(), 1)

		write("good")
		bad.Store(false)
		minute()
		assert.EqualValues(t, 2, validated.Load())
		assert.EqualValues(t, 1, taken.Load())

		// A configuration validates and does not start: the load after it takes the former.
		write("valid, and does not start")
		minute()
		assert.EqualValues(t, 2, taken.Load())
		r.failed()
		load()
		minute()
		assert.EqualValues(t, 2, taken.Load(), "a file that was rolled back is not taken again")
		assert.EqualValues(t, 3, validated.Load())
		cancel()
		synctest.Wait()
	})
}
