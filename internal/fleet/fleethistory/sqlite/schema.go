// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"fmt"
)

// usage has the rows of each cluster in a slot, as many as were written: a row that is
// written again counts twice. Slots of a file of version 1 are not in it.
//
// migrations bring a file from one version of the schema to the next; the
// version is in user_version. They are only ever added to.
//
// Samples lie by slot of time, then series. A report goes to the few pages of the
// current slot, and old samples are one range. A series' samples of a slot are side
// by side.
var migrations = []string{`
CREATE TABLE series (
	id         INTEGER PRIMARY KEY,
	cluster    TEXT NOT NULL,
	host       TEXT NOT NULL,
	gpu        TEXT NOT NULL,
	metric     TEXT NOT NULL,
	attributes TEXT NOT NULL,
	last_slot  INTEGER NOT NULL,
	UNIQUE (host, metric, gpu, cluster, attributes)
);
CREATE INDEX series_by_metric ON series (metric);
CREATE INDEX series_by_gpu ON series (gpu);
CREATE INDEX series_by_slot ON series (last_slot);
CREATE TABLE samples (
	slot   INTEGER NOT NULL,
	series INTEGER NOT NULL,
	at     INTEGER NOT NULL,
	value  REAL NOT NULL,
	PRIMARY KEY (slot, series, at)
) WITHOUT ROWID;
CREATE TABLE episodes (
	id      TEXT PRIMARY KEY,
	updated INTEGER NOT NULL,
	record  BLOB NOT NULL
);
CREATE INDEX episodes_by_time ON episodes (updated);
`, `
CREATE TABLE usage (
	slot    INTEGER NOT NULL,
	cluster TEXT NOT NULL,
	rows    INTEGER NOT NULL,
	PRIMARY KEY (slot, cluster)
) WITHOUT ROWID;
CREATE INDEX series_by_cluster ON series (cluster);
ALTER TABLE episodes ADD COLUMN cluster TEXT NOT NULL DEFAULT '';
CREATE INDEX episodes_by_cluster ON episodes (cluster, updated);
`}

// slotLength is how much time lies together, in milliseconds: a week is 672
// slots, and each costs a question about one series one search.
const slotLength = 15 * 60 * 1000

// slotOf also rounds times before 1970 down.
func slotOf(ms int64) int64 {
	if ms < 0 {
		return (ms+1)/slotLength - 1
	}
	return ms / slotLength
}

func migrate(ctx context.Context, db *sql.DB) error {
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("the file is of version %d, written by a newer gpu-collector; this one knows up to %d: name another file", version, len(migrations))
	}
	for ; version < len(migrations); version++ {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, migrations[version]+fmt.Sprintf("PRAGMA user_version = %d;", version+1))
		if err != nil {
			_ = tx.Rollback()
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}
