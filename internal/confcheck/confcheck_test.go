// SPDX-License-Identifier: Apache-2.0

package confcheck

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.yaml.in/yaml/v3"
)

type inner struct {
	Timeout time.Duration `mapstructure:"timeout"`
}

type settings struct {
	inner    `mapstructure:",squash"`
	Interval time.Duration                  `mapstructure:"interval"`
	Nested   *inner                         `mapstructure:"nested"`
	Maybe    configoptional.Optional[inner] `mapstructure:"maybe"`
	By       map[string]time.Duration       `mapstructure:"by"`
	Number   int                            `mapstructure:"number"`
}

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct{ conf, want string }{
		"well": {`
receivers: {x/1: {interval: 10s, timeout: 0, number: 10, endpoint: "0.0.0.0:1", nested: {timeout: 1s}, maybe: {timeout: 1m}, middlewares: [{id: admission}]}}
exporters: {otlp_grpc: {endpoint: "dns:///gw:4317"}, y: {endpoint: "http://host"}, z: {endpoint: "[::1]:4317"}, unix: {endpoint: /run/sock}}
extensions: {admission: }
service: {extensions: [admission]}`, ""},
		"seconds":      {`receivers: {x: {interval: 10}}`, "`receivers::x::interval` is 10, which has no unit: 10s?"},
		"a text":       {`receivers: {x: {interval: "10"}}`, "`receivers::x::interval` is \"10\", which has no unit: 10s?"},
		"squashed":     {`receivers: {x: {timeout: 5}}`, "`receivers::x::timeout` is 5, which has no unit: 5s?"},
		"nested":       {`receivers: {x: {nested: {timeout: 5}}}`, "`receivers::x::nested::timeout` is 5"},
		"optional":     {`receivers: {x: {maybe: {timeout: 5}}}`, "`receivers::x::maybe::timeout` is 5"},
		"a map":        {`receivers: {x: {by: {a: 5}}}`, "`receivers::x::by::a` is 5"},
		"no port":      {`exporters: {otlp_grpc: {endpoint: gateway}}`, "`exporters::otlp_grpc::endpoint` is \"gateway\", which has no port: gateway:4317?"},
		"no port HTTP": {`exporters: {otlp_http/a: {endpoint: gateway}}`, "http://gateway:4318?"},
		"misspelt":     {"receivers: {x: {middlewares: [{id: admision}]}}\nextensions: {admission: }", "`receivers::x::middlewares` names \"admision\", which is not among `extensions`: did you mean admission?"},
		"not started":  {"receivers: {x: {middlewares: [{id: admission}]}}\nextensions: {admission: , b: }\nservice: {extensions: [b]}", "which `service::extensions` does not list"},
		"listed wrong": {"extensions: {admission: }\nservice: {extensions: [admision]}", "`service::extensions` lists \"admision\", which is not among `extensions`: did you mean admission?"},
		"all of them":  {`receivers: {x: {interval: 10, timeout: 5}}`, "10s?\n`receivers::x::timeout`"},
		"garbage":      {`{receivers: 7, exporters: [a], service: {extensions: {a: b}}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var conf map[string]any
			require.NoError(t, yaml.Unmarshal([]byte(tt.conf), &conf))
			err := Check(conf, func(_, kind string) any {
				if kind == "x" {
					return &settings{}
				}
				return nil
			})
			if tt.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.want)
			}
		})
	}
}

func TestSuggest(t *testing.T) {
	keys := Keys(&settings{})
	assert.Equal(t, []string{"by", "interval", "maybe", "nested", "number", "timeout"}, keys)
	for text, want := range map[string]string{
		"'x.Config' has invalid keys: intervall":                                         ": did you mean interval?",
		"'x.Config' has invalid keys: nombre, timeot":                                    ": did you mean timeout?",
		`unknown type: "stragler" for id: "stragler/a" (valid values: [diff straggler])`: ": did you mean straggler?",
		`service::extensions: references extension "admision" which is not configured`:   ": did you mean admission?",
	} {
		assert.Contains(t, Suggest(text, keys, []string{"admission"}), want)
	}
	for _, text := range []string{"'x.Config' has invalid keys: qqqqqq", "another error", ""} {
		assert.Equal(t, text, Suggest(text, keys, nil))
	}
}

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}} {
		assert.Equal(t, tt.want, distance(tt.a, tt.b))
		assert.Equal(t, tt.want, distance(tt.b, tt.a))
	}
}
