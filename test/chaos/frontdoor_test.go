// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The fleets that suffer: a gateway behind the shard, and in its place a root, as it
// is shipped for the largest fleets.
const (
	gatewayFleet = "gateway"
	rootFleet    = "root"
)

// behind has a world of each fleet suffer. The shard compares pushes before they are
// decoded, from the first to the last.
func behind(t *testing.T, fleets []string, suffers func(*testing.T, *world)) {
	t.Helper()
	for _, fleet := range fleets {
		t.Run(fleet, func(t *testing.T) {
			t.Parallel()
			var s setup
			if fleet == rootFleet {
				s.gateway = []string{rootOverlay}
			}
			w := newWorld(t, s)
			compares := func() {
				figures := mustScrape(t, w.shard.telemetry)
				require.Positive(t, figures.sum("otelcol_extension_wire_diff_pushes"), "pushes come in by wire_diff")
				require.Zero(t, figures.sum("otelcol_extension_wire_diff_unclaimed_pushes"), "and reach diff")
			}
			compares()
			suffers(t, w)
			compares()
		})
	}
}
