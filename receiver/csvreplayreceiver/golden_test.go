// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
)

var update = flag.Bool("update", false, "write the golden files anew")

func writeMetrics(t *testing.T, path string, md pmetric.Metrics) {
	t.Helper()
	raw, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(md)
	require.NoError(t, err)
	var text bytes.Buffer
	require.NoError(t, json.Indent(&text, raw, "", " "))
	text.WriteByte('\n')
	require.NoError(t, os.WriteFile(path, text.Bytes(), 0o600))
}

func readMetrics(t *testing.T, path string) pmetric.Metrics {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	md, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(raw)
	require.NoError(t, err)
	return md
}
