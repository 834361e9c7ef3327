// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var base = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testConfig(t testing.TB) Config {
	t.Helper()
	return Config{Path: filepath.Join(t.TempDir(), "some dir", "history?#%.db"), QueryTimeout: time.Minute}
}

func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	s := New(cfg)
	_, err := s.file(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// The columns of the tests.
var (
	score       = slices.IndexFunc(fleethistory.Columns.Node, func(c fleethistory.Column) bool { return c.Metric == "gpu.node.health_score" })
	suspicion   = slices.IndexFunc(fleethistory.Columns.Node, func(c fleethistory.Column) bool { return c.Metric == "gpu.node.suspicion" })
	temperature = slices.IndexFunc(fleethistory.Columns.GPU, func(c fleethistory.Column) bool { return c.Metric == "hw.temperature" })
	median      = slices.IndexFunc(fleethistory.Columns.Group, func(c fleethistory.Column) bool { return c.Metric == "gpu.straggler.median" })
)

// numbers are the values of a subject; pairs are column and value.
func numbers(columns []fleethistory.Column, pairs ...any) []float64 {
	out := make([]float64, len(columns))
	for i := range out {
		out[i] = math.NaN()
	}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i].(int)] = pairs[i+1].(float64)
	}
	return out
}

// node is the row of a node with one GPU.
func node(name string, v float64) *fleethistory.Row {
	c := &fleethistory.Columns
	return &fleethistory.Row{Cluster: "c", Node: name, Group: "g,1", Subjects: []fleethistory.Subject{
		{Values: numbers(c.Node, score, v, suspicion, v+.5)}, {GPU: "GPU-" + name, Values: numbers(c.GPU, temperature, v+60)},
	}}
}

func group(v float64) *fleethistory.Row {
	return &fleethistory.Row{Cluster: "c", Group: "g,1", Subjects: []fleethistory.Subject{{Values: numbers(fleethistory.Columns.Group, median, v)}}}
}

func (s *Store) put(t testing.TB, at time.Time, rows ...*fleethistory.Row) {
	t.Helper()
	require.NoError(t, s.WriteRound(t.Context(), at, slices.Values(rows)))
}

// asked is a question for samples.
func asked(from, to time.Time) *fleethistory.Query {
	return &fleethistory.Query{Start: from, End: to, Limit: 1000}
}

func all(t testing.TB, s *Store) []fleethistory.Sample {
	t.Helper()
	list, total, err := fleethistory.Telemetry(t.Context(), s, asked(base.AddDate(-100, 0, 0), base.AddDate(100, 0, 0)))
	require.NoError(t, err)
	assert.Len(t, list, min(total, 1000))
	return list
}

func TestSamplesAreThereAfterReopening(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	s.put(t, base, group(.75), node("a", .5), node("b", .25))
	s.put(t, base.Add(time.Second), node("a", 1))
	s.put(t, base.Add(2*time.Second))
	sample := func(seconds int, node, gpu, metric, attributes string, v float64) fleethistory.Sample {
		return fleethistory.Sample{Cluster: "c", Node: node, GPU: gpu, Metric: metric, Attributes: attributes, At: base.UnixMilli() + int64(seconds)*1000, Value: v}
	}
	peers, sensor := `{"gpu.peer_group":"g,1"}`, `{"hw.sensor_location":"gpu"}`
	want := []fleethistory.Sample{
		sample(1, "a", "", "gpu.node.health_score", "", 1), sample(1, "a", "", "gpu.node.suspicion", peers, 1.5), sample(1, "a", "GPU-a", "hw.temperature", sensor, 61),
		sample(0, "", "", "gpu.straggler.median", peers, .75),
		sample(0, "a", "", "gpu.node.health_score", "", .5), sample(0, "a", "", "gpu.node.suspicion", peers, 1), sample(0, "a", "GPU-a", "hw.temperature", sensor, 60.5),
		sample(0, "b", "", "gpu.node.health_score", "", .25), sample(0, "b", "", "gpu.node.suspicion", peers, .75), sample(0, "b", "GPU-b", "hw.temperature", sensor, 60.25),
	}
	assert.Equal(t, want, all(t, s))
	assert.Equal(t, base.UnixMilli(), s.Status().Oldest.UnixMilli())
	require.NoError(t, s.Close())
	s = open(t, cfg)
	assert.Equal(t, want, all(t, s))

	page, total, err := fleethistory.Telemetry(t.Context(), s, &fleethistory.Query{Start: base, End: base, Offset: 2, Limit: 3})
	require.NoError(t, err)
	assert.Equal(t, want[5:8], page)
	assert.Equal(t, 7, total)
	q := asked(base, base.Add(time.Minute))
	q.Hosts, q.GPUs, q.Clusters, q.Metrics = []string{"a", "x"}, []string{"GPU-a", "GPU-b"}, []string{"c"}, []string{"hw.temperature"}
	page, _, err = fleethistory.Telemetry(t.Context(), s, q)
	require.NoError(t, err)
	assert.Equal(t, []fleethistory.Sample{want[2], want[6]}, page)
	for _, change := range []func(*fleethistory.Query){
		func(q *fleethistory.Query) { q.Clusters = []string{"x"} },
		func(q *fleethistory.Query) {
			q.Start, q.End = base.Add(time.Microsecond), base.Add(999*time.Millisecond)
		},
	} {
		none := *q
		change(&none)
		page, _, err = fleethistory.Telemetry(t.Context(), s, &none)
		require.NoError(t, err)
		assert.Empty(t, page)
	}
}

func TestFigures(t *testing.T) {
	s := open(t, testConfig(t))
	s.put(t, base, node("a", .5), group(.75))
	s.put(t, base.Add(time.Minute), node("a", 1), node("b", 0))
	q := asked(base, base.Add(time.Minute))
	hosts, total, err := fleethistory.ListRecorded(t.Context(), s, q, false)
	require.NoError(t, err)
	assert.Equal(t, []fleethistory.Recorded{
		{Cluster: "c", Host: "a", First: base, Last: base.Add(time.Minute), Samples: 6}, {Cluster: "c", Host: "b", First: base.Add(time.Minute), Last: base.Add(time.Minute), Samples: 3},
	}, hosts)
	assert.Equal(t, 2, total)
	gpus, _, err := fleethistory.ListRecorded(t.Context(), s, &fleethistory.Query{Start: q.Start, End: q.End, Offset: 1, Limit: 1}, true)
	require.NoError(t, err)
	assert.Equal(t, []fleethistory.Recorded{{Cluster: "c", Host: "b", GPU: "GPU-b", First: base.Add(time.Minute), Last: base.Add(time.Minute), Samples: 1}}, gpus)
	for by, want := range map[fleethistory.GroupBy][]fleethistory.Aggregation{
		fleethistory.ByGPU: {
			{Cluster: "c", Host: "a", GPU: "GPU-a", Metric: "hw.temperature", Count: 2, Min: 60.5, Max: 61, Sum: 121.5, Mean: 60.75},
			{Cluster: "c", Host: "b", GPU: "GPU-b", Metric: "hw.temperature", Count: 1, Min: 60, Max: 60, Sum: 60, Mean: 60},
		},
		fleethistory.ByHost: {
			{Cluster: "c", Host: "a", Metric: "hw.temperature", Count: 2, Min: 60.5, Max: 61, Sum: 121.5, Mean: 60.75},
			{Cluster: "c", Host: "b", Metric: "hw.temperature", Count: 1, Min: 60, Max: 60, Sum: 60, Mean: 60},
		},
		fleethistory.ByCluster: {{Cluster: "c", Metric: "hw.temperature", Count: 3, Min: 60, Max: 61, Sum: 181.5, Mean: 60.5}},
		fleethistory.ByMetric:  {{Metric: "hw.temperature", Count: 3, Min: 60, Max: 61, Sum: 181.5, Mean: 60.5}},
	} {
		q.Metrics = []string{"hw.temperature"}
		for i := range want {
			want[i].Attributes = `{"hw.sensor_location":"gpu"}`
		}
		got, err := fleethistory.Aggregate(t.Context(), s, q, by)
		require.NoError(t, err)
		assert.Equal(t, want, got, by)
	}
	q.Metrics = []string{"gpu.straggler.median"}
	got, err := fleethistory.Aggregate(t.Context(), s, q, fleethistory.ByHost)
	require.NoError(t, err)
	assert.Empty(t, got, "a group is no host")
}

// TestSteps compares with a search through all rounds.
func TestSteps(t *testing.T) {
	s := open(t, testConfig(t))
	rounds := map[int]float64{} // by minute
	rapid.Check(t, func(rt *rapid.T) {
		minute := rapid.IntRange(0, 240)
		for range rapid.IntRange(0, 5).Draw(rt, "rounds") {
			m := minute.Draw(rt, "at")
			if _, there := rounds[m]; !there {
				rounds[m] = float64(len(rounds))
				s.put(t, base.Add(time.Duration(m)*time.Minute), node("a", rounds[m]), node("b", 0), group(0))
			}
		}
		q := &fleethistory.Query{Step: time.Duration(rapid.IntRange(1, 100).Draw(rt, "step")) * time.Minute, Clusters: []string{"c"}, Hosts: []string{"a"}, PeerGroup: "g,1", Start: base.Add(time.Duration(minute.Draw(rt, "start")) * time.Minute), Limit: 10_000}
		q.End = q.Start.Add(time.Duration(minute.Draw(rt, "length")) * time.Minute)
		var want []fleethistory.Sample
		for end := q.Ends(q.Start.UnixMilli()); end <= q.End.UnixMilli(); end += q.Step.Milliseconds() {
			last := -1
			for m := range rounds {
				at := base.Add(time.Duration(m) * time.Minute)
				if !at.Before(q.Start) && at.UnixMilli() <= end && at.UnixMilli() > end-q.Back().Milliseconds() {
					last = max(last, m)
				}
			}
			if last >= 0 {
				want = append(want, fleethistory.Sample{Cluster: "c", Node: "a", Metric: "gpu.node.suspicion", Attributes: `{"gpu.peer_group":"g,1"}`, At: end, Value: rounds[last] + .5})
			}
		}
		got, err := fleethistory.Steps(t.Context(), s, q)
		require.NoError(rt, err)
		require.Equal(rt, want, got)
		if q.Limit = len(want) - 1; len(want) > 0 {
			_, err = fleethistory.Steps(t.Context(), s, q)
			require.ErrorIs(rt, err, fleethistory.ErrTooMuch)
		}
	})
}

func TestEpisodes(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	at := func(cluster, id string, seconds int) *episode.Episode {
		return &episode.Episode{Cluster: cluster, ID: id, Updated: base.Add(time.Duration(seconds) * time.Second)}
	}
	require.NoError(t, s.WriteEpisodes(t.Context(), []*episode.Episode{at("c", "e", 1), at("d", "e", 2), at("c", "f", 3)}, nil, false))
	require.NoError(t, s.WriteEpisodes(t.Context(), []*episode.Episode{at("c", "e", 4)}, []episode.Key{{Cluster: "c", ID: "f"}, {Cluster: "c", ID: "nobody"}}, false))
	require.NoError(t, s.Close())
	list, err := s.Episodes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []*episode.Episode{at("c", "e", 4), at("d", "e", 2)}, list, "clusters may share IDs")

	require.NoError(t, s.WriteEpisodes(t.Context(), []*episode.Episode{at("c", "g", 5)}, nil, true))
	list, err = s.Episodes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []*episode.Episode{at("c", "g", 5)}, list, "anew, in place of all")
}

// TestChunk: what is written comes back, and no bytes at all stop the process.
func TestChunk(t *testing.T) {
	var columns []fleethistory.Column
	for i := range 64 {
		columns = append(columns, fleethistory.Column{Metric: strconv.Itoa(i)})
	}
	layout, err := json.Marshal(&fleethistory.Layout{Node: columns, GPU: columns, Group: columns})
	require.NoError(t, err)
	read := func(q *fleethistory.Query, rows []byte) (list []fleethistory.Sample, err error) {
		_, err = newSelection(q).each(1, layout, encoder.EncodeAll(rows, nil), func(p *fleethistory.Sample) bool {
			list = append(list, *p)
			return true
		})
		return list, err
	}
	rapid.Check(t, func(t *rapid.T) {
		metrics := rapid.SliceOfN(rapid.SampledFrom(columns), 0, 3).Draw(t, "metrics")
		q := &fleethistory.Query{}
		for _, c := range metrics {
			q.Metrics = append(q.Metrics, c.Metric)
		}
		var c chunk
		var want []fleethistory.Sample
		for range rapid.IntRange(1, 3).Draw(t, "rows") {
			row := &fleethistory.Row{Cluster: "c", Node: rapid.String().Draw(t, "node"), Subjects: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fleethistory.Subject {
				return fleethistory.Subject{GPU: rapid.String().Draw(t, "gpu"), Values: rapid.SliceOfN(rapid.OneOf(rapid.Float64(), rapid.Just(math.NaN())), 64, 64).Draw(t, "values")}
			}), 1, 3).Draw(t, "subjects")}
			c.add(row)
			for _, s := range row.Subjects {
				for i, v := range s.Values {
					if metric := strconv.Itoa(i); !math.IsNaN(v) && (len(q.Metrics) == 0 || slices.Contains(q.Metrics, metric)) {
						want = append(want, fleethistory.Sample{Cluster: "c", Node: row.Node, GPU: s.GPU, Metric: metric, At: 1, Value: v})
					}
				}
			}
		}
		got, err := read(q, c.rows)
		require.NoError(t, err)
		require.Equal(t, want, got)
		_, _ = read(q, c.rows[:rapid.IntRange(1, len(c.rows)-1).Draw(t, "cut")])
		_, _ = read(q, rapid.SliceOf(rapid.Byte()).Draw(t, "garbage"))
	})
	for _, rows := range [][]byte{{200}, {0, 0, 0, 1}, {0, 0, 0, 1, 0, 200}, {0, 0, 0, 1, 0, 1}} {
		_, err := read(&fleethistory.Query{}, rows)
		require.ErrorIs(t, err, errChunk, rows)
	}
}

// TestDamagedChunk: the rest of the history is answered, and the file stays.
func TestDamagedChunk(t *testing.T) {
	s := open(t, testConfig(t))
	s.put(t, base, node("a", 1))
	s.put(t, base.Add(time.Minute), node("a", 2))
	_, err := s.db.write.Exec("UPDATE chunks SET rows = x'28b52ffd00' WHERE id = 2")
	require.NoError(t, err)
	assert.Len(t, all(t, s), 3)
	assert.Contains(t, s.Status().Note, "nodes of 2026-03-01T12:01:00Z are left out")
	require.NoError(t, s.Status().Err)
	s.put(t, base.Add(2*time.Minute), node("a", 3))
	assert.Len(t, all(t, s), 6)
}

// TestRetention: the rounds that were written first go, whatever their clock said.
func TestRetention(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxRounds = 3
	s := open(t, cfg)
	times := func() (list []int) {
		for _, p := range all(t, s) {
			if p.Metric == "gpu.node.health_score" {
				list = append(list, time.UnixMilli(p.At).UTC().Year())
			}
		}
		return list
	}
	for _, year := range []int{2036, 1999, 2026} {
		s.put(t, time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC), node("a", 1))
	}
	assert.Equal(t, []int{2036, 2026, 1999}, times(), "a clock that jumps deletes nothing")
	s.put(t, base, node("a", 1))
	assert.Equal(t, []int{2026, 2026, 1999}, times())
	s.cfg.MaxRounds = 1
	s.put(t, base, node("a", 1))
	assert.Equal(t, []int{2026}, times())
}

func TestRetentionBySize(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	var rows []*fleethistory.Row
	for i := range 1000 {
		rows = append(rows, node(strconv.Itoa(i), 1/float64(i+3)))
	}
	for i := range 20 {
		s.put(t, base.Add(time.Duration(i)*time.Minute), rows...)
	}
	large := s.Status().Bytes
	s.cfg.MaxBytes = 500_000
	for i := range 20 {
		s.put(t, base.Add(time.Duration(20+i)*time.Minute), rows...)
	}
	require.NoError(t, s.Close()) // the log is in the file now
	assert.Less(t, s.Status().Bytes, cfg.MaxBytes+600_000)
	assert.Less(t, s.Status().Bytes, large/2, "the file shrinks")
	_, total, err := fleethistory.Telemetry(t.Context(), s, asked(base.Add(39*time.Minute), base.Add(39*time.Minute)))
	require.NoError(t, err)
	assert.Equal(t, 3000, total, "the newest stays")
}

// fill lets the file grow no further, as a full disk would: SQLite answers the
// same SQLITE_FULL.
func fill(t *testing.T, s *Store, pages int) {
	t.Helper()
	var n int
	require.NoError(t, s.db.write.QueryRow(fmt.Sprintf("PRAGMA max_page_count = %d", pages)).Scan(&n))
}

func TestFullDisk(t *testing.T) {
	s := open(t, testConfig(t))
	s.put(t, base, node("a", 1))
	fill(t, s, 1)
	var rows []*fleethistory.Row
	for i := range 10_000 {
		rows = append(rows, node(strconv.Itoa(i), 1/float64(i+3)))
	}
	require.ErrorContains(t, s.WriteRound(t.Context(), base, slices.Values(rows)), "the disk is full")
	assert.Len(t, all(t, s), 3, "nothing of the round is there, and reads go on")
	fill(t, s, 1_000_000)
	s.put(t, base, rows[:100]...)
	assert.Len(t, all(t, s), 303)
}

func TestLockedFile(t *testing.T) {
	cfg := testConfig(t)
	s := open(t, cfg)
	other := connect(cfg.Path, 1)
	defer func() { require.NoError(t, other.Close()) }()
	tx, err := other.Begin() // BEGIN IMMEDIATE
	require.NoError(t, err)
	rows := slices.Values([]*fleethistory.Row{node("a", 1)})
	require.ErrorContains(t, s.WriteRound(t.Context(), base, rows), "another process holds the lock")
	assert.Empty(t, all(t, s), "reads go on")
	require.NoError(t, tx.Rollback())
	require.NoError(t, s.WriteRound(t.Context(), base, rows))
	assert.Len(t, all(t, s), 3)
}

// TestNobodyElseReadsTheFile: nor those that SQLite has beside it, nor one of before.
func TestNobodyElseReadsTheFile(t *testing.T) {
	cfg := testConfig(t)
	check := func() {
		t.Helper()
		s := open(t, cfg)
		s.put(t, base, node("a", 1))
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
	aside := func(cfg *Config) []string {
		list, err := filepath.Glob(filepath.Join(filepath.Dir(cfg.Path), "*.aside-*"))
		require.NoError(t, err)
		return list
	}
	t.Run("at start", func(t *testing.T) {
		cfg := testConfig(t)
		garbage := strings.Repeat("this is no database", 1000)
		require.NoError(t, os.MkdirAll(filepath.Dir(cfg.Path), 0o750))
		require.NoError(t, os.WriteFile(cfg.Path, []byte(garbage), 0o600))
		s := open(t, cfg)
		s.put(t, base, node("a", 1))
		assert.Len(t, all(t, s), 3)
		require.Len(t, aside(&cfg), 1)
		kept, err := os.ReadFile(aside(&cfg)[0])
		require.NoError(t, err)
		assert.Equal(t, garbage, string(kept))
		assert.Contains(t, s.Status().Note, aside(&cfg)[0])
		assert.NoError(t, s.Status().Err)
	})
	t.Run("while running", func(t *testing.T) {
		cfg := testConfig(t)
		s := open(t, cfg)
		for i := range 1000 {
			s.put(t, base.Add(-time.Duration(i)*time.Second), node("a", 1/float64(i)), node("b", 1/float64(i)))
		}
		require.NoError(t, s.Close()) // the log is in the file now
		info, err := os.Stat(cfg.Path)
		require.NoError(t, err)
		file, err := os.OpenFile(cfg.Path, os.O_WRONLY, 0)
		require.NoError(t, err)
		// All but the first pages, so that it still opens.
		const whole = 8 * 16384
		_, err = file.WriteAt([]byte(strings.Repeat("x", int(info.Size())-whole)), whole)
		require.NoError(t, err)
		require.NoError(t, file.Close())

		s = open(t, cfg)
		_, _, err = fleethistory.Telemetry(t.Context(), s, asked(base.Add(-1000*time.Second), base))
		require.ErrorIs(t, err, fleethistory.ErrUnavailable)
		require.Error(t, s.Status().Err)
		require.Error(t, s.WriteRound(t.Context(), base, slices.Values([]*fleethistory.Row{node("a", 1)})), "the writer is told, and puts it aside")
		s.put(t, base, node("a", 1))
		assert.Len(t, all(t, s), 3)
		require.NoError(t, s.Status().Err)
		assert.Contains(t, s.Status().Note, "put aside")
		assert.NotEmpty(t, aside(&cfg))
	})
}

func TestFileOfAnotherVersion(t *testing.T) {
	of := func(version int) *Store {
		cfg := testConfig(t)
		require.NoError(t, os.MkdirAll(filepath.Dir(cfg.Path), 0o750))
		db := connect(cfg.Path, 1, "journal_mode(WAL)")
		_, err := db.Exec(fmt.Sprintf("PRAGMA user_version = %d", version))
		require.NoError(t, err)
		require.NoError(t, db.Close())
		return New(cfg)
	}
	_, err := of(99).file(t.Context())
	require.ErrorContains(t, err, "version 99, written by a newer gpu-collector")
	s := of(2)
	s.put(t, base, node("a", 1))
	assert.Len(t, all(t, s), 3)
	assert.Contains(t, s.Status().Note, "a new one was begun: the file is of an older version")
	require.NoError(t, s.Close())
}

func TestAFileThatIsNone(t *testing.T) {
	for name, create := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"loop":      func(path string) error { return os.Symlink(filepath.Base(path), path) },
	} {
		path := filepath.Join(t.TempDir(), "history.db")
		require.NoError(t, create(path))
		_, err := New(Config{Path: path}).file(t.Context())
		require.ErrorContains(t, err, "the file cannot be opened", name)
		require.NotContains(t, err.Error(), "memory", name)
	}
}

func TestQuestionThatTakesTooLong(t *testing.T) {
	s := open(t, testConfig(t))
	s.cfg.QueryTimeout = time.Nanosecond
	_, _, err := fleethistory.Telemetry(t.Context(), s, asked(base, base))
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
