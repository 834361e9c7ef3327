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
	// Retention is the age at which samples go, MaxBytes the size of the file at
	// which the oldest go; 0 is no bound.
	Retention time.Duration
	MaxBytes  int64
	// MaxSeries bounds the series; samples of further ones are dropped. Their names take
	// an eighth of MaxBytes at most.
	MaxSeries int
	// ClusterShare in (0,1] is the part of the series, and of the bytes of their names,
	// that the other clusters leave which one cluster may have; 0 is all of it.
	ClusterShare float64
	// QueryTimeout ends a question that takes too long.
	QueryTimeout time.Duration
	// Now is the clock.
	Now func() time.Time
	// OnDrop receives the samples left out of a batch; may be nil.
	OnDrop func(n int64)
}

// readers are the questions that are answered at a time; others wait.
const readers = 4

// Store is a file. Append and Maintain are called from one goroutine, all else
// from any.
type Store struct {
	cfg Config
	// damaged is set by the reader that meets a damaged page; the writer then puts the
	// file aside.
	damaged atomic.Bool
	note    atomic.Pointer[string]
	readErr atomic.Pointer[error]

	mu sync.Mutex           // held while the file is opened or put aside
	db atomic.Pointer[file] // nil until it could be opened
}

// file is an open database.
type file struct {
	write, read *sql.DB
	w           writer
}

// New returns a store. It opens the file when it is first needed, and again
// until that works.
func New(cfg Config) *Store {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnDrop == nil {
		cfg.OnDrop = func(int64) {}
	}
	return &Store{cfg: cfg}
}

// Open opens the file, puts it aside if it is damaged, and brings its schema up
// to date.
func (s *Store) Open(ctx context.Context) error {
	_, err := s.file(ctx)
	return err
}

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
	if isDamaged(err) {
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
	if f.write, err = connect(s.cfg.Path, "auto_vacuum(2)", "journal_mode(WAL)", "synchronous(NORMAL)", "journal_size_limit(67108864)", fmt.Sprintf("cache_size(-%d)", minCacheKiB), "temp_store(MEMORY)"); err != nil {
		return nil, err
	}
	f.write.SetMaxOpenConns(1)
	if err = migrate(ctx, f.write); err != nil {
		return nil, err
	}
	if err = f.w.prepare(ctx, f.write, &s.cfg); err != nil {
		return nil, err
	}
	if f.read, err = connect(s.cfg.Path, "query_only(1)", fmt.Sprintf("cache_size(-%d)", minCacheKiB)); err != nil {
		return nil, err
	}
	f.read.SetMaxOpenConns(readers)
	return f, nil
}

// closeToOthers makes the file one's own alone. SQLite gives the files beside it the
// same mode; those of a process before have what that gave them. Where it fails,
// SQLite fails as well, or another owner closes the file.
func closeToOthers(path string) {
	if f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err == nil { //nolint:gosec // the user's own path
		_ = f.Close()
	}
	for _, end := range []string{"", "-wal", "-shm"} {
		_ = os.Chmod(path+end, 0o600)
	}
}

// connect returns a pool with the pragmas set on each connection. Another
// process that holds the lock is waited for, but not for long: batches wait in
// memory as well.
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

// putAside renames a damaged file and its companions: nothing is lost, and a new
// file can begin. s.mu is held.
func (s *Store) putAside(reason error) error {
	if db := s.db.Swap(nil); db != nil {
		db.close()
	}
	aside := s.cfg.Path + ".damaged-" + s.cfg.Now().UTC().Format("20060102T150405Z")
	for i := 1; exists(aside); i++ {
		aside = fmt.Sprintf("%s.damaged-%s-%d", s.cfg.Path, s.cfg.Now().UTC().Format("20060102T150405Z"), i)
	}
	// The log first: beside a new file it would be taken for that one's.
	for _, suffix := range []string{"-wal", "-shm", ""} {
		if err := os.Rename(s.cfg.Path+suffix, aside+suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the file is damaged (%w) and cannot be put aside: %w", reason, err)
		}
	}
	note := fmt.Sprintf("the file was damaged (%v), is kept as %s, and a new one was begun", reason, aside)
	s.note.Store(&note)
	s.damaged.Store(false)
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// check examines the file if a reader met a damaged page, and puts it
// aside if there is one.
func (s *Store) check(ctx context.Context) error {
	if !s.damaged.Load() {
		return nil
	}
	f, err := s.file(ctx)
	if err != nil {
		return err
	}
	var verdict string
	err = f.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict)
	switch {
	case err == nil && verdict == "ok":
		s.damaged.Store(false)
		return nil
	case err == nil:
		err = errors.New(verdict)
	case !isDamaged(err):
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.putAside(err)
}

// met takes note of an error and returns an error that people can act on.
func (s *Store) met(err error) error {
	if isDamaged(err) {
		s.damaged.Store(true)
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
	if db := s.db.Load(); db != nil {
		if at := db.w.oldest.Load(); at > 0 {
			out.Oldest = time.UnixMilli(at)
		}
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
