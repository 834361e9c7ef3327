// SPDX-License-Identifier: Apache-2.0

package nvmlreceiver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
	"github.com/gpu-collector/gpu-collector/receiver/nvmlreceiver/internal/roster"
)

const testGPU = "GPU-1"

var (
	storageID = component.MustNewID("file_storage")
	ownerID   = component.MustNewID("nvml")
)

// memory is a storage extension with one client.
type memory struct {
	component.StartFunc
	component.ShutdownFunc
	storage.Client

	mu       sync.Mutex
	data     map[string][]byte
	writes   int
	closed   bool
	failOpen error
	failGet  error
	failSet  error
	hang     chan struct{} // Set waits for it, whatever its context says
}

func (m *memory) GetClient(context.Context, component.Kind, component.ID, string) (storage.Client, error) {
	return m, m.failOpen
}

func (m *memory) Get(_ context.Context, key string) ([]byte, error) { return m.data[key], m.failGet }

func (m *memory) Set(_ context.Context, key string, data []byte) error {
	if m.hang != nil {
		<-m.hang
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.failSet != nil {
		return m.failSet
	}
	if m.data == nil {
		m.data = map[string][]byte{}
	}
	m.data[key] = data
	m.writes++
	return nil
}

func (m *memory) kept() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(m.data[healthKey])
}

func (m *memory) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

func (m *memory) Close(context.Context) error { m.closed = true; return nil }

type hostWith map[component.ID]component.Component

func (h hostWith) GetExtensions() map[component.ID]component.Component { return h }

// keeperOf starts a keeper with a monitor of its own.
func keeperOf(t *testing.T, m *memory) (*keeper, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	k := testKeeper(zap.New(core))
	require.NoError(t, k.start(t.Context(), hostWith{storageID: m}, &storageID, ownerID, time.Now()))
	return k, logs
}

func testKeeper(log *zap.Logger) *keeper {
	k := newKeeper(gpuhealth.NewMonitor(gpuhealth.DefaultRubric()), roster.New("node"), log)
	return &k
}

func (k *keeper) monitor() *gpuhealth.Monitor { return k.books[0].book.(*gpuhealth.Monitor) }

func (k *keeper) roster() *roster.Roster { return k.books[1].book.(*roster.Roster) }

func (k *keeper) xid(code uint64) {
	k.monitor().ObserveXid(gpuhealth.XidEvent{UUID: testGPU, Code: code, Time: time.Now()})
	k.changed()
}

func TestKeeperWritesWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		k, logs := keeperOf(t, m)
		for range 10 {
			k.changed()
			synctest.Wait()
		}
		assert.Zero(t, m.written(), "nothing has changed")
		k.xid(48)
		synctest.Wait()
		assert.Equal(t, 1, m.written(), "at once")
		assert.Contains(t, m.kept(), `"Code":48`)
		for range 100 {
			k.xid(62)
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		assert.Equal(t, 1, m.written(), "a storm is not a storm of writes")
		time.Sleep(keepInterval)
		synctest.Wait()
		assert.Equal(t, 2, m.written())
		assert.Contains(t, m.kept(), `"Code":62`)
		k.xid(119)
		require.NoError(t, k.shutdown(t.Context()))
		assert.Contains(t, m.kept(), `"Code":119`, "a shutdown does not wait for the interval")
		assert.True(t, m.closed)
		assert.Zero(t, logs.Len())
	})
}

func TestKeeperRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		k, _ := keeperOf(t, m)
		k.xid(48)
		require.NoError(t, k.shutdown(t.Context()))
		k, logs := keeperOf(t, m)
		s := gpuhealth.Sample{Identity: gpuhealth.Identity{UUID: testGPU}, Reason: gpuhealth.ReasonOK}
		s.Temperature = gpuhealth.Some(50.0)
		assert.Equal(t, gpuhealth.StateUnhealthy, k.monitor().Observe(&s, time.Now()).State)
		require.NoError(t, k.shutdown(t.Context()))
		assert.Zero(t, logs.Len())
	})
}

// A state that cannot be used is set aside for a person to look at, said once, and ends
// nothing: the other book is used all the same.
func TestKeeperStartsAfresh(t *testing.T) {
	other, _, err := roster.New("another").Snapshot()
	require.NoError(t, err)
	for name, bad := range map[string]struct{ key, text string }{
		"corrupt health":       {healthKey, "{"},
		"oversized health":     {healthKey, strings.Repeat(" ", gpuhealth.MaxSnapshot+1)},
		"corrupt GPUs":         {rosterKey, "{"},
		"GPUs of another node": {rosterKey, string(other)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memory{data: map[string][]byte{bad.key: []byte(bad.text)}}
				k, logs := keeperOf(t, m)
				assert.Equal(t, bad.text, string(m.data[bad.key+setAside]))
				k.roster().Begin()
				k.roster().Claim(gpuhealth.Identity{UUID: testGPU})
				k.xid(48)
				synctest.Wait()
				assert.Contains(t, m.kept(), `"Code":48`, "it is written over")
				assert.Contains(t, string(m.data[rosterKey]), testGPU)
				require.NoError(t, k.shutdown(t.Context()))
				assert.Equal(t, 1, logs.FilterLevelExact(zapcore.WarnLevel).Len())
				assert.Equal(t, 1, logs.Len())
			})
		})
	}
}

func TestKeeperOfAStorageThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{failGet: errors.New("input/output error")}
		k, logs := keeperOf(t, m)
		k.xid(48)
		synctest.Wait()
		assert.Contains(t, m.kept(), `"Code":48`)
		require.NoError(t, k.shutdown(t.Context()))
		assert.Equal(t, 2, logs.FilterLevelExact(zapcore.WarnLevel).Len(), "one for each book")
	})
}

func TestKeeperSaysOnceThatItCannotWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{failSet: errors.New("no space left on device")}
		k, logs := keeperOf(t, m)
		for range 5 {
			k.xid(48)
			time.Sleep(2 * keepInterval)
		}
		m.mu.Lock()
		m.failSet = nil
		m.mu.Unlock()
		k.changed()
		synctest.Wait()
		assert.Contains(t, m.kept(), `"Code":48`, "what could not be written is still to be")
		require.NoError(t, k.shutdown(t.Context()))
		assert.Equal(t, 1, logs.Len())
	})
}

func TestKeeperDoesNotWaitForAStorageThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{hang: make(chan struct{})}
		k, logs := keeperOf(t, m)
		began := time.Now()
		for range 100 {
			k.xid(48)
		}
		require.NoError(t, k.shutdown(t.Context()))
		assert.LessOrEqual(t, time.Since(began), lastWriteTimeout)
		assert.False(t, m.closed, "it is in use")
		assert.Equal(t, 1, logs.Len())
		close(m.hang)
		<-k.done
	})
}

func TestKeeperWithoutStorage(t *testing.T) {
	k := testKeeper(zap.NewNop())
	require.NoError(t, k.start(t.Context(), componenttest.NewNopHost(), nil, ownerID, time.Now()))
	k.xid(48)
	require.NoError(t, k.shutdown(t.Context()))

	err := k.start(t.Context(), componenttest.NewNopHost(), &storageID, ownerID, time.Now())
	require.ErrorContains(t, err, "`storage` is \"file_storage\", which `service::extensions` does not list")
	other := hostWith{storageID: struct {
		component.StartFunc
		component.ShutdownFunc
	}{}}
	require.ErrorContains(t, k.start(t.Context(), other, &storageID, ownerID, time.Now()), "must be a storage extension")

	core, logs := observer.New(zapcore.InfoLevel)
	k.log = zap.New(core)
	m := &memory{failOpen: errors.New("locked")}
	require.NoError(t, k.start(t.Context(), hostWith{storageID: m}, &storageID, ownerID, time.Now()), "GPUs are watched all the same")
	k.xid(62)
	require.NoError(t, k.shutdown(t.Context()))
	assert.Equal(t, 1, logs.FilterLevelExact(zapcore.WarnLevel).Len())
}
