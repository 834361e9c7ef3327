// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

var base = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// patience is for a machine that is busy with other tests.
const patience = 2 * time.Minute

func testConfig(t *testing.T) Config {
	t.Helper()
	return Config{
		Path: filepath.Join(t.TempDir(), "some dir", "history?#%.db"), MaxSeries: 1000, QueryTimeout: time.Minute,
		Now: func() time.Time { return base },
	}
}

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s := New(cfg)
	require.NoError(t, s.Open(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func sample(node string, at time.Time, value float64) fleethistory.Sample {
	return fleethistory.Sample{Cluster: "c", Node: node, GPU: "GPU-1", Metric: "hw.temperature", Attributes: "a=b", At: at.UnixMilli(), Value: value}
}

func all(t *testing.T, s *Store) []fleethistory.Sample {
	t.Helper()
	list, total, err := s.Telemetry(t.Context(), &fleethistory.Query{Start: time.UnixMilli(0), End: base.Add(time.Hour), Limit: 100_000})
	require.NoError(t, err)
	assert.Len(t, list, total)
	return list
}

func TestSamplesAreThereAfterReopening(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	want := []fleethistory.Sample{
		sample("b", base, 3), sample("a", base.Add(-time.Second), 2), sample("a", base.Add(-time.Hour), 1),
	}
	require.NoError(t, s.Append(t.Context(), want, []fleethistory.Episode{{ID: "e", Updated: 2, Record: []byte("two")}}))
	// A retry writes the same again, a resend another value for the same time.
	require.NoError(t, s.Append(t.Context(), append(want[:2:2], sample("a", base.Add(-time.Hour), 7)), []fleethistory.Episode{{ID: "e", Updated: 1, Record: []byte("one")}}))
	want[2].Value = 7
	assert.Equal(t, want, all(t, s))

	require.NoError(t, s.Close())
	s = open(t, cfg)
	assert.Equal(t, want, all(t, s))
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base.Add(time.Second), 9)}, nil))
	assert.Len(t, all(t, s), 4)
	var series int
	require.NoError(t, s.db.Load().read.QueryRow("SELECT count(*) FROM series").Scan(&series))
	assert.Equal(t, 2, series, "a known series is found again")
	episodes, err := s.Episodes(t.Context(), 10)
	require.NoError(t, err)
	assert.Equal(t, []fleethistory.Episode{{ID: "e", Updated: 2, Record: []byte("two")}}, episodes, "the newest record stays")
	assert.Equal(t, base.Add(-time.Hour).UnixMilli(), s.Status().Oldest.UnixMilli())
}

func TestPagesAreTheWholeInOrder(t *testing.T) {
	s := open(t, testConfig(t))
	var want []fleethistory.Sample
	for i := range 500 {
		want = append(want, sample(fmt.Sprintf("n%d", i%7), base.Add(-time.Duration(i)*11*time.Second), float64(i)))
	}
	require.NoError(t, s.Append(t.Context(), want, nil))
	var got []fleethistory.Sample
	q := fleethistory.Query{Start: base.Add(-time.Hour), End: base, Limit: 17}
	for {
		page, total, err := s.Telemetry(t.Context(), &q)
		require.NoError(t, err)
		assert.Equal(t, 328, total) // 3600/11, both ends
		got = append(got, page...)
		if len(page) < q.Limit {
			break
		}
		q.Offset += q.Limit
	}
	assert.Equal(t, want[:328], got)
}

func TestBounds(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxSeries, cfg.Retention = 2, time.Hour
	var dropped int64
	cfg.OnDrop = func(n int64) { dropped += n }
	s := open(t, cfg)
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{
		sample("a", base, 1), sample("b", base, 2), sample("c", base, 3), // one series too many
		sample("a", base.Add(-2*time.Hour), 4), // too old
		sample("a", base, math.NaN()), sample("a", base, math.Inf(1)),
	}, nil))
	assert.Len(t, all(t, s), 2)
	assert.EqualValues(t, 4, dropped)
}

// One cluster has no more than its share of the series, also in an old file. It has
// the slots again once the series are too old.
func TestClustersShareTheSeries(t *testing.T) {
	cfg := testConfig(t)
	now := base
	cfg.MaxSeries, cfg.ClusterShare, cfg.Retention, cfg.Now = 8, 0.5, time.Hour, func() time.Time { return now }
	s := open(t, cfg)
	write := func(cluster string, nodes ...string) {
		t.Helper()
		var batch []fleethistory.Sample
		for _, n := range nodes {
			p := sample(n, now, 1)
			p.Cluster = cluster
			batch = append(batch, p)
		}
		require.NoError(t, s.Append(t.Context(), batch, nil))
	}
	series := func() map[string]int {
		t.Helper()
		rows, err := s.db.Load().read.QueryContext(t.Context(), "SELECT cluster, count(*) FROM series GROUP BY cluster")
		require.NoError(t, err)
		defer func() { _ = rows.Close() }()
		out := map[string]int{}
		for rows.Next() {
			var cluster string
			var n int
			require.NoError(t, rows.Scan(&cluster, &n))
			out[cluster] = n
		}
		require.NoError(t, rows.Err())
		return out
	}
	write("x", "1", "2", "3", "4", "5", "6")
	assert.Equal(t, map[string]int{"x": 4}, series())
	write("y", "1", "2", "3")
	assert.Equal(t, map[string]int{"x": 4, "y": 2}, series())
	require.NoError(t, s.Close())
	now = now.Add(time.Minute)
	write("x", "1", "7")
	write("z", "1", "2")
	assert.Equal(t, map[string]int{"x": 4, "y": 2, "z": 1}, series())

	now = now.Add(2 * time.Hour)
	write("z", "1") // maintenance leaves the newest
	maintain(t, s)
	write("x", "6", "7", "8", "9", "10")
	assert.Equal(t, map[string]int{"x": 4, "z": 1}, series(), "half of the seven that z leaves")
	write("x", "6")
	assert.Equal(t, map[string]int{"x": 4, "z": 1}, series())
}

// A batch that fails leaves nothing, neither in the file nor in what the
// writer knows of it.
func TestAppendIsAllOrNothing(t *testing.T) {
	s := open(t, testConfig(t))
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base, 1)}, nil))
	fill(t, s)
	var many []fleethistory.Sample
	for i := range 900 {
		many = append(many, sample(fmt.Sprintf("node-%d", i), base, 1))
	}
	require.ErrorContains(t, s.Append(t.Context(), many, nil), "the disk is full")
	assert.Len(t, all(t, s), 1, "reads go on")
	assert.Equal(t, 1, s.db.Load().w.slots.Taken())
	free(t, s)
	require.NoError(t, s.Append(t.Context(), many, nil))
	assert.Len(t, all(t, s), 901)
	assert.Equal(t, 901, s.db.Load().w.slots.Taken())
}

// fill lets the file grow no further, as a full disk would: SQLite answers the
// same SQLITE_FULL.
func fill(t *testing.T, s *Store) {
	t.Helper()
	pragma(t, s, "PRAGMA max_page_count = 1")
}

func free(t *testing.T, s *Store) {
	t.Helper()
	pragma(t, s, "PRAGMA max_page_count = 1000000")
}

func pragma(t *testing.T, s *Store, text string) {
	t.Helper()
	var n int
	require.NoError(t, s.db.Load().write.QueryRow(text).Scan(&n))
}

// TestFullDisk fills a real file system where the test may mount one, and
// otherwise a file that may not grow.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	mounted := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=384k") == nil
	if mounted {
		t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	}
	t.Logf("real file system: %t", mounted)
	cfg := testConfig(t)
	cfg.Path = filepath.Join(dir, "history.db")
	var errs []error
	h := NewHistory(cfg, fleethistory.BatchConfig{MaxSamples: 500, MaxAge: 10 * time.Millisecond, QueueSize: 2000, QueueBytes: 1 << 30}, func(err error) { errs = append(errs, err) })
	require.NoError(t, h.Open(t.Context()))
	h.Start()
	ballast := filepath.Join(dir, "ballast")
	if !mounted {
		fill(t, h.Store)
	}
	written := 0
	var batch []fleethistory.Sample
	require.Eventually(t, func() bool {
		batch = batch[:0]
		for range 500 {
			batch = append(batch, sample("a", base.Add(-time.Duration(written)*100*time.Millisecond), 1))
			written++
		}
		h.Write(batch)
		return h.Status().Err != nil && h.Status().Dropped > 0
	}, patience, 5*time.Millisecond)
	require.ErrorContains(t, h.Status().Err, "the disk is full")
	kept := len(all(t, h.Store))
	if mounted {
		assert.Positive(t, kept, "reads go on")
		_ = os.Remove(ballast)
		require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	} else {
		free(t, h.Store)
	}
	require.NoError(t, h.Shutdown(t.Context()))
	dropped := int(h.Status().Dropped)
	s := open(t, cfg)
	assert.Len(t, all(t, s), written-dropped, "what was not dropped is there")
	assert.NotEmpty(t, errs)
}

func TestLockedFile(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	other, err := connect(cfg.Path)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close()) }()
	tx, err := other.Begin() // BEGIN IMMEDIATE
	require.NoError(t, err)
	require.ErrorContains(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base, 1)}, nil), "another process holds the lock")
	assert.Empty(t, all(t, s), "reads go on")
	require.NoError(t, tx.Rollback())
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base, 1)}, nil))
	assert.Len(t, all(t, s), 1)
}

// TestNobodyElseReadsTheFile: nor those that SQLite has beside it, nor one of before.
func TestNobodyElseReadsTheFile(t *testing.T) {
	cfg := testConfig(t)
	check := func() {
		t.Helper()
		s := open(t, cfg)
		require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base, 1)}, nil))
		files, err := filepath.Glob(cfg.Path + "*")
		require.NoError(t, err)
		assert.Len(t, files, 3, "with its log and index")
		for _, file := range files {
			info, err := os.Stat(file)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o600), info.Mode(), file)
		}
		require.NoError(t, s.Close())
	}
	check()
	require.NoError(t, os.Chmod(cfg.Path, 0o644))
	check()
}

func TestDamagedFileIsKeptAside(t *testing.T) {
	t.Run("at start", func(t *testing.T) {
		cfg := testConfig(t)
		garbage := strings.Repeat("this is no database", 1000)
		require.NoError(t, os.MkdirAll(filepath.Dir(cfg.Path), 0o750))
		require.NoError(t, os.WriteFile(cfg.Path, []byte(garbage), 0o600))
		s := open(t, cfg)
		require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base, 1)}, nil))
		assert.Len(t, all(t, s), 1)
		aside := cfg.Path + ".damaged-20260301T120000Z"
		kept, err := os.ReadFile(aside)
		require.NoError(t, err)
		assert.Equal(t, garbage, string(kept))
		assert.Contains(t, s.Status().Note, aside)
		assert.NoError(t, s.Status().Err)
	})
	t.Run("while running", func(t *testing.T) {
		cfg := testConfig(t)
		s := open(t, cfg)
		var batch []fleethistory.Sample
		for i := range 5000 {
			batch = append(batch, sample("a", base.Add(-time.Duration(i)*time.Second), 1))
		}
		require.NoError(t, s.Append(t.Context(), batch, nil))
		require.NoError(t, s.Close()) // the log is in the file now
		info, err := os.Stat(cfg.Path)
		require.NoError(t, err)
		file, err := os.OpenFile(cfg.Path, os.O_WRONLY, 0)
		require.NoError(t, err)
		// All but the first pages, so that it still opens.
		_, err = file.WriteAt([]byte(strings.Repeat("x", int(info.Size())-16*4096)), 16*4096)
		require.NoError(t, err)
		require.NoError(t, file.Close())

		s = open(t, cfg)
		_, _, err = s.Telemetry(t.Context(), &fleethistory.Query{Start: base.Add(-5000 * time.Second), End: base, Limit: 1000})
		require.ErrorIs(t, err, fleethistory.ErrUnavailable)
		require.Error(t, s.Status().Err)
		require.NoError(t, s.Append(t.Context(), batch[:10], nil))
		assert.Len(t, all(t, s), 10)
		require.NoError(t, s.Status().Err)
		assert.Contains(t, s.Status().Note, "was damaged")
		matches, err := filepath.Glob(filepath.Join(filepath.Dir(cfg.Path), "*.damaged-*"))
		require.NoError(t, err)
		assert.NotEmpty(t, matches)
	})
}

func TestFileOfALaterVersion(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	_, err := s.db.Load().write.Exec("PRAGMA user_version = 99")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorContains(t, New(cfg).Open(t.Context()), "version 99, written by a newer gpu-collector")
}

func TestAFileThatIsNone(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"loop":      func(path string) error { return os.Symlink(filepath.Base(path), path) },
	} {
		path := filepath.Join(t.TempDir(), "history.db")
		require.NoError(t, create(path))
		err := New(Config{Path: path}).Open(t.Context())
		require.ErrorContains(t, err, "the file cannot be opened", name)
		require.NotContains(t, err.Error(), "memory", name)
	}
}

func TestDirectoryThatCannotBeWritten(t *testing.T) {
	cfg := testConfig(t)
	blocked := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(blocked, nil, 0o600))
	cfg.Path = filepath.Join(blocked, "history.db")
	h := NewHistory(cfg, fleethistory.BatchConfig{MaxSamples: 10, MaxAge: time.Millisecond, QueueSize: 10, QueueBytes: 1 << 20}, nil)
	h.Start()
	h.Write([]fleethistory.Sample{sample("a", base, 1)})
	require.Eventually(t, func() bool { return h.Status().Err != nil }, patience, time.Millisecond)
	require.ErrorContains(t, h.Status().Err, "`history::sqlite::path` "+cfg.Path)
	_, _, err := h.Telemetry(t.Context(), &fleethistory.Query{Start: base, End: base, Limit: 1})
	require.ErrorIs(t, err, fleethistory.ErrUnavailable)
	// Once the directory is there, nothing that waited is lost.
	require.NoError(t, os.Remove(blocked))
	require.Eventually(t, func() bool { return h.Status().Err == nil || readable(h) }, patience, 10*time.Millisecond)
	require.NoError(t, h.Shutdown(t.Context()))
	assert.Len(t, all(t, open(t, cfg)), 1)
}

func readable(h *History) bool {
	list, _, err := h.Telemetry(context.Background(), &fleethistory.Query{Start: base, End: base, Limit: 1})
	return err == nil && len(list) == 1
}

func TestRetentionByAge(t *testing.T) {
	cfg := testConfig(t)
	now := base
	cfg.Now, cfg.Retention = func() time.Time { return now }, time.Hour
	s := open(t, cfg)
	var batch []fleethistory.Sample
	for i := range 120 {
		batch = append(batch, sample("a", base.Add(-time.Duration(i)*30*time.Second), 1), sample("b", base.Add(-59*time.Minute), 1))
	}
	require.NoError(t, s.Append(t.Context(), batch, []fleethistory.Episode{
		{ID: "old", Updated: base.Add(-30 * time.Minute).UnixMilli(), Record: []byte("x")}, {ID: "new", Updated: base.UnixMilli(), Record: []byte("x")},
	}))
	now = base.Add(45 * time.Minute)
	maintain(t, s)
	for _, p := range all(t, s) {
		assert.Greater(t, p.At, now.Add(-time.Hour-slotLength*time.Millisecond).UnixMilli())
	}
	assert.Len(t, all(t, s), 31, "11:45 to 12:00 is left")
	var series int
	require.NoError(t, s.db.Load().read.QueryRow("SELECT count(*) FROM series").Scan(&series))
	assert.Equal(t, 1, series, "an empty series goes")
	assert.Equal(t, 1, s.db.Load().w.slots.Taken())
	episodes, err := s.Episodes(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, episodes, 1)
	assert.Equal(t, "new", episodes[0].ID)
	// The series comes back as if it were new.
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("b", now, 5)}, nil))
	assert.Equal(t, "b", all(t, s)[0].Node)
}

func maintain(t *testing.T, s *Store) {
	t.Helper()
	for range 10_000 {
		more, err := s.Maintain(t.Context())
		require.NoError(t, err)
		if !more {
			return
		}
	}
	t.Fatal("there is always more to maintain")
}

func TestRetentionBySize(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxBytes = 100 << 10 // a third of it are tables without samples
	s := open(t, cfg)
	for i := range 20 {
		var batch []fleethistory.Sample
		for j := range 500 {
			batch = append(batch, sample(fmt.Sprintf("n%d", j%20), base.Add(-20*time.Hour+time.Duration(i)*time.Hour+time.Duration(j)*time.Millisecond), 1))
		}
		require.NoError(t, s.Append(t.Context(), batch, nil))
		maintain(t, s)
	}
	var pages, size int64
	require.NoError(t, s.db.Load().write.QueryRow("PRAGMA page_count").Scan(&pages))
	require.NoError(t, s.db.Load().write.QueryRow("PRAGMA page_size").Scan(&size))
	assert.LessOrEqual(t, pages*size, cfg.MaxBytes+2*size, "pages are given back")
	list, total, err := s.Telemetry(t.Context(), &fleethistory.Query{Start: base.Add(-30 * time.Hour), End: base, Limit: 1})
	require.NoError(t, err)
	assert.Greater(t, total, 500)
	assert.Less(t, total, 5000)
	assert.Greater(t, list[0].At, base.Add(-2*time.Hour).UnixMilli(), "the newest stay")
}

// A cluster that writes most loses its own past; another keeps all of its.
func TestAFloodCostsNobodyElse(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxBytes = 150 << 10
	s := open(t, cfg)
	at := func(hour int) time.Time { return base.Add(time.Duration(hour-20) * time.Hour) }
	for hour := range 20 {
		quiet := sample("q", at(hour), 1)
		quiet.Cluster = "quiet"
		batch := []fleethistory.Sample{quiet}
		for j := range 3000 {
			batch = append(batch, sample(fmt.Sprintf("n%d", j%20), at(hour).Add(time.Duration(j)*time.Millisecond), 1))
		}
		require.NoError(t, s.Append(t.Context(), batch, nil))
		maintain(t, s)
	}
	count := func(cluster string) int {
		_, total, err := s.Telemetry(t.Context(), &fleethistory.Query{Clusters: []string{cluster}, Start: base.Add(-30 * time.Hour), End: base, Limit: 1})
		require.NoError(t, err)
		return total
	}
	assert.Equal(t, 20, count("quiet"))
	assert.Less(t, count("c"), 9000)
	var counted int
	require.NoError(t, s.db.Load().read.QueryRow("SELECT sum(rows) FROM usage").Scan(&counted))
	assert.Equal(t, count("c")+20, counted)
}

// Too many episodes cost the cluster that has most of them its oldest.
func TestEpisodesAreBounded(t *testing.T) {
	s := open(t, testConfig(t))
	f, err := s.file(t.Context())
	require.NoError(t, err)
	_, err = f.write.Exec("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < ?) INSERT INTO episodes (id, updated, record, cluster) SELECT 'loud' || i, i, 'x', 'loud' FROM n", maxEpisodes+1500)
	require.NoError(t, err)
	require.NoError(t, s.Append(t.Context(), nil, []fleethistory.Episode{{Cluster: "quiet", ID: "q", Updated: 0, Record: []byte("x")}}))
	maintain(t, s)
	maintain(t, s)
	var n, oldest int
	require.NoError(t, f.read.QueryRow("SELECT count(*), min(updated) FROM episodes WHERE cluster = 'loud'").Scan(&n, &oldest))
	assert.Equal(t, []int{maxEpisodes - 1, 1502}, []int{n, oldest})
	require.NoError(t, f.read.QueryRow("SELECT count(*) FROM episodes WHERE cluster = 'quiet'").Scan(&n))
	assert.Equal(t, 1, n)
}

// A file of version 1 is read on. The owners of its slots are unknown: the oldest go.
func TestFileOfVersionOne(t *testing.T) {
	cfg := testConfig(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(cfg.Path), 0o750))
	db, err := connect(cfg.Path, "auto_vacuum(2)", "journal_mode(WAL)")
	require.NoError(t, err)
	_, err = db.Exec(migrations[0] + "PRAGMA user_version = 1")
	require.NoError(t, err)
	slot := slotOf(base.UnixMilli())
	_, err = db.Exec("INSERT INTO series VALUES (1, 'c', 'a', 'GPU-1', 'hw.temperature', 'a=b', ?)", slot)
	require.NoError(t, err)
	_, err = db.Exec("INSERT INTO samples VALUES (?, 1, ?, 7)", slot, base.UnixMilli())
	require.NoError(t, err)
	require.NoError(t, db.Close())
	s := open(t, cfg)
	assert.Equal(t, []fleethistory.Sample{sample("a", base, 7)}, all(t, s))
	later := sample("a", base.Add(30*time.Minute), 8)
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{later}, nil))
	s.cfg.MaxBytes = 1
	_, err = s.Maintain(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []fleethistory.Sample{later}, all(t, s))
}

func TestCacheFollowsTheSeries(t *testing.T) {
	s := open(t, testConfig(t))
	f, err := s.file(t.Context())
	require.NoError(t, err)
	cache := func() (kib int) {
		require.NoError(t, s.db.Load().write.QueryRow("PRAGMA cache_size").Scan(&kib))
		return -kib
	}
	assert.Equal(t, minCacheKiB, cache())
	for i := range uint64(10 * minCacheKiB) {
		f.w.known[seriesKey{i}] = seriesRow{}
	}
	maintain(t, s)
	assert.Equal(t, cacheKiB(10*minCacheKiB), cache())
	assert.Greater(t, cache(), minCacheKiB)
	assert.Equal(t, maxCacheKiB, cacheKiB(1e6))
}

func TestQuestionThatTakesTooLong(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	require.NoError(t, s.Append(t.Context(), []fleethistory.Sample{sample("a", base, 1)}, nil))
	s.cfg.QueryTimeout = time.Nanosecond
	_, _, err := s.Telemetry(t.Context(), &fleethistory.Query{Start: base, End: base, Limit: 1})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NoError(t, s.Status().Err, "a slow question is no fault of the file's")
}

func integrity(ctx context.Context, db *sql.DB) error {
	var text string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check").Scan(&text); err != nil {
		return err
	}
	if text != "ok" {
		return errors.New(text)
	}
	return nil
}

// Long names take their part of the file, and one cluster its share of that.
func TestClustersShareTheBytesOfNames(t *testing.T) {
	cfg := testConfig(t)
	now := base
	cfg.MaxBytes, cfg.ClusterShare, cfg.Retention, cfg.Now = 1<<20, 0.5, time.Hour, func() time.Time { return now }
	s := open(t, cfg)
	names := func(cluster string) (n int) {
		f, err := s.file(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.read.QueryRow("SELECT ifnull(sum(length(cluster)+length(host)+length(gpu)+length(metric)+length(attributes)), 0) FROM series WHERE cluster = ?", cluster).Scan(&n))
		return n
	}
	flood := func(cluster string, n int) {
		var batch []fleethistory.Sample
		for i := range n {
			p := sample(strconv.Itoa(i), now, 1)
			p.Cluster, p.Attributes = cluster, strings.Repeat("a", 1000)
			batch = append(batch, p)
		}
		require.NoError(t, s.Append(t.Context(), batch, nil))
	}
	const part = 1 << 20 / namesPart
	flood("loud", 400)
	assert.InDelta(t, part/2, names("loud"), 1100)
	flood("other", 20)
	assert.Greater(t, names("other"), 20_000, "all of it")
	require.NoError(t, s.Close())
	flood("loud", 800)
	assert.InDelta(t, part/2, names("loud"), 1100, "also in a file of before")
	now = now.Add(2 * time.Hour)
	flood("other", 1)
	maintain(t, s)
	assert.Zero(t, names("loud"))
	flood("loud", 400)
	assert.InDelta(t, part/2, names("loud"), 1100, "the room is back")
}
