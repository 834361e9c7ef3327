// SPDX-License-Identifier: Apache-2.0

// Command report runs the make targets that it is given, keeps the figures
// they print under docs/benchmarks, one file per target, and writes
// docs/benchmarks.md from them, if all are of one commit. It runs in the root of
// the repository. Without a target it only writes the document.
package main // import "github.com/gpu-collector/gpu-collector/test/bench/report"

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const (
	figuresDir = "docs/benchmarks"
	document   = "docs/benchmarks.md"
)

var errNone = errors.New("printed no figure")

// keyFailed is what a section's file says where its target failed.
const keyFailed = "failed"

func main() {
	figure.Main(func(ctx context.Context) error { return run(ctx, os.Args[1:]) })
}

// run goes on after a target that fails: the others' figures are worth keeping.
func run(ctx context.Context, targets []string) error {
	var errs []error
	if len(targets) > 0 {
		commit, err := commit(ctx)
		if err != nil {
			return err
		}
		header := fmt.Sprintf("# machine: %s\n# commit: %s\n# date: %s\n", machine("/proc"), commit, time.Now().UTC().Format(time.DateOnly))
		for _, target := range targets {
			if err := measure(ctx, target, header); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", target, err))
			}
		}
	}
	text, err := render(figuresDir)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	return errors.Join(append(errs, os.WriteFile(document, text, 0o644))...)
}

// measure keeps the figures of a target that fails as well, and that it did: what
// falls short is not to look as it did before. One without figures keeps its former.
func measure(ctx context.Context, target, header string) error {
	fmt.Fprintln(os.Stderr, "make", target)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", target)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &out), os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	failed := cmd.Run()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("keeps its former figures: %w", err)
	}
	figures, err := figures(&out)
	switch {
	case errors.Is(err, errNone) && failed == nil:
		// It said why, as on a machine that lacks what it needs.
		fmt.Fprintf(os.Stderr, "%s %s and keeps its former figures\n", target, err)
		return nil
	case err != nil:
		return fmt.Errorf("keeps its former figures: %w", errors.Join(failed, err))
	}
	if failed != nil {
		header += fmt.Sprintf("# %s: %s\n", keyFailed, failed)
	}
	return errors.Join(failed, os.WriteFile(filepath.Join(figuresDir, target+".txt"), []byte(header+figures), 0o644))
}

// figures are the lines of the output that are figures.
func figures(out io.Reader) (string, error) {
	var text strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		_, ok, err := figure.Parse(lines.Text())
		if err != nil {
			return "", err
		}
		if ok {
			text.WriteString(strings.TrimSpace(lines.Text()) + "\n")
		}
	}
	if err := lines.Err(); err != nil {
		return "", err
	}
	if text.Len() == 0 {
		return "", errNone
	}
	return text.String(), nil
}
