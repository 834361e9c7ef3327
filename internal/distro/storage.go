// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/extension/storage/filestorage"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/otelcol"
	"go.uber.org/zap"

	"github.com/gpu-collector/gpu-collector/internal/boltfile"
)

// setAside is added to the name of a file that cannot be opened. The one before it goes.
const setAside = ".set_aside"

// lockRetry is how often file_storage tries for the lock of a file.
const lockRetry = 50 * time.Millisecond

// checkedStorage has file_storage open no damaged file. Its own `recreate` lets most of
// them end the process: bbolt panics on another goroutine, or reads an address that is not
// there. One with damaged beginnings is an error to it, for good.
func checkedStorage(create func() (otelcol.Factories, error)) func() (otelcol.Factories, error) {
	kind := filestorage.NewFactory().Type()
	return func() (otelcol.Factories, error) {
		all, err := create()
		if f, has := all.Extensions[kind]; has && err == nil {
			all.Extensions[kind] = &storageFactory{f}
		}
		return all, err
	}
}

type storageFactory struct{ extension.Factory }

// Create implements extension.Factory.
func (f *storageFactory) Create(ctx context.Context, set extension.Settings, cfg component.Config) (extension.Extension, error) {
	ext, err := f.Factory.Create(ctx, set, cfg)
	if err != nil {
		return nil, err
	}
	under, stores := ext.(storage.Extension)
	c, ours := cfg.(*filestorage.Config)
	if !stores || !ours {
		return nil, fmt.Errorf("%s: the extension is %T with %T, must be file_storage", set.ID, ext, cfg)
	}
	return &fileStorage{under, c, set.Logger}, nil
}

// fileStorage is file_storage, whose files are checked before they are opened.
type fileStorage struct {
	storage.Extension
	cfg *filestorage.Config
	log *zap.Logger
}

// GetClient implements storage.Extension.
func (s *fileStorage) GetClient(ctx context.Context, kind component.Kind, id component.ID, name string) (storage.Client, error) {
	if err := s.check(ctx, storageFile(s.cfg.Directory, kind, id, name)); err != nil {
		return nil, err
	}
	return s.Extension.GetClient(ctx, kind, id, name)
}

// check sets a damaged file aside, or says what is wrong with it where the configuration
// lets nobody begin anew.
func (s *fileStorage) check(ctx context.Context, path string) error {
	file, err := os.Open(path) //nolint:gosec // G304: the configuration names the directory
	if err != nil {
		return nil // a new file, or a file whose error file_storage reports
	}
	defer func() { _ = file.Close() }() // and with it the lock
	if err := s.lock(ctx, file); err != nil {
		return fmt.Errorf("the file %s is in use: %w", path, err)
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	began := time.Now()
	err = boltfile.Check(file, info.Size())
	if err == nil {
		s.log.Debug("A file of the storage is whole.", zap.String("file", path), zap.Duration("checked_in", time.Since(began)))
		return nil
	}
	if !s.cfg.Recreate {
		return fmt.Errorf("the file %s is damaged: %w. Move it away, or set `recreate: true`", path, err)
	}
	aside := path + setAside
	if moved := os.Rename(path, aside); moved != nil {
		return fmt.Errorf("the file %s is damaged: %w. Move it away: %w", path, err, moved)
	}
	s.log.Warn("A file of the storage is damaged. It is set aside, and a new one begins.",
		zap.String("file", path), zap.String("set_aside", aside), zap.Error(err))
	return nil
}

// lock waits until no other process has the file open, for the timeout of file_storage.
func (s *fileStorage) lock(ctx context.Context, file *os.File) error {
	if s.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// storageFile is where file_storage v0.155.0 keeps what a component stores: extension.go.
func storageFile(directory string, kind component.Kind, id component.ID, name string) string {
	of := "other"
	switch kind {
	case component.KindReceiver, component.KindProcessor, component.KindExporter, component.KindExtension, component.KindConnector:
		of = strings.ToLower(kind.String())
	}
	raw := of + "_" + id.Type().String() + "_" + id.Name()
	if name != "" {
		raw += "_" + name
	}
	var safe strings.Builder
	for _, r := range raw {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_", r) {
			_, _ = safe.WriteRune(r)
		} else {
			_, _ = fmt.Fprintf(&safe, "~%04X", r)
		}
	}
	path := filepath.Join(directory, safe.String())
	if _, err := os.Lstat(path); errors.Is(err, syscall.ENAMETOOLONG) {
		sum := sha256.Sum256([]byte(safe.String()))
		return filepath.Join(directory, hex.EncodeToString(sum[:]))
	}
	return path
}
