// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestPoisonedScores has six of twenty nodes lie about themselves; each way to lie
// has a cluster of its own. How far they move a threshold is for the tests of rule.
func TestPoisonedScores(t *testing.T) {
	const nodes, bad, lowest, spread = 20, 6, 0.95, 0.03
	g := gateway(t)
	b := beside(t, alone(g), "poison")
	ways := map[string]func(tick, i int, threshold float64) float64{
		"honest":   func(_, i int, _ float64) float64 { return lowest + spread*float64(i)/bad },
		"zero":     func(int, int, float64) float64 { return 0 },
		"one":      func(int, int, float64) float64 { return 1 },
		"below":    func(_, _ int, threshold float64) float64 { return threshold - 0.001 },
		"nan":      func(int, int, float64) float64 { return math.NaN() },
		"turns":    func(tick, i int, _ float64) float64 { return float64((tick + i) % 2) },
		"together": func(int, int, float64) float64 { return lowest },
	}
	thresholds, found := map[string]float64{}, map[string]bool{}
	// The gateway's ticks of each cluster, counted by the answers. The fault begins once
	// the gateway has learned what is usual: among liars that take turns a node that was
	// slow from the first is usual.
	const warm = 10
	ticks, last := map[string]int{}, map[string]string{}
	process.Eventually(t, "each cluster's slow node is found", func() bool {
		for way, lie := range ways {
			tick := ticks[way]
			md := pmetric.NewMetrics()
			for i := range nodes - bad {
				value := lowest + spread*float64(i)/(nodes-bad-1)
				if i == 3 && tick >= warm {
					value = 0.6
				}
				process.Score(md, fmt.Sprintf("honest%d", i), value, "k8s.cluster.name", way)
			}
			for i := range bad {
				process.Score(md, fmt.Sprintf("bad%d", i), lie(tick, i, thresholds[way]), "k8s.cluster.name", way)
			}
			header, err := process.Export(g.as(t.Context(), way, "gpu-cluster", way, "gpu-group", `"default"`), g.conn, md)
			require.NoError(t, err)
			if h := header.Get("gpu-straggler-threshold"); len(h) == 1 {
				params := header.Get("gpu-straggler-params")
				require.NotEmpty(t, params)
				if params[0] != last[way] { // the time of its tick
					last[way] = params[0]
					ticks[way]++
				}
				thresholds[way], err = strconv.ParseFloat(h[0], 64)
				require.NoError(t, err)
			}
		}
		for way := range ways {
			for name, straggler := range g.nodes(way) {
				if straggler && name[0] == 'h' {
					require.Equal(t, "honest3", name, way)
					found[way] = true
				}
			}
		}
		return len(found) == len(ways)
	})
	require.Len(t, thresholds, len(ways))
	b.end()
}
