// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestUpgrade replaces the binary of each tier under way, as docs/upgrading.md
// says: the previous commit's, or that of CHAOS_FROM, with the configurations of
// then by today's, from the gateway down, and back from the agents up. A node is slow all
// the time: each gateway goes on with the state of the one before, and with the episode.
// The agents keep their state: one that calibrates anew ends the episode.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	before := previous(t)
	w := newWorld(t, setup{agent: []string{agentState}, prepare: func(m *member) {
		c := m.Command()
		c.Path, c.Dir = filepath.Join(before, "gpu-collector"), before
		m.Replace(c)
	}})
	slow := w.rnd.IntN(numNodes)
	w.fleet.setSlow(slow, 1.25)
	w.await(t, 90*time.Second, "the slow node is named", w.named(slow))
	w.accusations()
	w.slow = nodeName(slow)
	id := w.episodes(t)[0]
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("told of %s:\n%s", w.slow, strings.Join(w.gateway.Log.Lines(`"node": "`+w.slow+`"`), "\n"))
		}
	})
	restarts := 0 // of the gateway
	replace := func(path, dir string, m *member) {
		t.Run(m.name+" by "+filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			w.suffer(func() {
				require.NoError(t, m.Stop())
				c := m.Command()
				c.Path, c.Dir = path, dir
				m.Replace(c)
				w.restart(t, m)
			})
			w.recovered(t)
			if m == w.gateway {
				restarts++
				assert.Equal(t, restarts, m.Log.Count("goes on with the state"), "gateways that knew what the one before did")
				w.await(t, 30*time.Second, "the gateway tells that the episode goes on", func(context.Context) string {
					if n := m.Log.Count("goes on after a restart", id); n != restarts {
						return fmt.Sprintf("%d of %d gateways told it", n, restarts)
					}
					return ""
				})
			}
			assert.Equal(t, []string{id}, w.episodes(t), "episodes of %s", w.slow)
		})
	}
	there := w.members()[:pick(3, len(w.members()))]
	for _, m := range there {
		replace(*binary, root, m)
	}
	back := slices.Clone(there)
	slices.Reverse(back)
	for _, m := range back {
		replace(filepath.Join(before, "gpu-collector"), before, m)
	}
}

// episodes are the ids that the gateways told of the slow node, each once.
func (w *world) episodes(t *testing.T) (ids []string) {
	t.Helper()
	for _, line := range w.gateway.Log.Lines(`"node": "`+w.slow+`"`, `"episode": "`) {
		id := episodeField.FindStringSubmatch(line)
		require.NotNil(t, id, line)
		if !slices.Contains(ids, id[1]) {
			ids = append(ids, id[1])
		}
	}
	require.NotEmpty(t, ids)
	return ids
}

var episodeField = regexp.MustCompile(`"episode": "([^"]+)"`)

// previous returns a directory with the files of an earlier commit and its
// binary. It is always the same one, so that Go compiles again only what has
// changed, and kept for the next run.
func previous(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(root + "/.cache/chaos/previous")
	require.NoError(t, err)
	// As in the Makefile; without -trimpath, which would compile everything again.
	const script = `
# The one before the last that changed the collector: with any later it is the same.
from=${1:-$(git rev-list -1 HEAD -- '*.go' ':!*_test.go' ':!test' go.mod go.sum configs)~1} dir=$2
commit=$(git rev-parse --verify "$from^{commit}")
[ "$(cat "$dir/.commit" 2>/dev/null)" = "$commit" ] && exit
rm -rf "$dir" && mkdir -p "$dir" && git archive "$commit" | tar -x -C "$dir"
cd "$dir"
CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go build -ldflags "-s -w -extldflags=-Wl,-z,lazy" -o gpu-collector ./cmd/gpu-collector
echo "$commit" >.commit`
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script, "bash", os.Getenv("CHAOS_FROM"), dir)
	cmd.Dir = root
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return dir
}
