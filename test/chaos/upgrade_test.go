// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestUpgrade replaces the binary of each tier under way, as in docs/upgrading.md:
// the previous commit's, or that of CHAOS_FROM, with the configurations of
// then by today's, from the gateway down, and back from the agents up.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	before := previous(t)
	w := newWorld(t, setup{prepare: func(m *member) {
		m.Command.Path, m.Command.Dir = filepath.Join(before, "gpu-collector"), before
	}})
	replace := func(path, dir string, m *member) {
		t.Run(m.name+" by "+filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			w.suffer(func() {
				m.Stop()
				m.Command.Path, m.Command.Dir = path, dir
				m.Start()
			})
			w.recovered(t)
		})
	}
	there := w.members()[:pick(3, len(w.members()))]
	for _, m := range there {
		replace(process.Binary(t, "gpu-collector"), process.Root, m)
	}
	back := slices.Clone(there)
	slices.Reverse(back)
	for _, m := range back {
		replace(filepath.Join(before, "gpu-collector"), before, m)
	}
}

// previous returns a directory with the files of an earlier commit and its
// binary. It is always the same one, so that Go compiles again only what has
// changed, and kept for the next run.
func previous(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(process.Root + "/.cache/chaos/previous")
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
	cmd.Dir = process.Root
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return dir
}
