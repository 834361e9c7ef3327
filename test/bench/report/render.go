// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-collector/gpu-collector/test/bench/figure"
)

// pageTemplate has the texts of the document and the names of its figures.
const pageTemplate = "page.md.tmpl"

// unmeasured is the cell of a figure that its target did not print.
const unmeasured = "not measured"

// section is a target: its title, where and when it ran, and the figures that it printed.
type section struct {
	Name, Title string
	where       map[string]string
	figures     []figure.Figure
}

// page is the document as its template sees it.
type page struct {
	all     []section
	byName  map[string]map[string]figure.Figure
	missing []string
	used    map[string]bool // sections of which a figure was shown
}

// render is the document: the directory's template with the figures beside it. The
// second value names the figures of the template that no target printed.
func render(dir string) ([]byte, []string, error) {
	p, err := read(dir)
	if err != nil {
		return nil, nil, err
	}
	var doc bytes.Buffer
	err = p.execute(dir, pageTemplate, &doc)
	return doc.Bytes(), p.missed(), err
}

// read takes a section for each text of the directory, in the order of their names.
func read(dir string) (*page, error) {
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
	p := &page{byName: map[string]map[string]figure.Figure{}, used: map[string]bool{}}
	for _, text := range texts {
		s, err := readSection(strings.TrimSuffix(text, ".md"))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.all = append(p.all, s)
		p.byName[s.Name] = map[string]figure.Figure{}
		for _, f := range s.figures {
			p.byName[s.Name][f.Name] = f
		}
	}
	return p, errors.Join(errs...)
}

func readSection(base string) (section, error) {
	s := section{Name: filepath.Base(base), where: map[string]string{}}
	prose, err := os.ReadFile(base + ".md")
	if err != nil {
		return s, err
	}
	first, _, _ := strings.Cut(string(prose), "\n")
	title, ok := strings.CutPrefix(first, "# ")
	if !ok {
		return s, fmt.Errorf("%s.md begins with %q: it has to begin with its title, as `# Title`", base, first)
	}
	s.Title = title
	raw, err := os.ReadFile(base + ".txt")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	for line := range strings.Lines(string(raw)) {
		if comment, ok := strings.CutPrefix(line, "# "); ok {
			key, value, _ := strings.Cut(comment, ":")
			s.where[key] = strings.TrimSpace(value)
			continue
		}
		f, ok, err := figure.Parse(line)
		if err == nil && !ok {
			err = fmt.Errorf("%q is no figure", line)
		}
		if err != nil {
			return s, fmt.Errorf("%s.txt: %w", base, err)
		}
		s.figures = append(s.figures, f)
	}
	return s, nil
}

func (p *page) find(section, name string) (figure.Figure, bool) {
	f, ok := p.byName[section][name]
	p.used[section] = true
	if !ok {
		p.missing = append(p.missing, section+": "+name)
	}
	return f, ok
}

// cell is a value without its unit, in bold where it is short.
func (p *page) cell(section, name string) string {
	f, ok := p.find(section, name)
	if !ok {
		return unmeasured
	}
	return bold(f)
}

func bold(f figure.Figure) string {
	if f.Result == "short" {
		return "**" + f.Value + "**"
	}
	return f.Value
}

// row is a figure of a part, short a figure alone.
func (p *page) row(part, what, section, name string) string {
	return "| " + part + " " + p.short(what, section, name)
}

func (p *page) short(what, section, name string) string {
	f, ok := p.find(section, name)
	if !ok {
		return fmt.Sprintf("| %s | %s | | |", what, unmeasured)
	}
	return fmt.Sprintf("| %s | %s%s | %s | %s |", what, f.Value, unit(f.Unit), f.Limit, f.Result)
}

// unit is what a value is followed by, nothing for a share.
func unit(u string) string {
	if u == "1" || u == "share" {
		return ""
	}
	return " " + strings.Trim(u, "{}")
}

// lockstep is the row of a fault of a job or node, whose figures are eval_NAME_*. Some
// faults have no culprit that could be found or named.
func (p *page) lockstep(what, name string) string {
	cells := []string{what}
	for _, measure := range []string{"recall", "p50", "named"} {
		f, ok := p.byName["eval"]["eval_"+name+"_"+measure]
		if !ok && measure == "named" {
			// The siblings' agents and gateways name by one figure.
			f, ok = p.byName["eval"]["eval_"+name[:strings.LastIndexByte(name, '_')+1]+measure]
		}
		if !ok {
			cells = append(cells, "")
			continue
		}
		cells = append(cells, bold(f)+unit(f.Unit))
	}
	cells = append(cells, p.cell("eval", "eval_"+name+"_onsets"))
	return "| " + strings.Join(cells, " | ") + " |"
}

// families are those with an oracle, in the order of their figures.
func (p *page) families() []string {
	var names []string
	for _, f := range p.byName["eval"] {
		if name, ok := strings.CutSuffix(f.Name, "_cusum_oracle_ratio"); ok {
			names = append(names, strings.TrimPrefix(name, "eval_"))
		}
	}
	slices.Sort(names)
	return names
}

// misses are the short figures of a section in one line. Those of several families
// count as one, with the worst of them.
func misses(s section) string {
	type group struct {
		figure.Figure
		n, of int
	}
	groups := map[string]*group{}
	var order []string
	for _, f := range s.figures {
		if f.Limit == "" {
			continue
		}
		key := family(f.Name)
		g := groups[key]
		if g == nil {
			g = &group{}
			groups[key] = g
			order = append(order, key)
		}
		g.of++
		if f.Result != "short" {
			continue
		}
		if g.n++; g.n == 1 || off(f) > off(g.Figure) {
			g.Figure = f
		}
	}
	var told []string
	n := 0
	for _, key := range order {
		g := groups[key]
		switch n += g.n; {
		case g.n == 0:
			continue
		case g.of > 1:
			told = append(told, fmt.Sprintf("`%s` %d of %d, worst %s of %s (%s)", key, g.n, g.of, g.Value, g.Limit, strings.Split(g.Name, "_")[1]))
		default:
			told = append(told, fmt.Sprintf("`%s` %s of %s%s", g.Name, g.Value, g.Limit, unit(g.Unit)))
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("- [%s](benchmarks/%s.md), %d: %s.", s.Title, s.Name, n, strings.Join(told, "; "))
}

// family is the name of a figure without its family.
func family(name string) string {
	part := strings.SplitN(name, "_", 3)
	if len(part) < 3 || part[0] != "eval" {
		return name
	}
	return "eval_*_" + part[2]
}

// off is how far a short figure is beyond its limit, as a ratio.
func off(f figure.Figure) float64 {
	value, _ := strconv.ParseFloat(f.Value, 64)
	limit, _ := strconv.ParseFloat(f.Limit, 64)
	return math.Abs(value-limit) / max(math.Abs(limit), 1e-9)
}

// ran is the row of a section in the list of targets.
func ran(s section) string {
	short := 0
	for _, f := range s.figures {
		if f.Result == "short" {
			short++
		}
	}
	date := s.where["date"]
	switch failed := s.where[keyFailed]; {
	case failed != "":
		date += " (failed: " + failed + ")"
	case date == "":
		date = unmeasured
	}
	return fmt.Sprintf("| `make %s` | [%s](benchmarks/%s.md) | %s | %s | [%d](benchmarks/%s.txt) | %d |", s.Name, s.Title, s.Name, date, s.where["commit"], len(s.figures), s.Name, short)
}

// machines names the machine, or each with the targets that ran there.
func (p *page) machines() string {
	var names []string
	targets := map[string][]string{}
	for _, s := range p.all {
		m := s.where["machine"]
		if m == "" {
			continue
		}
		if targets[m] == nil {
			names = append(names, m)
		}
		targets[m] = append(targets[m], s.Name)
	}
	for i, m := range names {
		if len(names) > 1 {
			names[i] = strings.Join(targets[m], ", ") + ": " + m
		}
	}
	return "The machine: " + strings.Join(names, "; ") + "."
}
