// SPDX-License-Identifier: Apache-2.0

// Package hostile plays broken and malicious senders to the real binary with the
// shipped configurations, and measures the cost to the others. `make hostile` runs
// it.
package hostile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// binary is the full distribution.
var binary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "gpu-collector-hostile-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	// `make hostile` has built it.
	if binary = os.Getenv("GPU_COLLECTOR_BINARY"); binary == "" {
		binary = filepath.Join(dir, "gpu-collector")
		cmd := exec.Command("go", "build", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy", "-o", binary, "./cmd/gpu-collector")
		cmd.Dir = root
		if text, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "go build ./cmd/gpu-collector: %v\n%s", err, text)
			return 1
		}
	}
	return m.Run()
}

// memoryLimit is the memory of a process under attack, as the chart's default, and
// goMemoryLimit is GOMEMLIMIT in it, four fifths.
const (
	memoryLimit   = 2 << 30
	goMemoryLimit = memoryLimit / 5 * 4
)

// memoryCgroup returns the words before a command that run it in a cgroup of its own
// with a limit, where a process above it is killed. Without the right to make a
// cgroup it returns none, or fails where HOSTILE_CGROUP=require.
func memoryCgroup(t *testing.T, limit int64) []string {
	t.Helper()
	root, file := "/sys/fs/cgroup", "memory.max"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes" // version 1
	}
	dir, err := os.MkdirTemp(root, "gpu-collector-hostile-") //nolint:usetesting // it has to lie among the cgroups
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, os.Remove(dir)) })
		err = os.WriteFile(filepath.Join(dir, file), []byte(strconv.FormatInt(limit, 10)), 0o600)
	}
	if err != nil {
		require.NotEqual(t, "require", os.Getenv("HOSTILE_CGROUP"), "HOSTILE_CGROUP: no memory cgroup: %v", err)
		t.Logf("no memory cgroup, nothing ends a process that takes more: %v", err)
		return nil
	}
	require.FileExists(t, filepath.Join(dir, "cgroup.procs"))
	return []string{"/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, dir}
}
