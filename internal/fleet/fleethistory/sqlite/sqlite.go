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
	cfg     Config
	note    atomic.Pointer[string]
	readErr atomic.Pointer[error]
	oldest  atomic.Int64 // time of the oldest round, Unix milliseconds

	mu sync.Mutex // held while the file is opened or put aside
	db *file      // nil until it could be opened
}

// file is an open database.
type file struct {
	write, read *sql.DB
	// damage is set by whoever meets a damaged page; the writer then puts the file aside.
	damage atomic.Pointer[error]
}

// New returns a store. It opens the file when it is first needed, and again until that works.
func New(cfg Config) *Store { return &Store{cfg: cfg} }

// file opens the file where it is not open. It puts aside one that is damaged or older.
func (s *Store) file(ctx context.Context) (*file, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db != nil {
		return s.db, nil
	}
	err := s.open(ctx)
	if errors.Is(err, errOlder) || isDamaged(err) {
		if err = s.putAside(err); err == nil {
			err = s.open(ctx)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("`history::sqlite::path` %s: %w", s.cfg.Path, explain(err))
	}
	return s.db, nil
}

// open opens the file. s.mu is held.
func (s *Store) open(ctx context.Context) error {
	path := s.cfg.Path
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	// SQLite gives the files beside it the mode of this one. Where the mode cannot be set, SQLite
	// fails as well, or another owner closes the file.
	if f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil { //nolint:gosec // the user's own path
		_ = f.Close()
	}
	for _, suffix := range suffixes {
		_ = os.Chmod(path+suffix, 0o600)
	}
	// SQLite would report that it is out of memory.
	if info, err := os.Stat(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the file cannot be opened: %w", err)
	} else if err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("the file cannot be opened: it is %v, and no regular file", info.Mode())
	}
	s.db = &file{
		// A new file keeps the first three, in this order. Durable against the end of the process
		// at each commit. Against a power cut NORMAL keeps the file whole, and all commits up to
		// the last checkpoint: https://www.sqlite.org/pragma.html#pragma_synchronous
		write: connect(path, 1, "page_size(16384)", "auto_vacuum(2)", "journal_mode(WAL)", "synchronous(NORMAL)", "journal_size_limit(67108864)", "temp_store(MEMORY)", "foreign_keys(1)"),
		read:  connect(path, readers, "query_only(1)"),
	}
	err := create(ctx, s.db.write)
	if err != nil {
		s.close()
	}
	return err
}

// schema has the rows of a round in chunks: a round is written at the end of the file, and goes as
// a whole. It has the columns of its version of the product. First and last are the least and the
// greatest name of a node among the rows of a chunk.
const schema = `
CREATE TABLE rounds (
	id      INTEGER PRIMARY KEY,
	at      INTEGER NOT NULL,
	columns TEXT NOT NULL
);
CREATE INDEX rounds_by_time ON rounds (at);
CREATE TABLE chunks (
	id    INTEGER PRIMARY KEY,
	round INTEGER NOT NULL REFERENCES rounds ON DELETE CASCADE,
	first TEXT NOT NULL,
	last  TEXT NOT NULL,
	rows  BLOB NOT NULL
);
CREATE INDEX chunks_by_round ON chunks (round, first, last);
CREATE TABLE episodes (
	cluster TEXT NOT NULL,
	id      TEXT NOT NULL,
	record  BLOB NOT NULL,
	PRIMARY KEY (cluster, id)
) WITHOUT ROWID;
`

// version of the schema.
const version = 5

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
	_, err := db.ExecContext(ctx, fmt.Sprintf("BEGIN; %s PRAGMA user_version = %d; COMMIT", schema, version))
	return err
}

// connect returns a pool with the pragmas set on each connection. Another process that holds
// the lock is not waited for for long: the round is lost, and the next one comes.
func connect(path string, connections int, pragmas ...string) *sql.DB {
	values := url.Values{"_pragma": append([]string{"busy_timeout(1000)"}, pragmas...), "_txlock": {"immediate"}}
	u := url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: values.Encode()}
	db, _ := sql.Open("sqlite", u.String()) // the driver is there; a file is opened when it is asked
	db.SetMaxOpenConns(connections)
	return db
}

// Close closes the file. It is opened again when it is needed again.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.close()
	return nil
}

// close closes the file where it is open. s.mu is held.
func (s *Store) close() {
	if s.db != nil {
		_, _ = s.db.read.Close(), s.db.write.Close()
		s.db = nil
	}
}

// suffixes are those of SQLite's files. The log comes first: beside a new file it would be taken
// for that one's.
var suffixes = []string{"-wal", "-shm", ""}

// putAside renames a file that is damaged or of an older version, and its companions: nothing
// is lost, and a new file can begin. s.mu is held.
func (s *Store) putAside(reason error) error {
	s.close()
	aside := s.cfg.Path + ".aside-" + time.Now().UTC().Format("20060102T150405.000Z")
	for _, suffix := range suffixes {
		if err := os.Rename(s.cfg.Path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the file cannot be put aside: %w: %w", reason, err)
		}
	}
	note := fmt.Sprintf("the file was put aside as %s, and a new one was begun: %v", aside, reason)
	s.note.Store(&note)
	return nil
}

// met takes note of an error in a file and returns an error that people can act on.
func met(in *file, err error) error {
	if in != nil && isDamaged(err) {
		in.damage.Store(&err)
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
