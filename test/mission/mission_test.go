// SPDX-License-Identifier: Apache-2.0

// Package mission holds docs/mission.md, and the links and commands of all pages, to the tree.
package mission

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const root = "../.."

var (
	target = regexp.MustCompile("`make ([a-z0-9-]+)[^`]*`")
	held   = regexp.MustCompile("`(Test[A-Za-z0-9_]+|test_[a-z0-9_]+|[a-z0-9.]+\\.(?:sh|mjs))` in ([a-z0-9/-]+)")
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(text)
}

// rows are the cells of each row of the page's tables.
func rows(t *testing.T) [][]string {
	t.Helper()
	var all [][]string
	for line := range strings.Lines(read(t, "docs/mission.md")) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| Capability |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		require.Len(t, cells, 3, line)
		all = append(all, cells)
	}
	return all
}

// tests is the text of a directory's test files.
func tests(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, dir, pattern))
	require.NoError(t, err)
	require.NotEmpty(t, files, "%s has no tests", dir)
	var text strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		text.Write(source)
	}
	return text.String()
}

// recipes are those of the targets that a row names, with the rest of the Makefile's line.
func recipes(makefile string, targets [][]string) string {
	var text strings.Builder
	for _, m := range targets {
		text.WriteString(regexp.MustCompile(`(?m)^` + m[1] + `:.*\n(\t.*\n)*`).FindString(makefile))
	}
	return text.String()
}

// holds looks for a test of Go, of Python, or a script that one of the row's commands runs.
func holds(t *testing.T, name, dir, recipes string) {
	t.Helper()
	switch {
	case strings.HasSuffix(name, ".sh"):
		info, err := os.Stat(filepath.Join(root, dir, name))
		require.NoError(t, err)
		assert.NotZero(t, info.Mode()&0o100, "%s/%s is not executable", dir, name)
		assert.Contains(t, recipes, dir+"/"+name, "none of the row's commands runs it")
	case strings.HasSuffix(name, ".mjs"):
		assert.Regexp(t, `(?m)^test\('`, read(t, filepath.Join(dir, name)), name)
		assert.Contains(t, recipes, dir+"/$(page).test.mjs", "none of the row's commands runs it")
	case strings.HasPrefix(name, "test_"):
		assert.Regexp(t, `(?m)^def `+name+`\(`, tests(t, dir, "test_*.py"), "%s in %s", name, dir)
		assert.Contains(t, recipes, "pytest", "none of the row's commands runs it")
	default:
		assert.Regexp(t, `(?m)^func `+name+`\(t \*testing\.T\)`, tests(t, dir, "*_test.go"), "%s in %s", name, dir)
	}
}

func TestEveryRowHolds(t *testing.T) {
	makefile := read(t, "Makefile")
	all := rows(t)
	require.Greater(t, len(all), 40)
	for _, row := range all {
		t.Run(strings.TrimSpace(row[0]), func(t *testing.T) {
			targets := target.FindAllStringSubmatch(row[1], -1)
			require.NotEmpty(t, targets, "no command")
			for _, m := range targets {
				assert.Regexp(t, "(?m)^"+m[1]+":.*## ", makefile, "make %s", m[1])
			}
			functions := held.FindAllStringSubmatch(row[2], -1)
			require.NotEmpty(t, functions, "no test")
			assert.Len(t, functions, strings.Count(row[2], "`")/2, "each test has a directory: %s", row[2])
			for _, m := range functions {
				holds(t, m[1], m[2], recipes(makefile, targets))
			}
		})
	}
}

// TestEveryComponentHasARow asks the manifests of the distributions.
func TestEveryComponentHasARow(t *testing.T) {
	page := read(t, "docs/mission.md")
	for _, manifest := range []string{"builder-config.yaml", "builder-config-agent.yaml"} {
		var parts map[string]any
		require.NoError(t, yaml.Unmarshal([]byte(read(t, manifest)), &parts))
		for _, kind := range []string{"receiver", "processor", "exporter", "extension"} {
			list, _ := parts[kind+"s"].([]any)
			require.NotEmpty(t, list, kind)
			for _, entry := range list {
				module, _ := entry.(map[string]any)
				path, ours := module["import"].(string)
				if !ours {
					continue
				}
				_, dir, _ := strings.Cut(path, "gpu-collector/gpu-collector/")
				var meta struct{ Type string }
				require.NoError(t, yaml.Unmarshal([]byte(read(t, dir+"/metadata.yaml")), &meta))
				assert.Contains(t, page, kind+" `"+meta.Type+"`", dir)
			}
		}
	}
}

// TestPoliciesAreOfTheTree: docs/releases.md says how versions change, and supports what the
// tree is made for.
func TestPoliciesAreOfTheTree(t *testing.T) {
	page := read(t, "docs/releases.md")
	for _, want := range []string{"\n## Versions\n", "\n## Deprecation\n", "\n## Support matrix\n"} {
		assert.Contains(t, page, want)
	}
	for what, from := range map[string]struct{ file, version, row string }{
		"the Collector's beta modules":   {"go.mod", `go\.opentelemetry\.io/collector/otelcol (v0\.\d+\.\d+)`, `\| OpenTelemetry Collector \|.* %s / v1`},
		"the Collector's stable modules": {"go.mod", `go\.opentelemetry\.io/collector/component (v1\.\d+\.\d+)`, `\| OpenTelemetry Collector \|.* / %s `},
		"the chart's Kubernetes":         {"helm/gpu-collector/Chart.yaml", `kubeVersion: ['"]?>= ?(\d+\.\d+)`, `\| Kubernetes \| %s and newer`},
		"the agent package's C library":  {".goreleaser.yaml", `libc6 \(>= (\d+\.\d+)\)`, `\| Operating system \|.*the agent glibc %s and newer`},
	} {
		m := regexp.MustCompile(from.version).FindStringSubmatch(read(t, from.file))
		if assert.NotNil(t, m, "%s is not in %s", what, from.file) {
			assert.Regexp(t, strings.ReplaceAll(from.row, "%s", regexp.QuoteMeta(m[1])), page, "%s is %s in %s", what, m[1], from.file)
		}
	}
	assert.Contains(t, read(t, "SECURITY.md"), "docs/releases.md")
}

// TestTheFirstScreen: a reader who opens the README alone finds what the product is, what it
// looks like, how it compares, and how to have it.
func TestTheFirstScreen(t *testing.T) {
	readme := read(t, "README.md")
	assert.LessOrEqual(t, strings.Count(readme, "\n"), 120)
	last := -1
	for _, want := range []string{
		"An OpenTelemetry Collector distribution for GPU fleets",
		"docs/images/attention.png",
		"| You ask | dcgm-exporter + Prometheus + alerts | gpud or NVSentinel | gpu-collector |",
		"make run\nmake test\n",
		"helm install",
		"docker run",
		"make build\nbin/gpu-collector",
		"doctor",
	} {
		at := strings.Index(readme, want)
		require.Greater(t, at, last, "%q is missing, or out of order", want)
		last = at
	}
	_, err := os.Stat(filepath.Join(root, "docs/images/attention.png"))
	require.NoError(t, err)
}
