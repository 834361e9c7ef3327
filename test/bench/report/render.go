// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

const introduction = `# Benchmarks

<!-- Written by ` + "`make bench`" + ` from docs/benchmarks. Edit the texts there, not this file. -->

` + "`make bench`" + ` measures everything again and writes this page. A figure is ` + "`short`" + ` when it misses its limit, and stays here all the same; a run with a failed test says so above its figures.
`

// render is the document: a section for each target's figures, in the order of their
// names, with the text of that name. All are of one commit and one machine.
func render(dir string) ([]byte, error) {
	measured, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var sections bytes.Buffer
	head := map[string]string{}
	for i, file := range measured {
		where, err := section(&sections, strings.TrimSuffix(file, ".txt"))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if i == 0 {
			head = where
		}
		for _, key := range []string{"commit", "machine"} {
			if where[key] != head[key] {
				return nil, fmt.Errorf("%s is of %s %q and %s of %q: measure all anew with `make bench`", measured[0], key, head[key], file, where[key])
			}
		}
		head["date"] = max(head["date"], where["date"])
	}
	all := fmt.Sprintf("%s\nCommit %s printed all figures, on %s: %s.\n", introduction, head["commit"], head["date"], head["machine"])
	return slices.Concat([]byte(all), sections.Bytes()), nil
}

// section returns where and of which commit its figures are.
func section(doc *bytes.Buffer, base string) (map[string]string, error) {
	prose, err := os.ReadFile(base + ".md")
	if err != nil {
		return nil, fmt.Errorf("its text says what is measured and how: %w", err)
	}
	raw, err := os.ReadFile(base + ".txt")
	if err != nil {
		return nil, err
	}
	first, rest, _ := strings.Cut(string(prose), "\n")
	title, ok := strings.CutPrefix(first, "# ")
	if !ok {
		return nil, errors.New("its text has to begin with its title, as `# Title`")
	}
	where := map[string]string{}
	var rows bytes.Buffer
	for line := range strings.Lines(string(raw)) {
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			key, value, _ := strings.Cut(comment, ":")
			where[key] = strings.TrimSpace(value)
			continue
		}
		f, ok, err := figure.Parse(line)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("%q is no figure", line)
		}
		_, _ = fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s |\n", f.Name, f.Value, f.Unit, f.Limit, f.Result)
	}
	_, _ = fmt.Fprintf(doc, "\n## %s\n\n", title)
	if failed := where[keyFailed]; failed != "" {
		_, _ = fmt.Fprintf(doc, "**This run failed (%s).** The figures are those that it printed.\n\n", failed)
	}
	_, _ = fmt.Fprintf(doc, "| Figure, by `make %s` | Value | Unit | Limit | Result |\n|---|---:|---|---:|---|\n%s", filepath.Base(base), rows.Bytes())
	if rest = strings.TrimSpace(rest); rest != "" {
		_, _ = fmt.Fprintf(doc, "\n%s\n", rest)
	}
	return where, nil
}
