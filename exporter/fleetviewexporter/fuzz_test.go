// SPDX-License-Identifier: Apache-2.0

package fleetviewexporter

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/plog"
)

// FuzzEpisode reads episodes out of any log record, as OTLP JSON: what comes of
// it has bounds and can be said in JSON.
func FuzzEpisode(f *testing.F) {
	const record = `{"resourceLogs":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"a"}}]},"scopeLogs":[{"logRecords":[{"eventName":"gpu.straggler","body":{"stringValue":"x"},"attributes":[]}]}]}]}`
	f.Add([]byte(record))
	f.Add([]byte(`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"attributes":[{"key":"gpu.straggler.episode.evidence","value":{"arrayValue":{"values":[{"stringValue":"fact=x value=1e999 peers=NaN gpu"}]}}}]}]}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ld, err := (&plog.JSONUnmarshaler{}).UnmarshalLogs(data)
		if err != nil {
			return
		}
		for _, rl := range ld.ResourceLogs().All() {
			id := readSender(rl.Resource().Attributes(), "", "lab")
			for _, sl := range rl.ScopeLogs().All() {
				for _, lr := range sl.LogRecords().All() {
					ep := readEpisode(lr, &id, time.Unix(1_790_000_000, 0))
					require.LessOrEqual(t, len(ep.Text), maxSentenceBytes)
					require.LessOrEqual(t, len(ep.Nodes), maxEpisodeNodes)
					require.LessOrEqual(t, len(ep.Evidence), maxEvidence)
					_, err := json.Marshal([]any{ep.Confidence, ep.Gap, ep.Value, ep.Median, ep.Evidence})
					require.NoError(t, err)
				}
			}
		}
	})
}
