// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
)

const (
	readme         = "README.md"
	readmeTemplate = "readme.md.tmpl"
	// The figures are between these lines; the rest is a person's.
	readmeBegin = "<!-- Figures: written by `make bench` from docs/benchmarks/readme.md.tmpl. -->\n"
	readmeEnd   = "<!-- End of the figures. -->\n"
)

// renderReadme puts the figures of the directory's template into the README.
func renderReadme(dir string, text []byte) ([]byte, []string, error) {
	p, err := read(dir)
	if err != nil {
		return nil, nil, err
	}
	before, rest, begins := bytes.Cut(text, []byte(readmeBegin))
	_, after, ends := bytes.Cut(rest, []byte(readmeEnd))
	if !begins || !ends {
		return nil, nil, fmt.Errorf("%s has no lines %q and %q for the figures between them", readme, strings.TrimSpace(readmeBegin), strings.TrimSpace(readmeEnd))
	}
	var block bytes.Buffer
	if err := p.execute(dir, readmeTemplate, &block); err != nil {
		return nil, nil, err
	}
	return slices.Concat(before, []byte(readmeBegin), block.Bytes(), []byte(readmeEnd), after), p.missed(), nil
}

// commits are those at which the sections that were shown were measured, by commit.
func (p *page) commits() map[string][]string {
	at := map[string][]string{}
	for _, s := range p.all {
		if p.used[s.Name] {
			at[s.where["commit"]] = append(at[s.where["commit"]], s.Name)
		}
	}
	return at
}

// measured says at which commit the figures above it were measured.
func (p *page) measured() string {
	const which = "[benchmarks](docs/benchmarks.md#how-to-run)"
	at := slices.Collect(maps.Keys(p.commits()))
	if len(at) == 1 {
		return fmt.Sprintf("`make bench` measured them at commit %s; %s have the rest, and the misses.", at[0], which)
	}
	return fmt.Sprintf("`make bench` measured them at %d commits; %s name each, and have the misses.", len(at), which)
}

// ofRelease is an error unless one make bench measured all figures of the README, at a
// commit after which no code has changed.
func ofRelease(ctx context.Context) error {
	p, err := read(figuresDir)
	if err != nil {
		return err
	}
	if err := p.execute(figuresDir, readmeTemplate, &bytes.Buffer{}); err != nil {
		return err
	}
	if missing := p.missed(); len(missing) > 0 {
		return fmt.Errorf("%s names figures that nobody measured: %s", readmeTemplate, strings.Join(missing, ", "))
	}
	at := p.commits()
	if len(at) > 1 {
		var list []string
		for _, commit := range slices.Sorted(maps.Keys(at)) {
			list = append(list, fmt.Sprintf("%s (%s)", commit, strings.Join(at[commit], ", ")))
		}
		return fmt.Errorf("the figures of %s are of %d commits, must be of one `make bench`: %s", readme, len(at), strings.Join(list, "; "))
	}
	for commit := range at {
		if err := codeSince(ctx, commit); err != nil {
			return err
		}
	}
	return nil
}

// codeSince is an error where the product has changed since a commit.
func codeSince(ctx context.Context, commit string) error {
	if strings.HasSuffix(commit, changed) {
		return fmt.Errorf("the figures of %s are of %s: commit, then run `make bench`", readme, commit)
	}
	var why bytes.Buffer
	cmd := exec.CommandContext(ctx, "git", "diff", "--name-only", commit, "HEAD", "--", "*.go", "go.mod", "go.sum", "configs", "*/web/static/*")
	cmd.Stderr = &why
	out, err := cmd.Output()
	if err != nil {
		return errors.Join(fmt.Errorf("commit %s of the figures of %s: %s", commit, readme, strings.TrimSpace(why.String())), err)
	}
	if files := strings.Fields(string(out)); len(files) > 0 {
		return fmt.Errorf("the figures of %s are of %s, and %d files have changed since, such as %s: run `make bench`", readme, commit, len(files), files[0])
	}
	return nil
}

// execute writes a template of the directory with the page's figures.
func (p *page) execute(dir, name string, out *bytes.Buffer) error {
	t, err := template.New(name).Funcs(template.FuncMap{
		"sections": func() []section { return p.all },
		"families": p.families, "cell": p.cell, "row": p.row, "short": p.short, "lockstep": p.lockstep,
		"misses": misses, "run": ran, "machines": p.machines, "measured": p.measured,
	}).ParseFiles(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	return t.Execute(out, nil)
}

// missed are the figures that a template named and no target printed.
func (p *page) missed() []string {
	slices.Sort(p.missing)
	return slices.Compact(p.missing)
}
