// SPDX-License-Identifier: Apache-2.0

package fleetviewextension

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/component/componenttest"

	"github.com/gpu-collector/gpu-collector/internal/ledger"
	"github.com/gpu-collector/gpu-collector/internal/people"
)

// TestTheLedgerOutlivesTheProcess: boards, silences and the audit are there after a restart,
// beside the history's file.
func TestTheLedgerOutlivesTheProcess(t *testing.T) {
	dir := t.TempDir()
	start := func() *fleetViewExtension {
		e, _ := newTestExtension(t, func(c *Config) { c.History.SQLite.Path = filepath.Join(dir, "fleet_view.db") })
		require.NoError(t, e.Start(t.Context(), componenttest.NewNopHost()))
		return e
	}
	now := time.Now().UTC()
	e := start()
	e.Ledger().See(&ledger.Sighting{Cluster: "c", Node: "n", UUID: "GPU-1", Index: 3, Module: -1}, now)
	require.True(t, e.Ledger().Add("c", "GPU-1", &ledger.Entry{Kind: ledger.KindRepair, By: "ann", Text: "reseated"}, now))
	_, err := e.People().Silence(people.Silence{Cluster: "c", Node: "n", Reason: "psu", By: "ann", Until: now.Add(time.Hour)}, now)
	require.NoError(t, err)
	require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context())))

	e = start()
	list, _ := e.Ledger().List(&ledger.Filter{}, 0, 10)
	require.Len(t, list, 1)
	assert.Equal(t, "reseated", list[0].Entries[0].Text)
	assert.NotNil(t, e.People().Silenced(people.Scope{Cluster: "c", Node: "n"}, now))
	assert.Len(t, e.People().Audit(nil), 1)
	assert.FileExists(t, filepath.Join(dir, ledgerFile))
	require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context())))
}

// TestALedgerThatCannotBeReadYet is not written over: once it can be read, both are there.
func TestALedgerThatCannotBeReadYet(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	with := func(c *Config) { c.Ledger.Path = path }
	first, _ := newTestExtension(t, with)
	now := time.Now().UTC()
	first.Ledger().See(&ledger.Sighting{Cluster: "c", Node: "n", UUID: "GPU-1", Index: -1, Module: -1}, now.Add(-time.Hour))
	require.NoError(t, first.keeper.save(t.Context()))
	require.NoError(t, first.keeper.stop(t.Context()))
	require.NoError(t, os.Rename(path, path+".away"))
	require.NoError(t, os.Mkdir(path, 0o700)) // no file, so that it cannot be opened

	second, _ := newTestExtension(t, with)
	require.Error(t, second.keeper.restore(t.Context()))
	second.Ledger().See(&ledger.Sighting{Cluster: "c", Node: "n", UUID: "GPU-1", Index: -1, Module: -1}, now)
	require.Error(t, second.keeper.save(t.Context()))
	require.Error(t, second.keeper.status().Err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Rename(path+".away", path))
	require.NoError(t, second.keeper.save(t.Context()))
	require.NoError(t, second.keeper.status().Err)
	list, _ := second.Ledger().List(&ledger.Filter{}, 0, 10)
	require.Len(t, list, 1)
	assert.Equal(t, now.Add(-time.Hour), list[0].First)
	require.NoError(t, second.keeper.stop(t.Context()))
	for _, e := range []*fleetViewExtension{first, second} {
		require.NoError(t, e.Shutdown(context.WithoutCancel(t.Context())))
	}
}

func TestWhereTheLedgerIsKept(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"beside the history": {func(c *Config) { c.History.SQLite.Path = "/data/h.db" }, "/data/fleet_ledger.db"},
		"of its own":         {func(c *Config) { c.Ledger.Path = "/x/l.db" }, "/x/l.db"},
		"no history":         {func(c *Config) { c.History.Storage = storageNone }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := createDefaultConfig().(*Config)
			tc.change(cfg)
			assert.Equal(t, tc.want, cfg.ledgerPath())
		})
	}
	cfg := createDefaultConfig().(*Config)
	cfg.Ledger.Retention, cfg.Ledger.MaxMiB = time.Hour, -1
	require.ErrorContains(t, cfg.Validate(), "`ledger::max_mib` is -1")
	require.ErrorContains(t, cfg.Validate(), "`ledger::retention` is 1h0m0s, must be at least 24h")
}
