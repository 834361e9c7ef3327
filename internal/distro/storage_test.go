// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// storageRig is file_storage as the distributions have it.
type storageRig struct {
	storage.Extension
	t     *testing.T
	dir   string
	lines *observer.ObservedLogs
}

func newStorageRig(t *testing.T, change func(*filestorage.Config)) *storageRig {
	stock := filestorage.NewFactory()
	all, err := checkedStorage(func() (otelcol.Factories, error) {
		return otelcol.Factories{Extensions: map[component.Type]extension.Factory{stock.Type(): stock}}, nil
	})()
	require.NoError(t, err)
	f := all.Extensions[stock.Type()]
	cfg := f.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory, cfg.FSync, cfg.Recreate = t.TempDir(), true, true
	if change != nil {
		change(cfg)
	}
	set := extensiontest.NewNopSettings(stock.Type())
	core, lines := observer.New(zapcore.InfoLevel)
	set.Logger = zap.New(core)
	ext, err := f.Create(t.Context(), set, cfg)
	require.NoError(t, err)
	require.NoError(t, ext.Start(t.Context(), componenttest.NewNopHost()))
	t.Cleanup(func() { require.NoError(t, ext.Shutdown(context.Background())) })
	return &storageRig{ext.(storage.Extension), t, cfg.Directory, lines}
}

var straggler = component.MustNewID("straggler")

func (r *storageRig) client() storage.Client {
	r.t.Helper()
	c, err := r.GetClient(r.t.Context(), component.KindProcessor, straggler, "state")
	require.NoError(r.t, err)
	return c
}

func (r *storageRig) file() string { return filepath.Join(r.dir, "processor_straggler__state") }

// write leaves a file behind, and returns its bytes.
func (r *storageRig) write() []byte {
	r.t.Helper()
	c := r.client()
	for i := range 30 {
		require.NoError(r.t, c.Set(r.t.Context(), fmt.Sprint("key ", i), make([]byte, 500*i)))
	}
	require.NoError(r.t, c.Close(r.t.Context()))
	b, err := os.ReadFile(r.file())
	require.NoError(r.t, err)
	return b
}

// TestADamagedFileIsSetAside, whatever is wrong with it: the next start begins anew.
func TestADamagedFileIsSetAside(t *testing.T) {
	const page = 4096
	for name, damage := range map[string]func([]byte) []byte{
		"cut off":          func(b []byte) []byte { return b[:len(b)/2] },
		"one byte":         func(b []byte) []byte { return b[:1] },
		"beginnings":       func(b []byte) []byte { clear(b[:2*page]); return b },
		"all but the head": func(b []byte) []byte { clear(b[2*page:]); return b },
		"noise": func(b []byte) []byte {
			for i := 2 * page; i < len(b); i += 7 {
				b[i] ^= 0x55
			}
			return b
		},
		"another file": func([]byte) []byte { return []byte(strings.Repeat("SQLite format 3\n", page)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newStorageRig(t, nil)
			for range 2 { // the one that was set aside before makes room
				bad := damage(r.write())
				require.NoError(t, os.WriteFile(r.file(), bad, 0o600))
				c := r.client()
				told := r.lines.FilterMessageSnippet("is set aside").TakeAll()
				require.Len(t, told, 1)
				assert.Equal(t, zapcore.WarnLevel, told[0].Level)
				assert.Equal(t, r.file(), told[0].ContextMap()["file"])
				aside, err := os.ReadFile(told[0].ContextMap()["set_aside"].(string))
				require.NoError(t, err)
				assert.Equal(t, bad, aside)
				v, err := c.Get(t.Context(), "key 7")
				require.NoError(t, err)
				assert.Nil(t, v)
				require.NoError(t, c.Close(t.Context()))
				r.lines.TakeAll()
			}
			files, err := os.ReadDir(r.dir)
			require.NoError(t, err)
			assert.Len(t, files, 2)
		})
	}
}

// TestAWholeFileIsLeftAlone.
func TestAWholeFileIsLeftAlone(t *testing.T) {
	r := newStorageRig(t, nil)
	r.write()
	c := r.client()
	v, err := c.Get(t.Context(), "key 7")
	require.NoError(t, err)
	assert.Len(t, v, 3500)
	require.NoError(t, c.Close(t.Context()))
	assert.Empty(t, r.lines.All())
}

// TestADamagedFileThatStays: without `recreate` nobody begins anew, and nothing crashes.
func TestADamagedFileThatStays(t *testing.T) {
	r := newStorageRig(t, func(c *filestorage.Config) { c.Recreate = false })
	bad := r.write()
	clear(bad[2*4096:])
	require.NoError(t, os.WriteFile(r.file(), bad, 0o600))
	_, err := r.GetClient(t.Context(), component.KindProcessor, straggler, "state")
	require.ErrorContains(t, err, r.file()+" is damaged")
	require.ErrorContains(t, err, "`recreate: true`")
	now, err := os.ReadFile(r.file())
	require.NoError(t, err)
	assert.Equal(t, bad, now)
}

// TestAFileOfAnotherProcess may look damaged, since that one writes it: it stays.
func TestAFileOfAnotherProcess(t *testing.T) {
	r := newStorageRig(t, func(c *filestorage.Config) { c.Timeout = 100 * time.Millisecond })
	require.NoError(t, os.WriteFile(r.file(), []byte("half of it"), 0o600))
	other, err := os.Open(r.file())
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(other.Fd()), syscall.LOCK_EX))
	_, err = r.GetClient(t.Context(), component.KindProcessor, straggler, "state")
	require.ErrorContains(t, err, r.file()+" is in use")
	now, err := os.ReadFile(r.file())
	require.NoError(t, err)
	assert.Equal(t, "half of it", string(now))
	require.NoError(t, other.Close())
	require.NoError(t, r.client().Close(t.Context()))
	assert.Len(t, r.lines.FilterMessageSnippet("is set aside").All(), 1)
}

// TestTheFileThatIsChecked is the one that file_storage opens.
func TestTheFileThatIsChecked(t *testing.T) {
	for _, of := range []struct {
		kind     component.Kind
		id, name string
	}{
		{component.KindProcessor, "straggler", "state"},
		{component.KindReceiver, "nvml/a:b", ""},
		{component.KindExporter, "otlp_grpc/événements", "default"},
		{component.KindExtension, "standby/x.y-z_1", "../up"},
		{component.KindConnector, "forward", ""},
		{component.Kind{}, "forward", ""},
		{component.KindExporter, "otlp_grpc/" + strings.Repeat("long", 70), "default"},
	} {
		r := newStorageRig(t, nil)
		var id component.ID
		require.NoError(t, id.UnmarshalText([]byte(of.id)))
		c, err := r.GetClient(t.Context(), of.kind, id, of.name)
		require.NoError(t, err)
		require.NoError(t, c.Close(t.Context()))
		files, err := os.ReadDir(r.dir)
		require.NoError(t, err)
		require.Len(t, files, 1)
		assert.Equal(t, files[0].Name(), filepath.Base(storageFile(r.dir, of.kind, id, of.name)))
	}
}
