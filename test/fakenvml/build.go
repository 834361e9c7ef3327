// SPDX-License-Identifier: Apache-2.0

// Package fakenvml builds a libnvidia-ml.so.1 for tests and for people without
// a GPU. A text file holds the library's answers; it may be rewritten while the
// library is in use.
package fakenvml // import "github.com/gpu-collector/gpu-collector/test/fakenvml"

import (
	"bytes"
	"crypto/sha256"
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

// ErrNoCompiler means that there is no C compiler to build the library with.
var ErrNoCompiler = errors.New("gcc is not on PATH; it builds the fake NVML library")

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

// LibraryWithout returns the path of a copy of the library without the
// symbols, as a driver does that is older than they are. The linker does not find
// a symbol whose text in the library is another: the hash of its name stays.
func LibraryWithout(tb testing.TB, symbols ...string) string {
	tb.Helper()
	library, err := os.ReadFile(Library(tb))
	for _, symbol := range symbols {
		name := []byte("\x00" + symbol + "\x00")
		if err == nil && !bytes.Contains(library, name) {
			err = fmt.Errorf("the fake NVML library has no symbol %s: add the call to test/fakenvml/csrc/fakenvml.c", symbol)
		}
		library = bytes.ReplaceAll(library, name, []byte("\x00-"+symbol[1:]+"\x00"))
	}
	path := filepath.Join(tb.TempDir(), libraryName)
	if err = errors.Join(err, os.WriteFile(path, library, 0o600)); err != nil {
		tb.Fatalf("cannot make a library without %v: %v", symbols, err)
	}
	return path
}
