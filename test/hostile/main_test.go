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
	"testing"
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
