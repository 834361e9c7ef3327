// SPDX-License-Identifier: Apache-2.0

// Package integration runs the real binaries: as processes, over real ports,
// with the configurations that are shipped.
package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const root = "../.."

// Build flags as in the Makefile. No -trimpath: it would compile every
// dependency again.
const ldflags = "-s -w -extldflags=-Wl,-z,lazy"

// buildDir holds what the tests build, collectorBinary is the full distribution.
var buildDir, collectorBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if buildDir, err = os.MkdirTemp("", "gpu-collector-integration-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(buildDir) }()
	if collectorBinary, err = build("gpu-collector", "gpu-collector"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// long leaves a test to `make proof`: it takes more than ten seconds, or needs what is not
// part of the gate, such as a server of Prometheus.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make proof runs it")
	}
}

// build returns the path of a command's binary: the one in the directory
// GPU_COLLECTOR_BIN, or one that it compiles.
func build(command, name string, env ...string) (string, error) {
	if made := os.Getenv("GPU_COLLECTOR_BIN"); made != "" && len(env) == 0 {
		path, err := filepath.Abs(filepath.Join(made, command))
		if err == nil {
			_, err = os.Stat(path)
		}
		return path, err
	}
	out, err := filepath.Abs(filepath.Join(buildDir, name))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-ldflags", ldflags, "-o", out, "./cmd/"+command)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), env...)
	if os.Getenv("CGO_CFLAGS") == "" {
		// As in the Makefile: half of NVML's calls are marked as deprecated.
		cmd.Env = append(cmd.Env, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/%s: %w\n%s", command, err, text)
	}
	return out, nil
}
