// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/platform/fairshare"
)

// rowsPerStatement rows of a slot go in with one statement. The driver compiles it
// anew each time, prepared or not (modernc.org/sqlite, stmt.exec), at a cost by parameter.
// So all rows share the slot's parameter; with many more rows a statement takes longer.
const rowsPerStatement = 64

// The statements of a writer.
const (
	insertOne   = "INSERT INTO samples (slot, series, at, value) VALUES (?1,?,?,?)"
	lastOneWins = " ON CONFLICT DO UPDATE SET value = excluded.value"
	// Another process may have written to the file meanwhile.
	insertSeries  = "INSERT INTO series (host, metric, gpu, cluster, attributes, last_slot) VALUES (?,?,?,?,?,?) ON CONFLICT (host, metric, gpu, cluster, attributes) DO UPDATE SET last_slot = max(last_slot, excluded.last_slot) RETURNING id"
	touchSeries   = "UPDATE series SET last_slot = max(last_slot, ?) WHERE id = ?"
	addUsage      = "INSERT INTO usage (slot, cluster, rows) VALUES (?,?,?) ON CONFLICT DO UPDATE SET rows = rows + excluded.rows"
	insertEpisode = "INSERT INTO episodes (id, updated, record, cluster) VALUES (?,?,?,?) ON CONFLICT DO UPDATE SET updated = excluded.updated, record = excluded.record, cluster = excluded.cluster WHERE excluded.updated >= updated"
)

var insertMany = insertOne + strings.Repeat(",(?1,?,?,?)", rowsPerStatement-1) + lastOneWins

// writer is what the one connection that writes keeps. Only Append and Maintain
// use it, but for oldest.
type writer struct {
	conn  *sql.DB
	seeds [2]maphash.Seed
	// known are all series of the file: whether one is new is not asked of the
	// file, which would compile the question anew for each.
	known map[seriesKey]seriesRow
	// By cluster, the series and the bytes of their names.
	slots, names *fairshare.Ledger[string]
	oldest       atomic.Int64 // start of the oldest slot, Unix milliseconds
	rows         []row
	args         []any
}

// seriesKey are 128 bits of hash: the names themselves would be most of the memory.
type seriesKey [2]uint64

type seriesRow struct{ id, lastSlot int64 }

// use is what a cluster has in a slot.
type use struct {
	slot    int64
	cluster string
}

type row struct {
	slot, series, at int64
	value            float64
}

func (w *writer) prepare(ctx context.Context, db *sql.DB, cfg *Config) error {
	w.conn = db
	w.seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	w.known = map[seriesKey]seriesRow{}
	w.slots = fairshare.New[string](cfg.MaxSeries, cfg.ClusterShare)
	w.names = fairshare.New[string](nameBytes(cfg), cfg.ClusterShare)
	if err := w.learn(ctx); err != nil {
		return err
	}
	_, err := w.lookOldest(ctx)
	return err
}

// namesPart is the part of the file that the names of series may take. The file has each
// twice, in the table and in its index.
const namesPart = 8

func nameBytes(cfg *Config) int {
	if cfg.MaxBytes <= 0 {
		return math.MaxInt32 << 8 // as good as unbounded
	}
	return int(cfg.MaxBytes / namesPart)
}

// nameSize is how many bytes the names of a series take.
func nameSize(p *fleethistory.Sample) int {
	return len(p.Cluster) + len(p.Node) + len(p.GPU) + len(p.Metric) + len(p.Attributes)
}

// takeSlot takes the slot of a new series with names of so many bytes.
func (w *writer) takeSlot(cluster string, bytes int) bool {
	if w.slots.Take(cluster, 1) == 0 {
		return false
	}
	if !w.names.TakeAll(cluster, bytes) {
		w.slots.Give(cluster, 1)
		return false
	}
	return true
}

// learn reads which series there are.
func (w *writer) learn(ctx context.Context) error {
	var p fleethistory.Sample
	return each(ctx, w.conn, "SELECT id, last_slot, host, metric, gpu, cluster, attributes FROM series", nil, func(rows *sql.Rows) error {
		var r seriesRow
		err := rows.Scan(&r.id, &r.lastSlot, &p.Node, &p.Metric, &p.GPU, &p.Cluster, &p.Attributes)
		w.known[w.key(&p)] = r
		w.slots.Hold(p.Cluster, 1)
		w.names.Hold(p.Cluster, nameSize(&p))
		return err
	})
}

func (w *writer) lookOldest(ctx context.Context) (slot sql.NullInt64, err error) {
	if err = w.conn.QueryRowContext(ctx, "SELECT min(slot) FROM samples").Scan(&slot); err == nil {
		w.oldest.Store(slot.Int64 * slotLength)
	}
	return slot, err
}

// Append implements fleethistory.Storage.
func (s *Store) Append(ctx context.Context, samples []fleethistory.Sample, episodes []fleethistory.Episode) error {
	if err := s.check(ctx); err != nil {
		return s.met(err)
	}
	f, err := s.file(ctx)
	if err != nil {
		return err
	}
	dropped, err := f.w.append(ctx, &s.cfg, samples, episodes)
	if err != nil {
		return s.met(err)
	}
	if dropped > 0 {
		s.cfg.OnDrop(dropped)
	}
	return nil
}

func (w *writer) append(ctx context.Context, cfg *Config, samples []fleethistory.Sample, episodes []fleethistory.Episode) (dropped int64, err error) {
	tx, err := w.conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	// The series that are new, or in a new slot, are known once the transaction is done.
	added := map[seriesKey]seriesRow{}
	var created []*fleethistory.Sample // one of each new series
	defer func() {
		if err != nil {
			_ = tx.Rollback()
			for _, p := range created {
				w.slots.Give(p.Cluster, 1)
				w.names.Give(p.Cluster, nameSize(p))
			}
		}
	}()
	w.rows = w.rows[:0]
	used := map[use]int64{}
	oldest := int64(math.MinInt64)
	if cfg.Retention > 0 {
		oldest = cfg.Now().Add(-cfg.Retention).UnixMilli()
	}
	for i := range samples {
		p := &samples[i]
		// SQLite has no NaN, JSON no infinity either.
		if p.At < oldest || math.IsNaN(p.Value) || math.IsInf(p.Value, 0) {
			dropped++
			continue
		}
		slot := slotOf(p.At)
		k := w.key(p)
		r, known := added[k]
		if !known {
			r, known = w.known[k]
		}
		if !known {
			if !w.takeSlot(p.Cluster, nameSize(p)) {
				dropped++
				continue
			}
			created = append(created, p)
			r.lastSlot = slot
			if err = tx.QueryRowContext(ctx, insertSeries, p.Node, p.Metric, p.GPU, p.Cluster, p.Attributes, slot).Scan(&r.id); err != nil {
				return 0, err
			}
			added[k] = r
		}
		if slot > r.lastSlot {
			if _, err = tx.ExecContext(ctx, touchSeries, slot, r.id); err != nil {
				return 0, err
			}
			r.lastSlot = slot
			added[k] = r
		}
		w.rows = append(w.rows, row{slot, r.id, p.At, p.Value})
		used[use{slot, p.Cluster}]++
	}
	if err = w.insertRows(ctx, tx); err != nil {
		return 0, err
	}
	for u, n := range used {
		if _, err = tx.ExecContext(ctx, addUsage, u.slot, u.cluster, n); err != nil {
			return 0, err
		}
	}
	for i := range episodes {
		e := &episodes[i]
		if _, err = tx.ExecContext(ctx, insertEpisode, e.ID, e.Updated, e.Record, e.Cluster); err != nil {
			return 0, err
		}
	}
	if err = tx.Commit(); err != nil {
		return 0, err
	}
	maps.Copy(w.known, added)
	if len(w.rows) > 0 {
		if first := w.rows[0].slot * slotLength; w.oldest.Load() == 0 || first < w.oldest.Load() {
			w.oldest.Store(first)
		}
	}
	return dropped, nil
}

// insertRows writes in the order of the table, so that neighbours share pages.
// Of samples of one series and time the last one wins.
func (w *writer) insertRows(ctx context.Context, tx *sql.Tx) error {
	slices.SortStableFunc(w.rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.series, b.series), cmp.Compare(a.at, b.at))
	})
	rows := w.rows
	for len(rows) > 0 {
		n, text, slot := 1, insertOne+lastOneWins, rows[0].slot
		if len(rows) >= rowsPerStatement && rows[rowsPerStatement-1].slot == slot {
			n, text = rowsPerStatement, insertMany
		}
		w.args = append(w.args[:0], slot)
		for _, r := range rows[:n] {
			w.args = append(w.args, r.series, r.at, r.value)
		}
		if _, err := tx.ExecContext(ctx, text, w.args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (w *writer) key(p *fleethistory.Sample) (k seriesKey) {
	for i, seed := range w.seeds {
		k[i] = maphash.Comparable(seed, [...]string{p.Node, p.Metric, p.GPU, p.Cluster, p.Attributes})
	}
	return k
}
