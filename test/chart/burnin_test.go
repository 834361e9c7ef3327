// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSamplesOfABurnInRender: the actor's pod has the file that the repository ships.
func TestSamplesOfABurnInRender(t *testing.T) {
	for _, sample := range []string{"cpu", "dcgm"} {
		text, err := template(t, "--show-only", "templates/actions/configmap.yaml",
			"--set-json", `actions={"enabled": true, "rungs": {"taint": true, "burnIn": true}, "burnIn": {"sample": "`+sample+`"}}`)
		require.NoError(t, err, text)
		want, err := os.ReadFile(root + "/configs/burn-in/" + sample + ".yaml")
		require.NoError(t, err)
		all := manifests(t, text)
		require.Len(t, all, 1)
		assert.YAMLEq(t, string(want), all[0].Data["burn-in.yaml"])
		assert.Contains(t, all[0].Data["config.yaml"], "burn_in_job: /etc/gpu-collector/burn-in.yaml")
	}
	text, err := template(t, "--set-json", `actions={"enabled": true, "burnIn": {"sample": "gpu"}}`)
	require.Error(t, err, text)
	assert.Contains(t, text, "/actions/burnIn/sample", "it names the key")
}
