// SPDX-License-Identifier: Apache-2.0

// Package fakenvml builds a libnvidia-ml.so.1 for tests and for people without
// a GPU. What the library answers is a text file that may be rewritten while
// it is in use.
package fakenvml // import "github.com/gpu-collector/gpu-collector/test/fakenvml"

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	_ "embed" // the library's source
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// StateEnv is the environment variable that names the state file. The library
// reads it in nvmlInit.
const StateEnv = "FAKENVML_STATE"

const libraryName = "libnvidia-ml.so.1"

//go:embed csrc/fakenvml.c
var source string

// ErrNoCompiler says that there is no C compiler to build the library with.
var ErrNoCompiler = errors.New("gcc is not on PATH; it builds the fake NVML library")

var (
	errNoStrings = errors.New("the library has no dynamic strings")
	errNoSymbol  = errors.New("the fake NVML library has no such symbol")
)

// Build puts libnvidia-ml.so.1 into the directory and returns its path.
func Build(dir string) (string, error) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		return "", ErrNoCompiler
	}
	if err = os.MkdirAll(dir, 0o750); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()

	src := filepath.Join(work, "fakenvml.c")
	if err = os.WriteFile(src, []byte(source), 0o600); err != nil {
		return "", err
	}
	built := filepath.Join(work, libraryName)
	out, err := exec.Command(gcc,
		"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread",
		"-Wl,-soname,"+libraryName, "-o", built, src,
	).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	path := filepath.Join(dir, libraryName)
	// Renamed, so that another process never loads half a library.
	return path, os.Rename(built, path)
}

// hide renames symbols in the library's table of dynamic strings, so that the
// linker does not find them: the hash of a name leads to a text that is another.
func hide(path string, symbols []string) error {
	if len(symbols) == 0 {
		return nil
	}
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	section := f.Section(".dynstr")
	if section == nil {
		return errNoStrings
	}
	names, err := section.Data()
	if err != nil {
		return err
	}
	for _, symbol := range symbols {
		at := bytes.Index(names, []byte("\x00"+symbol+"\x00"))
		if at < 0 {
			return fmt.Errorf("%w: %s", errNoSymbol, symbol)
		}
		names[at+1] = '-'
	}
	library, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = library.WriteAt(names, int64(section.Offset))
	return errors.Join(err, library.Close())
}

// shortWaits runs once: C reads the environment without a lock.
var shortWaits = sync.OnceFunc(func() { _ = os.Setenv("FAKENVML_EVENT_WAIT_MS", "20") })

// Library returns the path of the library, which is built once per content and
// kept in the user's cache directory. In tests its waits for events are short,
// for each that closes a device waits for one; in benchmarks they cost nothing.
func Library(tb testing.TB) string {
	tb.Helper()
	if _, ok := tb.(*testing.T); ok {
		shortWaits()
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256([]byte(source))
	dir := filepath.Join(cache, "gpu-collector-fakenvml", hex.EncodeToString(sum[:8]))
	path := filepath.Join(dir, libraryName)
	if _, err = os.Stat(path); err == nil {
		return path
	}
	path, err = Build(dir)
	if err != nil {
		tb.Fatalf("cannot build the fake NVML library: %v", err)
	}
	return path
}

// LibraryWithout returns the path of a copy of the library that lacks the
// symbols, as a driver does that is older than they are.
func LibraryWithout(tb testing.TB, symbols ...string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), libraryName)
	library, err := os.ReadFile(Library(tb))
	if err == nil {
		err = os.WriteFile(path, library, 0o600)
	}
	if err = errors.Join(err, hide(path, symbols)); err != nil {
		tb.Fatalf("cannot make a library without %v: %v", symbols, err)
	}
	return path
}
