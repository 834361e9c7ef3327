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

// maxLines is the length of the document: who reads it wants the page, not the figures.
const maxLines = 150

// TestDocumentIsGenerated: whoever edits docs/benchmarks.md by hand, or a text
// or figure under docs/benchmarks without writing it anew, is told so here.
func TestDocumentIsGenerated(t *testing.T) {
	want, missing, err := render(filepath.Join(root, figuresDir))
	require.NoError(t, err)
	assert.Empty(t, missing, "figures that docs/benchmarks/page.md.tmpl names and nobody measured")
	got, err := os.ReadFile(filepath.Join(root, document))
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got), "run `make bench-doc` and commit")
	assert.LessOrEqual(t, strings.Count(string(got), "\n"), maxLines)
}

// TestReadmeIsGenerated: no figure of the README is a person's word.
func TestReadmeIsGenerated(t *testing.T) {
	got, err := os.ReadFile(filepath.Join(root, readme))
	require.NoError(t, err)
	want, missing, err := renderReadme(filepath.Join(root, figuresDir), got)
	require.NoError(t, err)
	assert.Empty(t, missing, "figures that docs/benchmarks/readme.md.tmpl names and nobody measured")
	assert.Contains(t, string(want), "| Statements that unit tests reach | ", "test coverage is shown")
	assert.Equal(t, string(want), string(got), "run `make bench-doc` and commit")
}

func TestRenderReadme(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		readmeTemplate: "{{short \"CPU\" \"bench-a\" \"cpu\"}}\n{{short \"memory\" \"bench-b\" \"rss\"}}\n{{measured}}\n",
		"bench-a.md":   "# A\n", "bench-a.txt": "# commit: abc\nfigure cpu 4 ms limit 3 short\n",
		"bench-b.md": "# B\n", "bench-b.txt": "# commit: abc\nfigure rss 5 MB\n",
		"bench-c.md": "# C\n", "bench-c.txt": "# commit: other\nfigure unused 5 MB\n",
	})
	before := "# Product\n" + readmeBegin + "what was there\n" + readmeEnd + "more\n"
	one, missing, err := renderReadme(dir, []byte(before))
	require.NoError(t, err)
	assert.Empty(t, missing)
	assert.Equal(t, "# Product\n"+readmeBegin+"| CPU | 4 ms | 3 | short |\n| memory | 5 MB |  |  |\n"+
		"`make bench` measured them at commit abc; [benchmarks](docs/benchmarks.md#how-to-run) have the rest, and the misses.\n"+readmeEnd+"more\n", string(one))
	again, _, err := renderReadme(dir, one)
	require.NoError(t, err)
	assert.Equal(t, string(one), string(again))

	write(t, dir, map[string]string{"bench-b.txt": "# commit: def\nfigure cpu 5 MB\n"})
	two, missing, err := renderReadme(dir, one)
	require.NoError(t, err)
	assert.Equal(t, []string{"bench-b: rss"}, missing)
	assert.Contains(t, string(two), "measured them at 2 commits")
	_, _, err = renderReadme(dir, []byte("# Product\n"+readmeBegin))
	require.ErrorContains(t, err, "README.md has no lines")
}

// TestOfRelease: the README's figures are of one run, on the code that is released.
func TestOfRelease(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll(figuresDir, 0o700))
	write(t, ".", map[string]string{"a.go": "1", "CHANGELOG.md": "1"})
	gitDir(t)
	commitAll := func() string {
		git(t, "add", "-A")
		git(t, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "next")
		name, err := commit(t.Context())
		require.NoError(t, err)
		return name
	}
	measuredAt := func(a, b string) {
		write(t, figuresDir, map[string]string{
			readmeTemplate: `{{short "CPU" "bench-a" "cpu"}}{{short "memory" "bench-b" "rss"}}{{measured}}`,
			"bench-a.md":   "# A\n", "bench-a.txt": "# commit: " + a + "\nfigure cpu 4 ms\n",
			"bench-b.md": "# B\n", "bench-b.txt": "# commit: " + b + "\nfigure rss 5 MB\n",
		})
	}
	first := commitAll()
	measuredAt(first, first)
	write(t, ".", map[string]string{"CHANGELOG.md": "2"})
	commitAll()
	require.NoError(t, run(t.Context(), []string{"-release"}), "figures and a text came after the code")

	write(t, ".", map[string]string{"a.go": "2"})
	second := commitAll()
	require.ErrorContains(t, ofRelease(t.Context()), "1 files have changed since, such as a.go")
	measuredAt(first, second)
	require.ErrorContains(t, ofRelease(t.Context()), "are of 2 commits")
	measuredAt(second+changed, second+changed)
	require.ErrorContains(t, ofRelease(t.Context()), "commit, then run `make bench`")
	measuredAt("nowhere", "nowhere")
	require.ErrorContains(t, ofRelease(t.Context()), "commit nowhere of the figures of README.md")
	write(t, figuresDir, map[string]string{"bench-a.txt": ""})
	require.ErrorContains(t, ofRelease(t.Context()), "bench-a: cpu")
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

const testPage = `{{row "Agent" "CPU" "bench-b" "cpu"}}
{{short "points" "bench-b" "points"}}
{{cell "bench-b" "cpu"}} {{cell "bench-b" "none"}}
{{- range families}}
{{.}}
{{- end}}
{{lockstep "a GPU" "collectives_gpu"}}
{{- range sections}}
{{run .}}
{{- with misses .}}
{{.}}{{end}}{{end}}
{{machines}}
`

func TestRender(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		pageTemplate:  testPage,
		"bench-b.md":  "# Second\n\nWhat it is.\n",
		"bench-b.txt": "# machine: EPYC, 2 cores\n# commit: abc\n# date: 2026-01-02\nfigure cpu 4 ms limit 3 short\nfigure points 531 {point}\n",
		"bench-a.md":  "# First\n\nTo come.\n",
		"eval.md":     "# Detection\n",
		"eval.txt": "# failed: exit status 2\nfigure eval_base_cusum_recall 0.9 share limit 1 short\nfigure eval_tiny_cusum_recall 0.5 share limit 1 short\n" +
			"figure eval_jobs_cusum_recall 1 share limit 1 pass\nfigure eval_tiny_cusum_oracle_ratio 2 x\n" +
			"figure eval_collectives_gpu_recall 1 share\nfigure eval_collectives_gpu_p50 60 s limit 60 pass\nfigure eval_collectives_gpu_onsets 0.2 /node-day limit 0.01 short\n",
	})
	doc, missing, err := render(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{"bench-b: none"}, missing)
	assert.Equal(t, `| Agent | CPU | 4 ms | 3 | short |
| points | 531 point |  |  |
**4** not measured
tiny
| a GPU | 1 | 60 s |  | **0.2** |
| `+"`make bench-a`"+` | [First](benchmarks/bench-a.md) | not measured |  | [0](benchmarks/bench-a.txt) | 0 |
| `+"`make bench-b`"+` | [Second](benchmarks/bench-b.md) | 2026-01-02 | abc | [2](benchmarks/bench-b.txt) | 1 |
- [Second](benchmarks/bench-b.md), 1: `+"`cpu`"+` 4 of 3 ms.
| `+"`make eval`"+` | [Detection](benchmarks/eval.md) |  (failed: exit status 2) |  | [7](benchmarks/eval.txt) | 3 |
- [Detection](benchmarks/eval.md), 3: `+"`eval_*_cusum_recall`"+` 2 of 3, worst 0.5 of 1 (tiny); `+"`eval_collectives_gpu_onsets`"+` 0.2 of 0.01 /node-day.
The machine: EPYC, 2 cores.
`, string(doc))
}

func TestRenderRefuses(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"no template", map[string]string{"x.md": "# X\n"}, pageTemplate},
		{"figures without a text", map[string]string{"x.txt": "figure a 1 ms\n"}, "x.md is missing"},
		{"no title", map[string]string{"x.md": "What it is.\n"}, "`# Title`"},
		{"no figure", map[string]string{"x.md": "# X\n", "x.txt": "cpu 3\n"}, "is no figure"},
		{"bad figure", map[string]string{"x.md": "# X\n", "x.txt": "figure cpu\n"}, "is not `figure NAME"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files)
			_, _, err := render(dir)
			require.ErrorContains(t, err, tt.want)
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

// TestRun has make targets that print, print and fail, and print nothing: each
// section has the last figures that there were, and says where the target failed.
func TestRun(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll(figuresDir, 0o700))
	write(t, ".", map[string]string{"Makefile": "good:\n\t@echo figure a 2 ms\nbad:\n\t@echo figure b 2 ms; false\nnothing:\n\t@true\n"})
	write(t, figuresDir, map[string]string{pageTemplate: `{{short "bad" "bad" "b"}}
{{short "good" "good" "a"}}
{{short "nothing" "nothing" "nothing"}}
{{range sections}}{{run .}}
{{end}}`})
	write(t, ".", map[string]string{readme: readmeBegin + readmeEnd})
	write(t, figuresDir, map[string]string{readmeTemplate: "{{short \"good\" \"good\" \"a\"}}\n"})
	for _, name := range []string{"good", "bad", "nothing"} {
		write(t, figuresDir, map[string]string{name + ".md": "# The " + name + "\n", name + ".txt": "# commit: old\nfigure " + name + " 1 ms\n"})
	}
	t.Setenv("GIT_DIR", gitDir(t))
	err := run(t.Context(), []string{"bad", "nothing", "good"})
	require.ErrorContains(t, err, "bad: exit status 2")
	require.NotContains(t, err.Error(), "nothing")
	raw, err := os.ReadFile(filepath.Join(figuresDir, "good.txt"))
	require.NoError(t, err)
	assert.Regexp(t, `^# machine: .+\n# commit: .+\n# date: \d{4}-\d\d-\d\d\nfigure a 2 ms\n$`, string(raw))
	doc, err := os.ReadFile(document)
	require.NoError(t, err)
	for _, line := range []string{"| bad | 2 ms |", "| good | 2 ms |", "| nothing | 1 ms |"} {
		assert.Contains(t, string(doc), line)
	}
	assert.Equal(t, 1, strings.Count(string(doc), "failed: exit status 2"))
	front, err := os.ReadFile(readme)
	require.NoError(t, err)
	assert.Contains(t, string(front), "| good | 2 ms |")
}

// gitDir is a repository with one commit.
func gitDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(".git")
	require.NoError(t, err)
	for _, args := range [][]string{{"init", "-q"}, {"-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "--allow-empty", "-m", "one"}} {
		git(t, args...)
	}
	return dir
}

// The output of an earlier target is no change of the measured code.
func TestCommit(t *testing.T) {
	t.Chdir(t.TempDir())
	require.NoError(t, os.MkdirAll(figuresDir, 0o700))
	write(t, ".", map[string]string{"code": "1", document: "1", figuresDir + "/a.txt": "1"})
	gitDir(t)
	git(t, "add", "-A")
	git(t, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-q", "-m", "two")
	write(t, ".", map[string]string{document: "2", figuresDir + "/a.txt": "2"})
	clean, err := commit(t.Context())
	require.NoError(t, err)
	assert.Regexp(t, `^[0-9a-f]{12}$`, clean)
	write(t, ".", map[string]string{"code": "2"})
	dirty, err := commit(t.Context())
	require.NoError(t, err)
	assert.Equal(t, clean+"+changes", dirty)
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

func git(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command("git", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
