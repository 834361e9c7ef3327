// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFalseValuesStayOffMetrics: of a push to the shipped gateway /metrics has what can be
// true, and the gateway says once what it dropped.
func TestFalseValuesStayOffMetrics(t *testing.T) {
	t.Parallel()
	ports := newGatewayPorts(t)
	c := start(t, options{configs: []string{"configs/gateway.yaml", ports.overlay(t)}})
	point := func(gpu, value, more string) string {
		return fmt.Sprintf(`{"asDouble":%s,"timeUnixNano":"%d","attributes":[{"key":"hw.id","value":{"stringValue":%q}},{"key":"hw.type","value":{"stringValue":"gpu"}}%s]}`,
			value, time.Now().UnixNano(), gpu, more)
	}
	push := fmt.Sprintf(`{"resourceMetrics":[{"resource":{"attributes":[{"key":"host.name","value":{"stringValue":"n4"}}]},"scopeMetrics":[{"metrics":[
		{"name":"hw.power","unit":"W","gauge":{"dataPoints":[%s,%s]}},
		{"name":"hw.errors","sum":{"aggregationTemporality":2,"isMonotonic":true,"dataPoints":[%s]}}]}]}]}`,
		point("GPU-4", "3.69e12", ""), point("GPU-5", "350", ""), point("GPU-4", "2147483632", `,{"key":"error.type","value":{"stringValue":"uncorrected"}}`))
	for range 2 {
		require.Equal(t, http.StatusOK, post(t, "http://"+ports.http+"/v1/metrics", jsonType, []byte(push)).status)
	}
	s := scrape(t, ports.prom)
	assert.True(t, s.is(350, "hw_power_watts", labels{"hw_id": "GPU-5"}))
	assert.Len(t, s["hw_power_watts"], 1)
	assert.Empty(t, s["hw_errors_total"])
	for _, metric := range []string{"hw.power", "hw.errors"} {
		assert.Equal(t, 1, c.log.Count("reading refused: metric "+metric+" is "), metric)
	}
}

// TestReplayOfNvidiaSMI replays a recording with the shipped overlay.
func TestReplayOfNvidiaSMI(t *testing.T) {
	t.Parallel()
	recording, err := filepath.Abs(root + "/receiver/csvreplayreceiver/testdata/nvidia-smi/driver-580.csv")
	require.NoError(t, err)
	_, d := startDemo(t, "configs/replay/nvidia-smi.yaml", fmt.Sprintf("receivers:\n  csv_replay/nvidia-smi: {path: %q}\n", recording))
	eventually(t, "the recording's power is there", func() bool {
		return scrape(t, d.prom).is(708.32, "hw_power_watts", labels{"host_name": "replay"})
	})
}
