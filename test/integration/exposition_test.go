// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/sim/fleetpush"
	"github.com/gpu-collector/gpu-collector/test/loopback"
	"github.com/gpu-collector/gpu-collector/test/process"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

// TestExpositionIsThatOfTheExporter runs the shipped gateway with the prometheus
// exporter beside it: both serve the same series, types and values, and promtool finds
// no mistake. Dashboards thus hold whichever is scraped.
func TestExpositionIsThatOfTheExporter(t *testing.T) {
	t.Parallel()
	other := loopback.FreeAddr(t)
	g := startGateway(t, fmt.Sprintf(`
exporters:
  prometheus: {endpoint: %q, resource_to_telemetry_conversion: {enabled: true}, without_scope_info: true}
service:
  pipelines:
    metrics: {exporters: [fleet_view, prometheus]}
`, other))
	fleet, err := fleetpush.New(fleetpush.Config{Nodes: 6, Clusters: 2, Jobs: 1})
	require.NoError(t, err)
	for step := range 3 {
		for n := range fleet.Nodes() {
			body, err := fleet.Next(n, step, time.Now(), nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, process.Post(t, g.Push(), process.Protobuf, body).Status)
		}
	}
	read := func(addr string) *promparse.Exposed {
		got, err := promparse.Parse(process.Fetch(t, "http://"+addr+"/metrics").Body, promparse.Text)
		require.NoError(t, err)
		maps.DeleteFunc(got.Series, func(series string, _ float64) bool { return strings.Contains(series, `__name__="gpu_exposition_`) })
		maps.DeleteFunc(got.Types, func(family, _ string) bool { return strings.HasPrefix(family, "gpu_exposition_") })
		return got
	}
	var mine, theirs *promparse.Exposed
	if !process.Within(process.Patience, func() bool { // the gateway's own ticks come between two scrapes
		mine, theirs = read(g.Prom), read(other)
		return len(mine.Series) > 6*400 && maps.Equal(mine.Series, theirs.Series)
	}) {
		assert.Equal(t, slices.Sorted(maps.Keys(theirs.Series)), slices.Sorted(maps.Keys(mine.Series)))
		assert.Equal(t, theirs.Series, mine.Series)
	}
	assert.Equal(t, theirs.Types, mine.Types)

	for _, accept := range []string{"text/plain", "application/openmetrics-text; version=1.0.0"} {
		resp, err := process.Send(t.Context(), nil, http.MethodGet, "http://"+g.Prom+"/metrics", nil, "Accept", accept)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.Status)
		if strings.HasPrefix(accept, "application") {
			_, err := promparse.Parse(resp.Body, promparse.OpenMetrics)
			require.NoError(t, err)
			continue
		}
		if testing.Short() {
			continue // promtool comes with the server
		}
		promtool, err := exec.LookPath("promtool")
		require.NoError(t, err, "this test needs promtool: apt-get install prometheus")
		check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
		check.Stdin = bytes.NewReader(resp.Body)
		out, err := check.CombinedOutput()
		require.NoError(t, err, "%s", out)
		assert.Empty(t, string(out))
	}
}
