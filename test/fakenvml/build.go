// SPDX-License-Identifier: Apache-2.0

// Package fakenvml builds a libnvidia-ml.so.1 for tests and for people without
// a GPU. What the library answers is a text file that may be rewritten while
// it is in use.
package fakenvml // import "github.com/gpu-collector/gpu-collector/test/fakenvml"

import (
	"crypto/sha256"
	_ "embed" // the library's source
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

// Build puts libnvidia-ml.so.1 into the directory and returns its path. The
// symbols named in without are left out, as in a driver older than they are.
func Build(dir string, without ...string) (string, error) {
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
	args := []string{
		"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread",
		"-Wl,-soname," + libraryName, "-o", built, src,
	}
	if len(without) > 0 {
		script := filepath.Join(work, "symbols.map")
		text := "{ local: " + strings.Join(without, "; ") + "; };\n"
		if err = os.WriteFile(script, []byte(text), 0o600); err != nil {
			return "", err
		}
		args = append(args, "-Wl,--version-script="+script)
	}
	out, err := exec.Command(gcc, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("gcc: %w\n%s", err, out)
	}
	path := filepath.Join(dir, libraryName)
	// Renamed, so that another process never loads half a library.
	return path, os.Rename(built, path)
}

// Library returns the path of a library without the given symbols. It is built
// once per content and kept in the user's cache directory.
func Library(tb testing.TB, without ...string) string {
	tb.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	sum := sha256.Sum256([]byte(source + "\x00" + strings.Join(without, "\x00")))
	dir := filepath.Join(cache, "gpu-collector-fakenvml", hex.EncodeToString(sum[:8]))
	path := filepath.Join(dir, libraryName)
	if _, err = os.Stat(path); err == nil {
		return path
	}
	path, err = Build(dir, without...)
	if err != nil {
		tb.Fatalf("cannot build the fake NVML library: %v", err)
	}
	return path
}
