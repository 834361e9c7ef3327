// SPDX-License-Identifier: Apache-2.0

package verdictactionsexporter

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// The gateway's overlay lets pass what the actor reads, and nothing else.
func TestTheOverlayPassesWhatIsRead(t *testing.T) {
	text, err := os.ReadFile("../../configs/overlays/actions-gateway.yaml")
	require.NoError(t, err)
	var overlay struct {
		Processors map[string]struct {
			Logs struct {
				LogRecord []string `yaml:"log_record"`
			}
			Metrics struct{ Metric []string }
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &overlay))
	filter := overlay.Processors["filter/actions"]
	require.Len(t, filter.Metrics.Metric, 1)
	require.Len(t, filter.Logs.LogRecord, 1)
	names := func(condition string) (list []string) {
		for _, m := range regexp.MustCompile(`!= "([^"]+)"`).FindAllStringSubmatch(condition, -1) {
			list = append(list, m[1])
		}
		return list
	}
	var read []string
	for i := range reading.All() {
		if m := &reading.All()[i]; m.For&reading.Actions != 0 {
			read = append(read, m.Name)
		}
	}
	assert.ElementsMatch(t, read, names(filter.Metrics.Metric[0]))
	assert.ElementsMatch(t, []string{gpusemconv.EventStraggler, gpusemconv.EventHealthChange, gpusemconv.EventXid}, names(filter.Logs.LogRecord[0]))
}
