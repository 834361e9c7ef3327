// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A component that stands at the door, or passes on changes, compares no nodes: it
// must not link what does.
func TestTheDoorLinksNoComparison(t *testing.T) {
	const module = "github.com/gpu-collector/gpu-collector/"
	for _, door := range []string{
		"extension/admissionextension", "extension/wirediffextension", "extension/expositionextension", "processor/diffprocessor", "processor/clientidentityprocessor",
		"internal/wire", "internal/reading/metricreading",
	} {
		t.Run(door, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+door).Output()
			require.NoError(t, err)
			deps := strings.Fields(string(out))
			require.Contains(t, deps, module+door)
			for _, engine := range []string{"internal/straggler", "internal/threshold", "internal/nodescore", "internal/nodescore/nodesignal", "internal/reason"} {
				assert.NotContains(t, deps, module+engine)
			}
		})
	}
}

// A pure room knows neither pdata nor the Collector.
func TestReadingIsPure(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../reading", "../reading/identity").Output()
	require.NoError(t, err)
	assert.NotContains(t, string(out), "opentelemetry.io")
}

// Only the actor may write to a cluster: the others link no client that could.
func TestOnlyTheActorLinksWhatWrites(t *testing.T) {
	writes := []string{self + "/exporter/verdictactionsexporter", "k8s.io/client-go/kubernetes", "k8s.io/client-go/dynamic", "k8s.io/client-go/rest"}
	for binary, links := range map[string]bool{"gpu-collector": false, "gpu-collector-agent": false, "gpu-collector-actions": true} {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../cmd/"+binary).Output()
		require.NoError(t, err)
		deps := strings.Fields(string(out))
		for _, w := range writes {
			if links {
				assert.Contains(t, deps, w, binary)
			} else {
				assert.NotContains(t, deps, w, binary)
			}
		}
	}
}
