// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// header says where and at which commit the figures below it were measured.
func header(machine, commit string) string {
	return fmt.Sprintf("# machine: %s\n# commit: %s\n# date: %s\n", machine, commit, time.Now().UTC().Format(time.DateOnly))
}

// written is what make bench itself writes.
var written = []string{":!" + figuresDir, ":!" + document, ":!" + readme, ":!docs/detection.md"}

// changed marks a commit beyond which the tree had changes.
const changed = "+changes"

// commit names the commit, and says so when the tree has changes beyond it, other
// than the figures of the target before.
func commit(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "", err
	}
	name := strings.TrimSpace(string(out))
	changes, err := exec.CommandContext(ctx, "git", append([]string{"status", "--porcelain", "--", "."}, written...)...).Output()
	if len(changes) > 0 {
		name += changed
	}
	return name, err
}

// machine describes the machine by the parts that decide its speed, without those
// that /proc does not tell.
func machine(proc string) string {
	parts := []string{value(proc, "cpuinfo", "model name"), strconv.Itoa(runtime.NumCPU()) + " cores"}
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(value(proc, "meminfo", "MemTotal"), " kB"), 64); err == nil {
		parts = append(parts, fmt.Sprintf("%.0f GB of memory", math.Round(kib*1024/1e9)))
	}
	if release, err := os.ReadFile(filepath.Join(proc, "sys/kernel/osrelease")); err == nil {
		// The rest is the distribution's own count.
		version, _, _ := strings.Cut(strings.TrimSpace(string(release)), "-")
		parts = append(parts, "Linux "+version)
	}
	parts = append(parts, runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH)
	if parts[0] == "" {
		parts = parts[1:]
	}
	return strings.Join(parts, ", ")
}

// value is that of the file's first line with the key.
func value(proc, file, key string) string {
	data, err := os.ReadFile(filepath.Join(proc, file))
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(data) {
		if k, v, ok := strings.Cut(string(line), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
