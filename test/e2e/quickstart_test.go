// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/process"
)

// quickStart runs the first commands of the chart's README as they are, but for
// the namespace, and for images that are not those of a release.
func (d *deployment) quickStart(t *testing.T) {
	const own = namespace + "-quick"
	readme, err := os.ReadFile(chart + "/README.md")
	require.NoError(t, err)
	_, block, _ := strings.Cut(string(readme), "\n```\n")
	block, _, _ = strings.Cut(block, "\n```")
	var lines [][]string
	for line := range strings.Lines(block) {
		line, _, _ = strings.Cut(line, " #")
		line = strings.ReplaceAll(line, "--namespace gpu-collector", "--namespace "+own)
		lines = append(lines, strings.Fields(strings.ReplaceAll(line, "helm/gpu-collector", chart)))
	}
	require.Len(t, lines, 3, "install, test and port-forward:\n%s", block)
	install, check, forward := lines[0], lines[1], lines[2]
	require.Equal(t, []string{"helm", "install", "gpu-collector"}, install[:3])
	require.Equal(t, []string{"helm", "test", "gpu-collector"}, check[:3])
	require.Equal(t, []string{"kubectl", "--namespace", own, "port-forward", "service/gpu-collector-gateway", "8086"}, forward)

	t.Cleanup(func() {
		_, err := command("", "helm", "uninstall", "gpu-collector", "--namespace", own, "--ignore-not-found", "--wait")
		assert.NoError(t, err)
		kubectl(t, "delete", "namespace", own, "--ignore-not-found", "--timeout=2m")
	})
	out, err := command("", install[0], append(install[1:], "--timeout", "4m",
		"--set", "image.repository="+repository(image)+",image.tag="+tag(image),
		"--set", "agent.image.repository="+repository(agentImage)+",agent.image.tag="+tag(agentImage))...)
	require.NoError(t, err)
	assert.Contains(t, out, "port-forward service/gpu-collector-gateway 8086", "the notes say what to do next")
	_, err = command("", check[0], check[1:]...)
	require.NoError(t, err)

	// 8086 may be in use here.
	addr, _ := launch(t, forwardLine, append(forward[1:len(forward)-1], ":8086", "--address", "127.0.0.1")...)
	for path, want := range map[string]string{"/": "<html", "/api/v1/health": `"started"`} {
		answer := process.Fetch(t, "http://"+addr+path)
		assert.Equal(t, http.StatusOK, answer.Status, path)
		assert.Contains(t, string(answer.Body), want, path)
	}
}
