// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// wireDiff has the shard compare pushes before they are decoded.
const wireDiff = "configs/overlays/wire-diff.yaml"

// frontDoors are the ways in which pushes come into a shard: as it is shipped,
// and what is shipped for large ones.
var frontDoors = []string{"plain", "wire_diff"}

// rootDoor is the second of them, with a root in place of the gateway: what is
// shipped for the largest fleets.
const rootDoor = "root"

// behind has a world with each of the front doors suffer.
func behind(t *testing.T, doors []string, suffers func(*testing.T, *world)) {
	t.Helper()
	for _, door := range doors {
		t.Run(door, func(t *testing.T) {
			t.Parallel()
			if door == "plain" {
				suffers(t, newWorld(t, setup{}))
				return
			}
			s := setup{shard: []string{wireDiff}}
			if door == rootDoor {
				s.gateway = []string{rootOverlay}
			}
			w := newWorld(t, s)
			compares := func() bool {
				return mustScrape(t, w.shard.telemetry).sum("otelcol_extension_wire_diff_received_points") > 0
			}
			require.True(t, compares(), "pushes come in by wire_diff")
			suffers(t, w)
			require.True(t, compares(), "pushes still come in by wire_diff")
		})
	}
}
