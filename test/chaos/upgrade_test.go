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
	binary := filepath.Join(before, "bin/gpu-collector")
	w := newWorld(t, setup{prepare: func(m *member) { m.Command.Path, m.Command.Dir = binary, before }})
	replace := func(path, dir, by string, m *member) {
		t.Run(m.name+" by "+by, func(t *testing.T) {
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
		replace(process.Binary(t, "gpu-collector"), process.Root, "this", m)
	}
	for _, m := range slices.Backward(there) {
		replace(binary, before, "previous", m)
	}
}

// previous returns a directory with the files of an earlier commit and its binaries, which
// the next run finds again.
func previous(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(process.Root + "/.cache/chaos/previous")
	require.NoError(t, err)
	// The one before the last that changed the collector: with any later it is the same.
	const script = `scripts/basetree.sh "${1:-$(git rev-list -1 HEAD -- '*.go' ':!*_test.go' ':!test' go.mod go.sum configs)~1}" "$2"`
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", script, "bash", os.Getenv("CHAOS_FROM"), dir)
	cmd.Dir = process.Root
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	return dir
}
