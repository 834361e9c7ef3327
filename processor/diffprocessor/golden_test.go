// SPDX-License-Identifier: Apache-2.0

package diffprocessor

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/open-telemetry/opentelemetry-collector-contrib/pkg/pdatatest/pmetrictest"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write testdata/*/output.yaml anew")

// TestGoldens takes testdata/<case>/input.yaml and then next.yaml through a
// processor; output.yaml is what leaves for the second, empty when nothing does.
func TestGoldens(t *testing.T) {
	cases, err := filepath.Glob(filepath.Join("testdata", "*", "input.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, cases)
	for _, input := range cases {
		dir := filepath.Dir(input)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			s := started(t, func(*Config) {})
			*s.clock() = time.Unix(1_700_000_010, 0)
			require.NoError(t, s.ConsumeMetrics(t.Context(), readMetrics(t, input)))
			s.took()
			require.NoError(t, s.ConsumeMetrics(t.Context(), readMetrics(t, filepath.Join(dir, "next.yaml"))))

			got := pmetric.NewMetrics()
			for _, md := range s.got {
				require.NotZero(t, md.ResourceMetrics().Len(), "the next consumer is not called for nothing")
				md.ResourceMetrics().MoveAndAppendTo(got.ResourceMetrics())
			}
			output := filepath.Join(dir, "output.yaml")
			if *update {
				writeMetrics(t, output, got)
			}
			require.NoError(t, pmetrictest.CompareMetrics(readMetrics(t, output), got))
		})
	}
}

func readMetrics(t *testing.T, path string) pmetric.Metrics {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	retrieved, err := confmap.NewRetrievedFromYAML(text)
	require.NoError(t, err)
	raw, err := retrieved.AsRaw()
	require.NoError(t, err)
	body, err := json.Marshal(raw)
	require.NoError(t, err)
	md, err := new(pmetric.JSONUnmarshaler).UnmarshalMetrics(body)
	require.NoError(t, err)
	return md
}

func writeMetrics(t *testing.T, path string, md pmetric.Metrics) {
	body, err := new(pmetric.JSONMarshaler).MarshalMetrics(md)
	require.NoError(t, err)
	var raw map[string]any
	require.NoError(t, json.Unmarshal(body, &raw))
	text, err := yaml.Marshal(raw)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}
