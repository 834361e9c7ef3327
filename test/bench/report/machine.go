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
)

// written is what make bench itself writes.
var written = []string{":!" + figuresDir, ":!" + document, ":!docs/detection.md"}

// commit names the commit. Figures of a tree with changes beyond it, other than
// those of the target before, are of no commit.
func commit(ctx context.Context) (string, error) {
	changes, err := exec.CommandContext(ctx, "git", append([]string{"status", "--porcelain", "--", "."}, written...)...).Output()
	if err != nil {
		return "", err
	}
	if len(changes) > 0 {
		return "", fmt.Errorf("commit these changes before you measure, or call the targets themselves, which only print:\n%s", changes)
	}
	name, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	return strings.TrimSpace(string(name)), err
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
