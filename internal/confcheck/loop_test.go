// SPDX-License-Identifier: Apache-2.0

package confcheck

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

func TestLoops(t *testing.T) {
	const receiver = "receivers: {otlp: {protocols: {grpc: {endpoint: \"127.0.0.1:4317\"}, http: }}}\n"
	const one = "service: {pipelines: {metrics: {receivers: [otlp], exporters: [otlp_grpc]}}}"
	for name, tt := range map[string]struct {
		conf string
		loop bool
	}{
		"its own port":           {receiver + "exporters: {otlp_grpc: {endpoint: \"127.0.0.1:4317\"}}\n" + one, true},
		"by another name":        {receiver + "exporters: {otlp_grpc: {endpoint: \"localhost:4317\"}}\n" + one, true},
		"by a scheme":            {receiver + "exporters: {otlp_grpc: {endpoint: \"dns:///localhost:4317\"}}\n" + one, true},
		"the default's port":     {receiver + "exporters: {otlp_grpc: {endpoint: \"http://localhost:4318/v1\"}}\n" + one, true},
		"all addresses":          {"receivers: {otlp: {protocols: {grpc: {endpoint: \"0.0.0.0:4317\"}}}}\nexporters: {otlp_grpc: {endpoint: \"[::1]:4317\"}}\n" + one, true},
		"another port":           {receiver + "exporters: {otlp_grpc: {endpoint: \"127.0.0.1:5317\"}}\n" + one, false},
		"another host":           {receiver + "exporters: {otlp_grpc: {endpoint: \"gateway:4317\"}}\n" + one, false},
		"a protocol that is off": {"receivers: {otlp: {protocols: {grpc: }}}\nexporters: {otlp_http: {endpoint: \"http://localhost:4318\"}}\nservice: {pipelines: {metrics: {receivers: [otlp], exporters: [otlp_http]}}}", false},
		"not used":               {receiver + "exporters: {otlp_grpc: {endpoint: \"127.0.0.1:4317\"}, debug: }\nservice: {pipelines: {metrics: {receivers: [otlp], exporters: [debug]}}}", false},
		"another signal":         {receiver + "exporters: {otlp_grpc: {endpoint: \"127.0.0.1:4317\"}, debug: }\nservice: {pipelines: {metrics: {receivers: [x], exporters: [otlp_grpc]}, logs: {receivers: [otlp], exporters: [debug]}}}", false},
		"one way":                {receiver + "exporters: {otlp_grpc: {endpoint: \"127.0.0.1:4317\"}, debug: }\nservice: {pipelines: {metrics: {receivers: [x], exporters: [otlp_grpc]}, metrics/2: {receivers: [otlp], exporters: [debug]}}}", false},
		"through a connector": {receiver + "exporters: {otlp_grpc: {endpoint: \"127.0.0.1:4317\"}}\n" +
			"service: {pipelines: {metrics: {receivers: [otlp], exporters: [forward]}, metrics/2: {receivers: [forward], exporters: [otlp_grpc]}}}", true},
	} {
		t.Run(name, func(t *testing.T) {
			var conf map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(tt.conf), &conf))
			err := Check(conf, func(_, _ string) any { return nil })
			if !tt.loop {
				assert.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, "each push would come back")
			assert.ErrorContains(t, err, "`receivers::otlp`")
		})
	}
}
