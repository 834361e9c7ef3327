// SPDX-License-Identifier: Apache-2.0

package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/boltfile/boltfiletest"
)

const osPage = 4096

// opened opens a file as file_storage does.
func opened(file string) (*bbolt.DB, error) {
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{Timeout: time.Minute, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType, PageSize: osPage})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists([]byte(bucketName))
		return err
	})
	return db, err
}

type values map[string]string

func contents(t require.TestingT, db *bbolt.DB) values {
	all := values{}
	require.NoError(t, db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket([]byte(bucketName)).ForEach(func(k, v []byte) error {
			all[string(k)] = string(v)
			return nil
		})
	}))
	return all
}

// batch draws what is written at once, and writes it.
func batch(t *rapid.T, db *bbolt.DB, has values) values {
	has = maps.Clone(has)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte(bucketName))
		for range rapid.IntRange(1, 12).Draw(t, "operations") {
			key := fmt.Sprint("key ", rapid.IntRange(0, 60).Draw(t, "key"))
			if rapid.IntRange(0, 5).Draw(t, "long") == 0 {
				key += strings.Repeat("k", 700) // so that there are branches
			}
			if rapid.IntRange(0, 4).Draw(t, "delete") == 0 {
				delete(has, key)
				if err := b.Delete([]byte(key)); err != nil {
					return err
				}
				continue
			}
			n := rapid.SampledFrom([]int{0, 10, 300, 2000, osPage, 20000}).Draw(t, "bytes")
			has[key] = strings.Repeat(string(rune('a'+rapid.IntRange(0, 25).Draw(t, "letter"))), n)
			if err := b.Put([]byte(key), []byte(has[key])); err != nil {
				return err
			}
		}
		return nil
	}))
	return has
}

func read(t require.TestingT, file string) []byte {
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	return b
}

func check(b []byte) error { return Check(bytes.NewReader(b), int64(len(b))) }

func temp(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "boltfile-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "file")
}

// works has bbolt read all of a file that was found whole, and write to it: what it stumbles
// over ends this process.
func works(t *rapid.T, b []byte) values {
	file := temp(t)
	require.NoError(t, os.WriteFile(file, b, 0o600))
	db, err := opened(file)
	require.NoError(t, err)
	found := contents(t, db)
	has := found
	for range 3 {
		has = batch(t, db, has)
	}
	require.Equal(t, has, contents(t, db))
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		for _, k := range slices.Sorted(maps.Keys(has)) {
			if err := tx.Bucket([]byte(bucketName)).Delete([]byte(k)); err != nil {
				return err
			}
		}
		return nil
	}))
	require.NoError(t, db.Close())
	require.NoError(t, check(read(t, file)))
	return found
}

// written draws a file, with the values of before and after its last write.
func written(t *rapid.T) (before, after []byte, of [2]values) {
	file := temp(t)
	db, err := opened(file)
	require.NoError(t, err)
	of[1] = values{}
	for range rapid.IntRange(1, 10).Draw(t, "writes") {
		before, of[0] = read(t, file), of[1]
		of[1] = batch(t, db, of[1])
		require.NoError(t, check(read(t, file)), "a whole file")
	}
	after = read(t, file)
	require.NoError(t, db.Close())
	return before, after, of
}

// TestADamagedFile: whatever is wrong with a file, it is found, or does not matter to bbolt.
func TestADamagedFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, b, _ := written(t)
		pages := len(b) / osPage
		page := func() []byte {
			at := rapid.IntRange(0, pages-1).Draw(t, "page") * osPage
			return b[at : at+osPage]
		}
		for range rapid.IntRange(1, 3).Draw(t, "damages") {
			switch rapid.SampledFrom([]string{"flip", "header", "zero", "swap", "copy", "cut", "noise"}).Draw(t, "damage") {
			case "flip":
				page()[rapid.IntRange(0, osPage-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			case "header":
				page()[rapid.IntRange(0, 99).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
			case "zero":
				clear(page())
			case "swap":
				x, y := page(), page()
				was := bytes.Clone(x)
				copy(x, y)
				copy(y, was)
			case "copy":
				copy(page(), page())
			case "noise":
				copy(page()[rapid.IntRange(0, osPage-1).Draw(t, "at"):], rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "noise"))
			case "cut":
				b = b[:rapid.IntRange(osPage, len(b)).Draw(t, "length")]
				pages = len(b) / osPage
			}
		}
		err := check(b)
		if err == nil {
			works(t, b)
			return
		}
		var damage *Damage
		require.ErrorAs(t, err, &damage)
	})
}

// TestPowerLossInTheMiddleOfAWrite: what is read then is that of the write before or, once
// the beginning of this one is whole, of this one.
func TestPowerLossInTheMiddleOfAWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, after, of := written(t)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "loss"), 0))
		lost, began := boltfiletest.PowerLoss(rng, before, after)
		require.NoError(t, check(lost))
		found := works(t, lost)
		if began {
			require.Contains(t, of, found)
			return
		}
		require.Equal(t, of[0], found)
	})
}

// TestAFileThatCannotBeRead is damaged too: bbolt maps it, and dies of the same.
func TestAFileThatCannotBeRead(t *testing.T) {
	var damage *Damage
	require.ErrorAs(t, Check(badDisk{}, 1<<20), &damage)
	require.ErrorContains(t, damage, "input/output error")
}

type badDisk struct{}

func (badDisk) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

// FuzzCheck: no bytes are read that are not there, and what is found whole is.
func FuzzCheck(f *testing.F) {
	file := filepath.Join(f.TempDir(), "file")
	db, err := opened(file)
	require.NoError(f, err)
	f.Add(read(f, file))
	for i := range 40 {
		require.NoError(f, db.Update(func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(bucketName)).Put(fmt.Append(nil, i, strings.Repeat("k", 200)), make([]byte, 20*i))
		}))
	}
	f.Add(read(f, file))
	require.NoError(f, db.Close())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2*osPage || check(b) != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, b, 0o600))
		db, err := opened(file)
		require.NoError(t, err)
		contents(t, db)
		require.NoError(t, db.Close())
	})
}
