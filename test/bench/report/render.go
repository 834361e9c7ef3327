// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const introduction = `# Benchmarks

<!-- Written by ` + "`make bench`" + ` from docs/benchmarks. Edit the texts there, not this file. -->

` + "`make bench`" + ` measures everything again and writes this page; ` + "`make bench BENCHES=bench-nvml`" + ` measures one section. A figure is ` + "`short`" + ` when it misses its limit, and stays here all the same; a run with a failed test says so above its figures.
`

// render is the document: a section for each text of the directory, in the
// order of their names, with the figures of the target of that name.
func render(dir string) ([]byte, error) {
	var doc bytes.Buffer
	doc.WriteString(introduction)
	texts, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return nil, err
	}
	measured, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, file := range measured {
		if text := strings.TrimSuffix(file, ".txt") + ".md"; !slices.Contains(texts, text) {
			errs = append(errs, fmt.Errorf("%s is missing: say there what is measured and how", text))
		}
	}
	for _, text := range texts {
		if err := section(&doc, strings.TrimSuffix(text, ".md")); err != nil {
			errs = append(errs, err)
		}
	}
	return doc.Bytes(), errors.Join(errs...)
}

func section(doc *bytes.Buffer, base string) error {
	prose, err := os.ReadFile(base + ".md")
	if err != nil {
		return err
	}
	first, rest, _ := strings.Cut(string(prose), "\n")
	title, ok := strings.CutPrefix(first, "# ")
	if !ok {
		return fmt.Errorf("%s.md begins with %q: it has to begin with its title, as `# Title`", base, first)
	}
	_, _ = fmt.Fprintf(doc, "\n## %s\n\n", title)
	raw, err := os.ReadFile(base + ".txt")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		doc.WriteString("Not measured yet.\n")
	case err != nil:
		return err
	default:
		if err := table(doc, filepath.Base(base), string(raw)); err != nil {
			return fmt.Errorf("%s.txt: %w", base, err)
		}
	}
	if rest = strings.TrimSpace(rest); rest != "" {
		_, _ = fmt.Fprintf(doc, "\n%s\n", rest)
	}
	return nil
}

// table is what was measured, and before it where.
func table(doc *bytes.Buffer, target, raw string) error {
	where := map[string]string{}
	var rows bytes.Buffer
	for line := range strings.Lines(raw) {
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			key, value, _ := strings.Cut(comment, ":")
			where[key] = strings.TrimSpace(value)
			continue
		}
		f, ok, err := figure.Parse(line)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%q is no figure", line)
		}
		_, _ = fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Value, f.Unit, f.Limit, f.Result)
	}
	_, _ = fmt.Fprintf(doc, "`make %s`, on %s at commit %s: %s.\n\n", target, where["date"], where["commit"], where["machine"])
	if failed := where[keyFailed]; failed != "" {
		_, _ = fmt.Fprintf(doc, "**This run failed (%s).** The figures are those that it printed.\n\n", failed)
	}
	doc.WriteString("| Figure | Value | Unit | Limit | Result |\n|---|---:|---|---:|---|\n")
	doc.Write(rows.Bytes())
	return nil
}
