// SPDX-License-Identifier: Apache-2.0

package logsink

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/consumer/consumererror"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.uber.org/zap"
)

const room = 1000

func record(body string) plog.Logs {
	ld := plog.NewLogs()
	ld.ResourceLogs().AppendEmpty().ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Body().SetStr(body)
	return ld
}

func bodies(sink *consumertest.LogsSink) []string {
	var got []string
	for _, ld := range sink.AllLogs() {
		got = append(got, ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Body().Str())
	}
	return got
}

// sinkRig is a sink before a log store that refuses by refuse.
type sinkRig struct {
	*Sink
	refuse  func(attempt int) error
	store   consumertest.LogsSink
	tries   []time.Duration
	dropped atomic.Int64
}

func newSinkRig(t *testing.T, refuse func(attempt int) error) *sinkRig {
	r := &sinkRig{refuse: refuse}
	began := time.Now()
	next, err := consumer.NewLogs(func(ctx context.Context, ld plog.Logs) error {
		r.tries = append(r.tries, time.Since(began))
		if err := r.refuse(len(r.tries)); err != nil {
			// A component that does as it likes with what it got.
			ld.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0).Body().SetStr("spoilt")
			return err
		}
		return r.store.ConsumeLogs(ctx, ld)
	})
	require.NoError(t, err)
	r.Sink = New(next, zap.NewNop(), room, func() { r.dropped.Add(1) })
	return r
}

func TestEpisodesWaitForTheirPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSinkRig(t, func(attempt int) error {
			if attempt <= 7 {
				return errors.New("away")
			}
			return nil
		})
		r.Start()
		r.Offer(record("a"))
		r.Offer(record("b"))
		time.Sleep(5 * time.Minute)
		assert.Equal(t, []string{"a", "b"}, bodies(&r.store), "in order, as they were")
		s := time.Second
		assert.Equal(t, []time.Duration{0, s, 3 * s, 7 * s, 15 * s, 31 * s, 61 * s, 91 * s, 91 * s}, r.tries)
		assert.Zero(t, r.dropped.Load())
		r.Shutdown(t.Context())
	})
}

func TestWhatNoPipelineTakesIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newSinkRig(t, func(attempt int) error {
			if attempt == 1 {
				return consumererror.NewPermanent(errors.New("not such a record"))
			}
			return errors.New("away")
		})
		r.Start()
		r.Offer(record("a"))
		synctest.Wait()
		assert.EqualValues(t, 1, r.dropped.Load(), "never is at once")
		began := time.Now()
		r.Offer(record("b"))
		for r.dropped.Load() == 1 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		assert.InDelta(t, time.Hour.Seconds(), time.Since(began).Seconds(), 31)
		r.Shutdown(t.Context())
	})
}

func TestEpisodesAreBounded(t *testing.T) {
	r := newSinkRig(t, func(int) error { return nil })
	for i := range room + 3 {
		r.Offer(record(strconv.Itoa(i)))
	}
	assert.EqualValues(t, 3, r.dropped.Load())
	r.Start()
	r.Shutdown(t.Context())
	got := bodies(&r.store)
	require.Len(t, got, room, "what is queued is handed on at the end")
	assert.Equal(t, "0", got[0])
	assert.Equal(t, strconv.Itoa(room-1), got[room-1])
}

// TestShutdownEndsInTime has a log store that answers nothing.
func TestShutdownEndsInTime(t *testing.T) {
	for name, limit := range map[string]time.Duration{"its own limit": time.Hour, "the caller's": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dropped := 0
				next, err := consumer.NewLogs(func(ctx context.Context, _ plog.Logs) error {
					<-ctx.Done()
					return ctx.Err()
				})
				require.NoError(t, err)
				s := New(next, zap.NewNop(), room, func() { dropped++ })
				s.Start()
				for range 10 {
					s.Offer(record("a"))
				}
				synctest.Wait()
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				s.Shutdown(ctx)
				assert.Equal(t, min(limit, attemptTimeout), time.Since(began))
				assert.Equal(t, 10, dropped)
			})
		})
	}
}
