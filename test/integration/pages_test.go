// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// block is a fenced block of a page.
type block struct{ page, language, text string }

var fence = regexp.MustCompile("(?ms)^```(\\w*)[^\n]*\n(.*?)^```")

// pages are those that people write.
func pages(t *testing.T) (list []string) {
	out, err := exec.Command("git", "-C", process.Root, "ls-files", "*.md").Output()
	require.NoError(t, err)
	for page := range strings.Lines(string(out)) {
		page = strings.TrimSpace(page)
		if !strings.Contains(page, "testdata/") && filepath.Base(page) != "documentation.md" {
			list = append(list, page)
		}
	}
	require.NotEmpty(t, list)
	return list
}

// blocks are those of all pages.
func blocks(t *testing.T) (list []block) {
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(process.Root, page))
		require.NoError(t, err)
		for _, m := range fence.FindAllStringSubmatch(string(text), -1) {
			list = append(list, block{page, m[1], m[2]})
		}
	}
	return list
}

// sections are those of a Collector's configuration.
var sections = []string{"receivers", "processors", "exporters", "extensions", "service"}

// TestConfigurationsOfPages: the Collector takes each configuration that a page shows. What the
// page leaves out is added: a pipeline of its components.
func TestConfigurationsOfPages(t *testing.T) {
	n := 0
	for _, b := range blocks(t) {
		if b.language != "yaml" {
			continue
		}
		var whole map[string]map[string]any
		if err := yaml.Unmarshal([]byte(b.text), &whole); err != nil || len(whole) == 0 {
			var list any // a manifest of the builder, several objects, values of the chart
			require.NoError(t, yaml.NewDecoder(strings.NewReader(b.text)).Decode(&list), "%s: %s", b.page, b.text)
			continue
		}
		for name := range whole {
			if !slices.Contains(sections, name) {
				whole = nil
				break
			}
		}
		if whole == nil {
			continue
		}
		n++
		text, err := yaml.Marshal(complete(whole))
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "config.yaml")
		require.NoError(t, os.WriteFile(file, text, 0o600))
		cmd := exec.Command(process.Binary(t, "gpu-collector"), "validate", "--config", file)
		cmd.Dir = process.Root
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s\n%s", b.page, err, b.text, out)
		}
	}
	assert.Greater(t, n, 10)
}

// complete adds what a configuration needs to be whole: a pipeline of its components, and what
// pipelines name beside them.
func complete(c map[string]map[string]any) map[string]map[string]any {
	if c["service"] == nil {
		c["service"] = map[string]any{}
	}
	if c["service"]["pipelines"] == nil {
		pipeline := map[string]any{"receivers": []any{"nop"}, "exporters": []any{"nop"}}
		for _, section := range []string{"receivers", "processors", "exporters"} {
			if names := slices.Sorted(maps.Keys(c[section])); len(names) > 0 {
				pipeline[section] = names
			}
		}
		c["service"]["pipelines"] = map[string]any{"metrics": pipeline}
	}
	if c["extensions"] == nil {
		c["extensions"] = map[string]any{}
	}
	if _, there := c["extensions"]["exposition"]; !there {
		c["extensions"]["exposition"] = nil // the table of diff
	}
	c["service"]["extensions"] = slices.Sorted(maps.Keys(c["extensions"]))
	for _, pipeline := range c["service"]["pipelines"].(map[string]any) {
		for section, names := range pipeline.(map[string]any) {
			list, _ := names.([]any)
			for _, name := range list {
				if c[section] == nil {
					c[section] = map[string]any{}
				}
				if _, there := c[section][name.(string)]; !there {
					kind, _, _ := strings.Cut(name.(string), "/")
					c[section][name.(string)] = needed[kind]
				}
			}
		}
	}
	return c
}

// needed are the keys of components that pages name without configuration, and that need one.
var needed = map[string]any{
	"otlp_grpc":      map[string]any{"endpoint": "localhost:4317"},
	"otlp":           map[string]any{"protocols": map[string]any{"grpc": nil}},
	"fleet_otlp":     map[string]any{"protocols": map[string]any{"grpc": nil}},
	"resource":       map[string]any{"attributes": []any{map[string]any{"key": "k8s.cluster.name", "value": "one", "action": "insert"}}},
	"straggler":      map[string]any{"mode": "gateway"},
	"diff":           map[string]any{"table": "exposition"},
	"memory_limiter": map[string]any{"check_interval": "1s", "limit_percentage": 90},
}

var (
	command = regexp.MustCompile(`(?m)^(?:sudo |docker exec \S+ )?(?:\S*/)?(gpu-collector|fleetsim|gpu-collector-demo)((?: [^\n|;&>]*)?)`)
	flag    = regexp.MustCompile(`(?: )(--?[a-z][a-z-]*)`)
	target  = regexp.MustCompile(`(?m)^(?:[A-Z_]+=\S+ )*make ((?:[a-z][a-z-]* ?)+)`)
)

// TestCommandsOfPages: the commands that a page shows are there, with their flags, and so are
// make's targets. Suites of their own run whole pages: test/images, test/packages, test/e2e.
func TestCommandsOfPages(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(process.Root, "Makefile"))
	require.NoError(t, err)
	n := 0
	for _, b := range blocks(t) {
		if b.language != "" && b.language != "sh" {
			continue
		}
		text := strings.ReplaceAll(b.text, "\\\n", "")
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			args := []string{"--help"}
			if words := strings.Fields(m[2]); len(words) > 0 && regexp.MustCompile(`^[a-z][a-z-]+$`).MatchString(words[0]) {
				args = []string{words[0], "--help"}
			}
			help, err := exec.Command(process.Binary(t, m[1]), args...).CombinedOutput()
			require.NoError(t, err, "%s: %s\n%s", b.page, m[0], help)
			for _, f := range flag.FindAllStringSubmatch(m[2], -1) {
				n++
				assert.True(t, bytes.Contains(help, []byte(f[1])), "%s: %s has no %s", b.page, m[0], f[1])
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			for name := range strings.FieldsSeq(m[1]) {
				n++
				assert.Regexp(t, `(?m)^`+name+`:`, string(makefile), "%s: %s", b.page, m[0])
			}
		}
	}
	assert.Greater(t, n, 10)
}

// request is one of our API that a page shows; other servers' are left out below.
var request = regexp.MustCompile("(/api/v1/[a-z0-9_/]*)((?:\\?[a-z_]+=)?)(?:[^`'\\s]*)")

// TestRequestsOfPages: a gateway has the paths and the parameters of each request that a page shows.
func TestRequestsOfPages(t *testing.T) {
	g := startGateway(t)
	n := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(filepath.Join(process.Root, page))
		require.NoError(t, err)
		for _, m := range request.FindAllStringSubmatch(string(text), -1) {
			path := strings.TrimSuffix(m[1], "/")
			switch {
			case slices.Contains([]string{"/api/v1/write", "/api/v1/push", "/api/v1/otlp", "/api/v1/query"}, path), strings.HasSuffix(path, "/observe"), strings.HasPrefix(path, "/api/v1/threshold"):
				continue // a metric store's, one without end, those of straggler_threshold
			}
			n++
			resp, err := http.Get(g.URL(path + m[2]))
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.NotContains(t, string(body), "no such parameter", "%s: %s", page, m[0])
			assert.NotContains(t, string(body), "there is nothing at", "%s: %s", page, m[0])
			if strings.Count(path, "/") == 3 { // a list
				assert.NotEqual(t, http.StatusNotFound, resp.StatusCode, "%s: %s", page, m[0])
			}
		}
	}
	assert.Greater(t, n, 20)
}
