// SPDX-License-Identifier: Apache-2.0

package mission

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	scheme  = regexp.MustCompile(`^[a-z]+:`)
	heading = regexp.MustCompile(`^#{1,6} (.*)`)
	linked  = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	named   = regexp.MustCompile(`<a id="([^"]+)">`)
	unslug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	command = regexp.MustCompile("(?m)[`\n]make ([a-z][a-z0-9-]*)")
)

// pages are the Markdown files of the tree, by their path in it.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || name == "dist"): // a release that was made here
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(name, ".md"):
			all[name] = read(t, name)
		}
		return nil
	}))
	require.Greater(t, len(all), 60)
	return all
}

// anchors are the places of a page that a link can lead to, as GitHub names them.
func anchors(page string) map[string]bool {
	all, seen, code := map[string]bool{}, map[string]int{}, false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		for _, m := range named.FindAllStringSubmatch(line, -1) {
			all[m[1]] = true
		}
		m := heading.FindStringSubmatch(line)
		if code || m == nil {
			continue
		}
		text := linked.ReplaceAllString(strings.TrimSpace(m[1]), "$1")
		name := strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		n := seen[name]
		if seen[name]++; n > 0 {
			name += "-" + strconv.Itoa(n)
		}
		all[name] = true
	}
	return all
}

// TestLinksLeadSomewhere follows each link between files of the tree, to its heading too.
func TestLinksLeadSomewhere(t *testing.T) {
	all, followed := pages(t), 0
	for name, page := range all {
		for _, m := range link.FindAllStringSubmatch(page, -1) {
			if scheme.MatchString(m[1]) {
				continue
			}
			followed++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := filepath.EvalSymlinks(filepath.Join(root, to)); !assert.NoError(t, err, "%s links to %s", name, m[1]) {
				continue
			}
			if text, ok := all[to]; ok && anchor != "" {
				assert.True(t, anchors(text)[anchor], "%s links to %s: %s has no such heading", name, m[1], to)
			}
		}
	}
	assert.Greater(t, followed, 200)
}

// TestCommandsOfPagesExist: a reader can type each `make` command of a page.
func TestCommandsOfPagesExist(t *testing.T) {
	makefile, count := read(t, "Makefile"), 0
	for name, page := range pages(t) {
		for _, m := range command.FindAllStringSubmatch(page, -1) {
			count++
			assert.Regexp(t, "(?m)^"+m[1]+":.*## ", makefile, "%s names make %s", name, m[1])
		}
	}
	assert.Greater(t, count, 50)
}
