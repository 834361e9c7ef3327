// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../../.."

// TestDocumentIsGenerated: whoever edits docs/benchmarks.md by hand, or a text
// or figure under docs/benchmarks without writing it anew, or leaves figures of
// two commits there, is told so here.
func TestDocumentIsGenerated(t *testing.T) {
	want, err := render(filepath.Join(root, figuresDir))
	require.NoError(t, err)
	got, err := os.ReadFile(filepath.Join(root, document))
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "run `make bench-doc` and commit")
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

func TestRender(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"a.md":        "# Not measured\n",
		"bench-b.md":  "# First\n\nWhat it is.\n",
		"bench-b.txt": "# machine: EPYC, 2 cores\n# commit: abc\n# date: 2026-01-02\nfigure cpu 4 ms limit 3 short\nfigure points 531 points\n",
		"bench-c.md":  "# Second\n",
		"bench-c.txt": "# machine: EPYC, 2 cores\n# commit: abc\n# date: 2026-01-03\n# failed: exit status 2\nfigure c 1 ms\n",
	})
	doc, err := render(dir)
	require.NoError(t, err)
	assert.Equal(t, introduction+`
Commit abc printed all figures, on 2026-01-03: EPYC, 2 cores.

## First

| Figure, by `+"`make bench-b`"+` | Value | Unit | Limit | Result |
|---|---:|---|---:|---|
| `+"`cpu`"+` | 4 | ms | 3 | short |
| `+"`points`"+` | 531 | points |  |  |

What it is.

## Second

**This run failed (exit status 2).** The figures are those that it printed.

| Figure, by `+"`make bench-c`"+` | Value | Unit | Limit | Result |
|---|---:|---|---:|---|
| `+"`c`"+` | 1 | ms |  |  |
`, string(doc))
}

func TestRenderRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"figures without a text", map[string]string{"x.txt": "figure a 1 ms\n"}, "x.md: no such file"},
		{"no title", map[string]string{"x.md": "What it is.\n", "x.txt": ""}, "`# Title`"},
		{"no figure", map[string]string{"x.md": "# X\n", "x.txt": "cpu 3\n"}, "is no figure"},
		{"bad figure", map[string]string{"x.md": "# X\n", "x.txt": "figure cpu\n"}, "is not `figure NAME"},
		{"two commits", map[string]string{"x.md": "# X\n", "x.txt": "# commit: abc\n", "y.md": "# Y\n", "y.txt": "# commit: def\n"}, `x.txt is of commit "abc" and DIR/y.txt of "def"`},
		{"two machines", map[string]string{"x.md": "# X\n", "x.txt": "# machine: a\n", "y.md": "# Y\n", "y.txt": "# machine: b\n"}, `x.txt is of machine "a" and DIR/y.txt of "b"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files)
			_, err := render(dir)
			require.ErrorContains(t, err, strings.ReplaceAll(tt.want, "DIR", dir))
		})
	}
}

func TestFigures(t *testing.T) {
	text, err := figures(strings.NewReader("building\n figure a 1 ms limit 3 pass \nok\nfigure b 2 MB\n"))
	require.NoError(t, err)
	assert.Equal(t, "figure a 1 ms limit 3 pass\nfigure b 2 MB\n", text)
	for _, out := range []string{"", "nothing\n", "figure a\n"} {
		_, err = figures(strings.NewReader(out))
		require.Error(t, err, out)
	}
}

// TestRun has make targets that print, print and fail, and print nothing. The last
// keeps the figures of another commit, so there is no document before they are gone.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll(figuresDir, 0o700))
	write(t, ".", map[string]string{"Makefile": "good:\n\t@echo figure a 2 ms\nbad:\n\t@echo figure b 2 ms; false\nnothing:\n\t@true\n"})
	for _, name := range []string{"good", "bad", "nothing"} {
		write(t, figuresDir, map[string]string{name + ".md": "# The " + name + "\n", name + ".txt": "# commit: old\nfigure " + name + " 1 ms\n"})
	}
	repository(t)
	err := run(t.Context(), []string{"bad", "nothing", "good"})
	require.ErrorContains(t, err, "bad: exit status 2")
	require.ErrorContains(t, err, `nothing.txt of "old"`)
	require.NoFileExists(t, document)
	require.NoError(t, os.Remove(figuresDir+"/nothing.txt"))
	require.NoError(t, run(t.Context(), nil))
	raw, err := os.ReadFile(filepath.Join(figuresDir, "good.txt"))
	require.NoError(t, err)
	assert.Regexp(t, `^# machine: .+\n# commit: [0-9a-f]{12}\n# date: \d{4}-\d\d-\d\d\nfigure a 2 ms\n$`, string(raw))
	doc, err := os.ReadFile(document)
	require.NoError(t, err)
	assert.Contains(t, string(doc), "| `a` | 2 |")
	assert.NotContains(t, string(doc), "| `good` |")
	assert.Equal(t, 1, strings.Count(string(doc), "**This run failed (exit status 2).**"))
	assert.Contains(t, string(doc), "| `b` | 2 |")
	assert.NotContains(t, string(doc), "| `bad` |")
}

// repository has one commit, of all files that are here.
func repository(t *testing.T) {
	t.Helper()
	dir, err := filepath.Abs(".git")
	require.NoError(t, err)
	t.Setenv("GIT_DIR", dir)
	for _, args := range [][]string{{"init", "-q"}, {"add", "-A"}, {"-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "one"}} {
		out, err := exec.Command("git", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
}

// The output of an earlier target is no change of the measured code.
func TestCommit(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll(figuresDir, 0o700))
	write(t, ".", map[string]string{"code": "1", document: "1", figuresDir + "/a.txt": "1"})
	repository(t)
	write(t, ".", map[string]string{document: "2", figuresDir + "/a.txt": "2"})
	clean, err := commit(t.Context())
	require.NoError(t, err)
	assert.Regexp(t, `^[0-9a-f]{12}$`, clean)
	write(t, ".", map[string]string{"code": "2"})
	_, err = commit(t.Context())
	require.ErrorContains(t, err, " M code")
}

func TestMachine(t *testing.T) {
	proc := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(proc, "sys/kernel"), 0o700))
	write(t, proc, map[string]string{
		"cpuinfo": "processor\t: 0\nmodel name\t: EPYC\n\nprocessor\t: 1\nmodel name\t: other\n", "meminfo": "MemTotal:       24684000 kB\nMemFree: 1 kB\n",
		"sys/kernel/osrelease": "6.1.2-40-distribution\n",
	})
	assert.Regexp(t, `^EPYC, \d+ cores, 25 GB of memory, Linux 6\.1\.2, go1\S* \w+/\w+$`, machine(proc))
	assert.Regexp(t, `^\d+ cores, go1\S* \w+/\w+$`, machine(filepath.Join(proc, "none")))
}
