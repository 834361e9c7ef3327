// SPDX-License-Identifier: Apache-2.0

package stragglerprocessor

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension/extensiontest"
	"go.opentelemetry.io/collector/extension/xextension/storage"

	"github.com/gpu-collector/gpu-collector/internal/boltfile/boltfiletest"
	"github.com/gpu-collector/gpu-collector/internal/hang"
)

// realDisk is a file_storage, with its file and what it holds after each write.
type realDisk struct {
	storage.Extension
	t    *testing.T
	file string

	mu     sync.Mutex
	files  [][]byte
	values []map[string][]byte
}

func newRealDisk(t *testing.T, holds []byte) *realDisk {
	f := filestorage.NewFactory()
	cfg := f.CreateDefaultConfig().(*filestorage.Config)
	cfg.Directory, cfg.FSync = t.TempDir(), true
	ext, err := f.Create(t.Context(), extensiontest.NewNopSettings(f.Type()), cfg)
	require.NoError(t, err)
	d := &realDisk{Extension: ext.(storage.Extension), t: t, file: filepath.Join(cfg.Directory, "processor_straggler__state")}
	if holds != nil {
		require.NoError(t, os.WriteFile(d.file, holds, 0o600))
	}
	return d
}

func (d *realDisk) GetClient(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	c, err := d.Extension.GetClient(ctx, kind, id, name)
	if err == nil {
		d.record(nil)
	}
	return &realClient{c, d}, err
}

func (d *realDisk) record(ops []*storage.Operation) {
	b, err := os.ReadFile(d.file)
	if err != nil {
		d.t.Error(err) // not by require: the gateway's writer calls it
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	holds := map[string][]byte{}
	if n := len(d.values); n > 0 {
		holds = maps.Clone(d.values[n-1])
	}
	for _, op := range ops {
		switch op.Type {
		case storage.Set:
			holds[op.Key] = op.Value
		case storage.Delete:
			delete(holds, op.Key)
		}
	}
	d.files, d.values = append(d.files, b), append(d.values, holds)
}

type realClient struct {
	storage.Client
	d *realDisk
}

func (c *realClient) Batch(ctx context.Context, ops ...*storage.Operation) error {
	err := c.Client.Batch(ctx, ops...)
	if err == nil {
		c.d.record(ops)
	}
	return err
}

// read returns what is stored.
func (d *realDisk) read() map[string][]byte {
	c, err := d.Extension.GetClient(d.t.Context(), component.KindProcessor, component.MustNewID("straggler"), storageName)
	require.NoError(d.t, err)
	found := map[string][]byte{}
	require.NoError(d.t, c.(storage.Walker).Walk(d.t.Context(), func(k string, v []byte) ([]*storage.Operation, error) {
		found[k] = append([]byte{}, v...)
		return nil, nil
	}))
	require.NoError(d.t, c.Close(d.t.Context()))
	return found
}

// TestPowerLossInTheMiddleOfAStateWrite: a gateway writes through file_storage, and the power
// fails in any of its writes. The next one has the state of one of them, never a mixture.
func TestPowerLossInTheMiddleOfAStateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newRealDisk(t, nil)
		w := &jobWorld{link: 1, change: func(c *Config) {
			c.Hang = hang.Config{Enabled: true, KnownAfter: 10 * time.Minute, FirstAfter: time.Minute}
		}}
		w.stateRig = newStateRig(t, d, w.change)
		w.work(4 * time.Minute)
		w.slow, w.link = true, 0.5
		w.work(4 * time.Minute)
		w.shutdown()
		require.Greater(t, len(d.files), 16, "writes")

		rng := rand.New(rand.NewPCG(21, 2))
		which := map[bool]int{}
		for range 40 {
			k := 1 + rng.IntN(len(d.files)-1)
			lost, began := boltfiletest.PowerLoss(rng, d.files[k-1], d.files[k])
			again := newRealDisk(t, lost)
			found, want := again.read(), d.values[k-1]
			if began && assert.ObjectsAreEqual(d.values[k], found) {
				want = d.values[k]
			}
			which[assert.ObjectsAreEqual(d.values[k], found)]++
			require.Equal(t, want, found, "write %d", k)

			next := newStateRig(t, again, w.change)
			goesOn := next.lines.FilterMessageSnippet("goes on with the state of before").Len()
			if want[stateKey] == nil {
				assert.Zero(t, goesOn)
			} else {
				assert.Equal(t, 1, goesOn, "%v", next.lines.All())
			}
			assert.Zero(t, next.lines.FilterMessageSnippet("set aside").Len())
			next.shutdown()
		}
		assert.Greater(t, which[true], 4, "of this write")
		assert.Greater(t, which[false], 4, "of the one before")
	})
}
