// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/verdict/episode"
)

var _ fleethistory.Storage = (*Store)(nil)

// transact runs f in a transaction. A file that somebody found damaged is put aside first, and
// the call fails: what it had is not known any more.
func (s *Store) transact(ctx context.Context, f func(*sql.Tx) error) error {
	if d := s.damaged.Load(); d != nil && d.in != nil && d.in == s.db.Load() {
		s.mu.Lock()
		defer s.mu.Unlock()
		return errors.Join(d.reason, s.putAside(d.reason))
	}
	db, err := s.file(ctx)
	if err != nil {
		return err
	}
	tx, err := db.write.BeginTx(ctx, nil)
	if err == nil {
		if err = f(tx); err == nil {
			err = tx.Commit()
		} else {
			_ = tx.Rollback()
		}
	}
	return s.met(db, err)
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
		for range maxDropped {
			if more, err := s.dropRound(ctx, tx); err != nil || !more {
				return err
			}
		}
		return nil
	})
}

const (
	// maxDropped bounds the rounds that go when one comes.
	maxDropped = 20
	// vacuumPages are given back to the file system in one round.
	vacuumPages = 1000
)

func writeRound(ctx context.Context, tx *sql.Tx, at time.Time, rows iter.Seq[*fleethistory.Row]) error {
	columns, err := json.Marshal(&fleethistory.Columns)
	if err != nil {
		return err
	}
	var round int64
	var record []byte
	for row := range rows {
		if round == 0 {
			if err := tx.QueryRowContext(ctx, "INSERT INTO rounds (at, columns) VALUES (?, ?) RETURNING id", at.UnixMilli(), string(columns)).Scan(&round); err != nil {
				return err
			}
		}
		record = appendRecord(record[:0], row.Subjects)
		if _, err := tx.ExecContext(ctx, "INSERT INTO records (round, host, cluster, peer_group, record) VALUES (?, ?, ?, ?, ?)",
			round, row.Node, row.Cluster, row.Group, record); err != nil {
			return err
		}
	}
	return nil
}

// dropRound drops the oldest round where there are too many, or too many bytes, and reports
// whether it did. The oldest is the one that was written first, whatever its clock said.
func (s *Store) dropRound(ctx context.Context, tx *sql.Tx) (more bool, err error) {
	var oldest, at, rounds, bytes int64
	err = tx.QueryRowContext(ctx, `SELECT id, at, (SELECT count(*) FROM rounds), (SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size)
		FROM rounds ORDER BY id LIMIT 1`).Scan(&oldest, &at, &rounds, &bytes)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.oldest.Store(at)
	if tooMany, tooLarge := s.cfg.MaxRounds > 0 && rounds > s.cfg.MaxRounds, s.cfg.MaxBytes > 0 && bytes > s.cfg.MaxBytes; rounds == 1 || !tooMany && !tooLarge {
		// The file shrinks where a bound has become lower. The pragma goes on while it is stepped.
		rows, err := tx.QueryContext(ctx, fmt.Sprintf("PRAGMA incremental_vacuum(%d)", vacuumPages))
		return false, each(rows, err, func() error { return nil })
	}
	for _, text := range []string{"DELETE FROM records WHERE round = ?", "DELETE FROM rounds WHERE id = ?"} {
		if _, err := tx.ExecContext(ctx, text, oldest); err != nil {
			return false, err
		}
	}
	return true, nil
}
