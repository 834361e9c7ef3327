// SPDX-License-Identifier: Apache-2.0

// Package sqlite keeps the history in one SQLite file: a write-ahead log, one
// writer, a few readers that do not wait for it.
package sqlite // import "github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory/sqlite"

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
)

// Config of a store.
type Config struct {
	// Path of the file; SQLite keeps PATH-wal and PATH-shm beside it. Its
	// directory is made if it is not there.
	Path string
	// MaxRounds is how many rounds are kept, and MaxBytes the size of the file at which the
	// oldest go; 0 is no bound. Rounds are counted, since their times are those of a clock that
	// may be wrong.
	MaxRounds int64
	MaxBytes  int64
	// QueryTimeout ends a question that takes too long.
	QueryTimeout time.Duration
}

// readers are the questions that are answered at a time; others wait.
const readers = 4

// Store is a file. WriteEpisodes and WriteRound are called from one goroutine, all else from any.
type Store struct {
	cfg Config
	// damaged is set by whoever meets a damaged page; the writer then puts that file aside.
	damaged atomic.Pointer[damage]
	note    atomic.Pointer[string]
	readErr atomic.Pointer[error]
	oldest  atomic.Int64 // time of the oldest round, Unix milliseconds

	mu sync.Mutex           // held while the file is opened or put aside
	db atomic.Pointer[file] // nil until it could be opened
}

// damage was met in a file. A late question may meet it when that was put aside.
type damage struct {
	in     *file
	reason error
}

// file is an open database.
type file struct{ write, read *sql.DB }

// New returns a store. It opens the file when it is first needed, and again
// until that works.
func New(cfg Config) *Store { return &Store{cfg: cfg} }

// file opens the file where it is not open. It puts aside a file that is damaged
// or of an older version.
func (s *Store) file(ctx context.Context) (*file, error) {
	if db := s.db.Load(); db != nil {
		return db, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if db := s.db.Load(); db != nil {
		return db, nil
	}
	db, err := s.open(ctx)
	if errors.Is(err, errOlder) || isDamaged(err) {
		if err = s.putAside(err); err == nil {
			db, err = s.open(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("`history::sqlite::path` %s: %w", s.cfg.Path, explain(err))
	}
	s.db.Store(db)
	return db, nil
}

func (s *Store) open(ctx context.Context) (_ *file, err error) {
	if err := os.MkdirAll(filepath.Dir(s.cfg.Path), 0o750); err != nil {
		return nil, err
	}
	// SQLite would report that it is out of memory.
	if info, err := os.Stat(s.cfg.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the file cannot be opened: %w", err)
	} else if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("the file cannot be opened: it is %v, and no regular file", info.Mode())
	}
	closeToOthers(s.cfg.Path)
	f := &file{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	// Durable against the end of the process at each commit. Against a power cut
	// NORMAL keeps the file whole, and all commits up to the last checkpoint:
	// https://www.sqlite.org/pragma.html#pragma_synchronous
	if f.write, err = connect(s.cfg.Path, "synchronous(NORMAL)", "journal_size_limit(67108864)", "temp_store(MEMORY)"); err != nil {
		return nil, err
	}
	f.write.SetMaxOpenConns(1)
	// The file keeps these, in this order. A row of a node with eight GPUs fits into a quarter of
	// a page; larger ones have pages of their own.
	if _, err = f.write.ExecContext(ctx, "PRAGMA page_size(16384); PRAGMA auto_vacuum(2); PRAGMA journal_mode(WAL)"); err != nil {
		return nil, err
	}
	if err = create(ctx, f.write); err != nil {
		return nil, err
	}
	if f.read, err = connect(s.cfg.Path, "query_only(1)"); err != nil {
		return nil, err
	}
	f.read.SetMaxOpenConns(readers)
	return f, nil
}

// schema has a record for each row of a round, by the round and then by the node: a round is
// written at the end of the file, and goes as a whole. It has the columns of its version of the
// product. A group's row has no node.
const schema = `
CREATE TABLE rounds (
	id      INTEGER PRIMARY KEY,
	at      INTEGER NOT NULL,
	columns TEXT NOT NULL
);
CREATE INDEX rounds_by_time ON rounds (at);
CREATE TABLE records (
	round      INTEGER NOT NULL,
	host       TEXT NOT NULL,
	cluster    TEXT NOT NULL,
	peer_group TEXT NOT NULL,
	record     BLOB NOT NULL,
	PRIMARY KEY (round, host, cluster, peer_group)
) WITHOUT ROWID;
CREATE TABLE episodes (
	cluster TEXT NOT NULL,
	id      TEXT NOT NULL,
	record  BLOB NOT NULL,
	PRIMARY KEY (cluster, id)
) WITHOUT ROWID;
`

// version of the schema.
const version = 4

// errOlder is of a file that this version does not read, or of another product.
var errOlder = errors.New("the file is of an older version")

// create makes the tables of a new file.
func create(ctx context.Context, db *sql.DB) error {
	var found int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return err
	}
	switch {
	case found > version:
		return fmt.Errorf("the file is of version %d, written by a newer gpu-collector; this one knows up to %d: name another file", found, version)
	case found == version:
		return nil
	case found > 0:
		return errOlder
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err = tx.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA user_version = %d;", version)); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// closeToOthers makes the file one's own alone. SQLite gives the files beside it the
// same mode; those of a process before have what that gave them. Where it fails,
// SQLite fails as well, or another owner closes the file.
func closeToOthers(path string) {
	if f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil { //nolint:gosec // the user's own path
		_ = f.Close()
	}
	for _, end := range suffixes {
		_ = os.Chmod(path+end, 0o600)
	}
}

// connect returns a pool with the pragmas set on each connection. Another process that holds
// the lock is not waited for for long: the round is lost, and the next one comes.
func connect(path string, pragmas ...string) (*sql.DB, error) {
	values := url.Values{"_pragma": append([]string{"busy_timeout(1000)"}, pragmas...), "_txlock": {"immediate"}}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: values.Encode()}
	return sql.Open("sqlite", u.String())
}

func (f *file) close() {
	if f.read != nil {
		_ = f.read.Close()
	}
	if f.write != nil {
		_ = f.write.Close()
	}
}

// Close closes the file. It is opened again when it is needed again.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if db := s.db.Swap(nil); db != nil {
		db.close()
	}
	return nil
}

// suffixes are those of SQLite's files. The log comes first: beside a new file it would be taken
// for that one's.
var suffixes = []string{"-wal", "-shm", ""}

// putAside renames a file that is damaged or of an older version, and its companions: nothing
// is lost, and a new file can begin. s.mu is held.
func (s *Store) putAside(reason error) error {
	if db := s.db.Swap(nil); db != nil {
		db.close()
	}
	aside := s.cfg.Path + ".aside-" + time.Now().UTC().Format("20060102T150405.000Z")
	for _, suffix := range suffixes {
		if err := os.Rename(s.cfg.Path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the file cannot be put aside: %w: %w", reason, err)
		}
	}
	s.say(fmt.Sprintf("the file was put aside as %s, and a new one was begun: %v", aside, reason))
	return nil
}

func (s *Store) say(note string) { s.note.Store(&note) }

// met takes note of an error in a file and returns an error that people can act on.
func (s *Store) met(in *file, err error) error {
	if isDamaged(err) {
		s.damaged.Store(&damage{in, err})
	}
	return explain(err)
}

// Status is the state of the file. A read error stands until a query is answered.
func (s *Store) Status() fleethistory.Status {
	out := fleethistory.Status{Storage: "sqlite"}
	if p := s.readErr.Load(); p != nil {
		out.Err = *p
	}
	if n := s.note.Load(); n != nil {
		out.Note = *n
	}
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(s.cfg.Path + suffix); err == nil {
			out.Bytes += info.Size()
		}
	}
	if at := s.oldest.Load(); at > 0 {
		out.Oldest = time.UnixMilli(at)
	}
	return out
}

func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff // extended codes have the primary one below
	}
	return 0
}

func isDamaged(err error) bool {
	c := code(err)
	return c == lib.SQLITE_CORRUPT || c == lib.SQLITE_NOTADB
}

// explain adds advice to the errors that an operator can help.
func explain(err error) error {
	switch code(err) {
	case lib.SQLITE_FULL:
		return fmt.Errorf("the disk is full: %w", err)
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return fmt.Errorf("another process holds the lock: %w", err)
	case lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN, lib.SQLITE_PERM:
		return fmt.Errorf("the file cannot be opened: this process must be able to write to it and its directory: %w", err)
	default:
		return err
	}
}
