// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func records(t *testing.T, d *Documents, kind string) (list []string) {
	t.Helper()
	require.NoError(t, d.Load(t.Context(), kind, func(r []byte) { list = append(list, string(r)) }))
	return list
}

func TestDocuments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "ledger.db")
	d := NewDocuments(path, time.Now)
	require.NoError(t, d.Put(t.Context(), []Document{{"board", "a", []byte("1")}, {"board", "b", []byte("2")}, {"silence", "a", []byte("3")}}))
	require.NoError(t, d.Put(t.Context(), []Document{{"board", "a", []byte("4")}, {"board", "b", nil}}))
	assert.Equal(t, []string{"4"}, records(t, d, "board"))
	require.NoError(t, d.Close())

	again := NewDocuments(path, time.Now)
	assert.Equal(t, []string{"4"}, records(t, again, "board"))
	assert.Equal(t, []string{"3"}, records(t, again, "silence"))
	require.NoError(t, again.Close())
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
}

func TestADamagedFileIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600))
	d := NewDocuments(path, time.Now)
	assert.Empty(t, records(t, d, "board"))
	note, err := d.Status()
	require.NoError(t, err)
	assert.Contains(t, note, "is kept as "+path+".damaged-")
	require.NoError(t, d.Put(t.Context(), []Document{{"board", "a", []byte("1")}}))
	require.NoError(t, d.Close())
}

func TestAFileOfANewerVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	d := NewDocuments(path, time.Now)
	require.NoError(t, d.Put(t.Context(), nil))
	_, err := d.db.ExecContext(t.Context(), "PRAGMA user_version = 9")
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.ErrorContains(t, d.Put(t.Context(), nil), "`ledger::path` "+path+": the file is of version 9")
	_, err = d.Status()
	require.Error(t, err)
}
