// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Documents is a file of records that are kept for years, each under a kind and an ID. The
// file is apart from the samples': it is small, and no bound of theirs touches it. All
// methods may be called from any goroutine.
type Documents struct {
	path string
	now  func() time.Time

	mu   sync.Mutex
	db   *sql.DB // nil until it could be opened
	note string
	err  error
}

// Document is one record. One without Record is deleted.
type Document struct {
	Kind, ID string
	Record   []byte
}

// documentsSchema is version 1 of the file.
const documentsSchema = `
CREATE TABLE IF NOT EXISTS documents (
	kind   TEXT NOT NULL,
	id     TEXT NOT NULL,
	record BLOB NOT NULL,
	PRIMARY KEY (kind, id)
) WITHOUT ROWID;
PRAGMA user_version = 1;
`

const documentsVersion = 1

// NewDocuments returns a store. It opens the file when it is first needed, and again until
// that works.
func NewDocuments(path string, now func() time.Time) *Documents {
	return &Documents{path: path, now: now}
}

// open opens the file, and puts a damaged one aside. d.mu is held.
func (d *Documents) open(ctx context.Context) error {
	if d.db != nil {
		return nil
	}
	db, err := d.connect(ctx)
	if isDamaged(err) {
		aside, failed := renameAside(d.path, d.now())
		if failed != nil {
			return fmt.Errorf("the file is damaged (%w) and cannot be put aside: %w", err, failed)
		}
		d.note = fmt.Sprintf("the file was damaged (%v), is kept as %s, and a new one was begun", err, aside)
		db, err = d.connect(ctx)
	}
	d.db = db
	return err
}

func (d *Documents) connect(ctx context.Context) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o750); err != nil {
		return nil, err
	}
	closeToOthers(d.path)
	// FULL: there are few writes, and a word that was taken is kept, also after a power cut.
	db, err := connect(d.path, "journal_mode(WAL)", "synchronous(FULL)", "journal_size_limit(16777216)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	var version int
	if err = db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err == nil {
		if version > documentsVersion {
			err = fmt.Errorf("the file is of version %d, written by a newer gpu-collector; this one knows up to %d: name another file", version, documentsVersion)
		} else {
			_, err = db.ExecContext(ctx, documentsSchema)
		}
	}
	if err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

// met remembers how the last use of the file went. A damaged file is opened anew, which
// puts it aside.
func (d *Documents) met(err error) error {
	if isDamaged(err) && d.db != nil {
		_ = d.db.Close()
		d.db = nil
	}
	if err != nil {
		err = fmt.Errorf("`ledger::path` %s: %w", d.path, explain(err))
	}
	d.err = err
	return err
}

// Load hands over all records of a kind.
func (d *Documents) Load(ctx context.Context, kind string, f func(record []byte)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.open(ctx); err != nil {
		return d.met(err)
	}
	return d.met(each(ctx, d.db, "SELECT record FROM documents WHERE kind = ? ORDER BY id", []any{kind}, func(rows *sql.Rows) error {
		var record []byte
		err := rows.Scan(&record)
		if err == nil {
			f(record)
		}
		return err
	}))
}

// Put writes all of the list, or nothing.
func (d *Documents) Put(ctx context.Context, list []Document) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.met(d.put(ctx, list))
}

func (d *Documents) put(ctx context.Context, list []Document) error {
	if err := d.open(ctx); err != nil {
		return err
	}
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].Record == nil {
			_, err = tx.ExecContext(ctx, "DELETE FROM documents WHERE kind = ? AND id = ?", list[i].Kind, list[i].ID)
		} else {
			_, err = tx.ExecContext(ctx, "INSERT INTO documents (kind, id, record) VALUES (?,?,?) ON CONFLICT DO UPDATE SET record = excluded.record", list[i].Kind, list[i].ID, list[i].Record)
		}
		if err != nil {
			_ = tx.Rollback()
			return err
		}
	}
	return tx.Commit()
}

// Status is the last error, and what an operator should know though all is well.
func (d *Documents) Status() (note string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.note, d.err
}

// Close closes the file. It is opened again when it is needed again.
func (d *Documents) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.db == nil {
		return nil
	}
	err := d.db.Close()
	d.db = nil
	return err
}
