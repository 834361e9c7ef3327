// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"iter"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var _ fleethistory.Storage = (*Store)(nil)

// transact runs f in a transaction. A file that somebody found damaged is put aside first, and
// the call fails: what it had is not known any more.
func (s *Store) transact(ctx context.Context, f func(*sql.Tx) error) error {
	db, err := s.file(ctx)
	if err != nil {
		return err
	}
	if damage := db.damage.Load(); damage != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return errors.Join(*damage, s.putAside(*damage))
	}
	tx, err := db.write.BeginTx(ctx, nil)
	if err == nil {
		if err = f(tx); err == nil {
			err = tx.Commit()
		} else {
			_ = tx.Rollback()
		}
	}
	return met(db, err)
}

// WriteEpisodes implements fleethistory.Storage.
func (s *Store) WriteEpisodes(ctx context.Context, changed []*episode.Episode, gone []episode.Key, anew bool) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		if anew {
			if _, err := tx.ExecContext(ctx, "DELETE FROM episodes"); err != nil {
				return err
			}
		}
		for _, e := range changed {
			record, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, "INSERT OR REPLACE INTO episodes (cluster, id, record) VALUES (?, ?, ?)", e.Cluster, e.ID, record); err != nil {
				return err
			}
		}
		for _, key := range gone {
			if _, err := tx.ExecContext(ctx, "DELETE FROM episodes WHERE cluster = ? AND id = ?", key.Cluster, key.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// WriteRound implements fleethistory.Storage. It drops old rounds beyond the bounds.
func (s *Store) WriteRound(ctx context.Context, at time.Time, rows iter.Seq[*fleethistory.Row]) error {
	return s.transact(ctx, func(tx *sql.Tx) error {
		if err := writeRound(ctx, tx, at, rows); err != nil {
			return err
		}
		return s.dropRounds(ctx, tx)
	})
}

// maxDropped bounds the rounds that go when one comes.
const maxDropped = 20

// writeRound writes the rows in chunks, each as soon as it is long enough.
func writeRound(ctx context.Context, tx *sql.Tx, at time.Time, rows iter.Seq[*fleethistory.Row]) error {
	columns, _ := json.Marshal(&fleethistory.Columns) // texts can be marshalled
	var round int64
	var c chunk
	flush := func() error {
		_, err := tx.ExecContext(ctx, "INSERT INTO chunks (round, first, last, rows) VALUES (?, ?, ?, ?)", round, c.first, c.last, encoder.EncodeAll(c.rows, nil))
		c.rows = c.rows[:0]
		return err
	}
	for row := range rows {
		if round == 0 {
			if err := tx.QueryRowContext(ctx, "INSERT INTO rounds (at, columns) VALUES (?, ?) RETURNING id", at.UnixMilli(), string(columns)).Scan(&round); err != nil {
				return err
			}
		}
		if c.add(row); len(c.rows) >= chunkBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(c.rows) == 0 {
		return nil
	}
	return flush()
}

// dropRounds drops the oldest rounds while there are too many, or too many bytes. The oldest is the
// one that was written first, whatever its clock said.
func (s *Store) dropRounds(ctx context.Context, tx *sql.Tx) error {
	for range maxDropped {
		var oldest, at, rounds, bytes int64
		err := tx.QueryRowContext(ctx, `SELECT id, at, (SELECT count(*) FROM rounds), (SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size)
			FROM rounds ORDER BY id LIMIT 1`).Scan(&oldest, &at, &rounds, &bytes)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		s.oldest.Store(at)
		if tooMany, tooLarge := s.cfg.MaxRounds > 0 && rounds > s.cfg.MaxRounds, s.cfg.MaxBytes > 0 && bytes > s.cfg.MaxBytes; rounds == 1 || !tooMany && !tooLarge {
			// The file shrinks where a bound has become lower. The pragma goes on while it is stepped.
			rows, err := tx.QueryContext(ctx, "PRAGMA incremental_vacuum(1000)")
			return each(rows, err, func() error { return nil })
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM rounds WHERE id = ?", oldest); err != nil {
			return err
		}
	}
	return nil
}
