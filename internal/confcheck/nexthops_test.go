// SPDX-License-Identifier: Apache-2.0

package confcheck

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNextHops(t *testing.T) {
	conf := func(endpoint any) map[string]any {
		return map[string]any{
			"exporters": map[string]any{
				"otlp_grpc": map[string]any{"endpoint": endpoint}, "otlp_grpc/unused": map[string]any{"endpoint": "store:4317"},
				"debug": map[string]any{"endpoint": "other:1"}, "otlp_http": nil,
			},
			"service": map[string]any{"pipelines": map[string]any{
				"metrics": map[string]any{"exporters": []any{"otlp_grpc", "debug"}}, "logs": map[string]any{"exporters": []any{"otlp_grpc", "otlp_http"}}, "traces": nil,
			}},
		}
	}
	for endpoint, host := range map[string]string{
		"gateway:4317": "gateway", "dns:///gateway:4317": "gateway", "https://gateway.example:4318/x": "gateway.example",
		"10.0.0.1:4317": "", "[::1]:4317": "", "http://10.0.0.1:4318": "", "gateway": "", "unix:///run/x": "", "": "",
	} {
		var want []NextHop
		if host != "" {
			want = []NextHop{{Key: "exporters::otlp_grpc::endpoint", Host: host}}
		}
		assert.Equal(t, want, NextHops(conf(endpoint)), endpoint)
	}
	assert.Empty(t, NextHops(conf(7)))
	assert.Empty(t, NextHops(nil))
}
