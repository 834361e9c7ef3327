// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestWrongValuesAreNamed: a mistake fails with its path.
func TestWrongValuesAreNamed(t *testing.T) {
	for _, tt := range []struct{ name, set, want string }{
		{"a key that there is not", `agent.enable=false`, "at '/agent': additional properties 'enable' not allowed"},
		{"a key of the top", `gatway.enabled=false`, "at '': additional properties 'gatway' not allowed"},
		{"a key far down", `gateway.fleetView.persistence.class="fast"`, "at '/gateway/fleetView/persistence': additional properties 'class' not allowed"},
		{"a number for a text", `image.tag=1.5`, "at '/image/tag': got number, want string"},
		{"a text for a number", `shard.replicas="three"`, "at '/shard/replicas': got string, want integer"},
		{"a choice", `gateway.kind="DaemonSet"`, "at '/gateway/kind': value must be one of 'StatefulSet', 'Deployment'"},
		{"a duration", `pushInterval=10`, "at '/pushInterval'"},
		{"a quantity", `gateway.resources.limits.memory="2 GB"`, "at '/gateway/resources/limits/memory'"},
		{"a share", `shard.autoscaling.headroom=1.5`, "at '/shard/autoscaling/headroom': maximum: got 1.5, want 0.9"},
		{"a URL", `remoteWrite.endpoint="mimir"`, "at '/remoteWrite/endpoint'"},
		{"a broker", `kafka.brokers=["kafka"]`, "at '/kafka/brokers/0'"},
		{"an item of a list", `agent.extraEnv=[{"value": "1"}]`, "at '/agent/extraEnv/0': missing property 'name'"},
		{"a digest", `image.digest="sha256:1"`, "at '/image/digest'"},
		{"a name", `fullnameOverride="Fleet"`, "at '/fullnameOverride'"},
		{"a gateway", `gatewayEndpoint="gpu.example.com"`, "at '/gatewayEndpoint'"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := template(t, "--set-json", tt.set)
			require.Error(t, err)
			assert.Contains(t, text, tt.want)
		})
	}
}

type schema struct {
	Ref        string             `json:"$ref"`
	Defs       map[string]*schema `json:"$defs"`
	Properties map[string]*schema
	Required   []string
	Additional any `json:"additionalProperties"`
	Type       any
}

// TestSchemaIsComplete: the schema knows these values only, and closes each
// section. Kubernetes checks the sections of its own types.
func TestSchemaIsComplete(t *testing.T) {
	text, err := os.ReadFile(directory + "/values.schema.json")
	require.NoError(t, err)
	var top schema
	require.NoError(t, json.Unmarshal(text, &top))
	var walk func(path string, s *schema, values map[string]any, defined bool)
	walk = func(path string, s *schema, values map[string]any, defined bool) {
		if name, ok := strings.CutPrefix(s.Ref, "#/$defs/"); ok {
			s, defined = top.Defs[name], true
		}
		if s.Properties == nil {
			return
		}
		assert.Equal(t, false, s.Additional, "%s is open", path)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if !assert.Contains(t, s.Properties, key, path) {
				continue
			}
			if yes, ok := values[key].(bool); ok {
				assert.Contains(t, s.Required, key, "%s: %v is not what null would be", path, yes)
			}
			if section, ok := values[key].(map[string]any); ok {
				walk(path+"."+key, s.Properties[key], section, defined)
			}
		}
		// values.yaml need not have the keys of a definition.
		if !defined {
			for key := range s.Properties {
				if path+"."+key != ".global" {
					assert.Contains(t, values, key, "%s: in the schema, not in values.yaml", path)
				}
			}
		}
	}
	walk("", &top, defaults(t), false)
}

func defaults(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(directory + "/values.yaml")
	require.NoError(t, err)
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(text, &values))
	return values
}

// shared are the sections that all tiers have and whose template is one: a
// unit test of one tier is one of all.
var shared = []string{
	"config", "serviceAccount", "priorityClassName", "resources", "podSecurityContext", "securityContext", "probes", "terminationGracePeriodSeconds",
	"nodeSelector", "tolerations", "affinity", "topologySpreadConstraints", "podLabels", "podAnnotations", "extraEnv", "extraEnvFrom", "extraVolumes",
	"extraVolumeMounts", "image", "autoscaling", "podDisruptionBudget", "updateStrategy",
}

// whole are the sections that go to Kubernetes as they are.
var whole = []string{"resources", "probes", "securityContext", "podSecurityContext", "updateStrategy"}

// value returns the name of the value that a path belongs to, without its tier
// where all tiers share it.
func value(path []string) string {
	if len(path) > 1 && slices.Contains([]string{"agent", "shard", "gateway", "cluster"}, path[0]) && slices.Contains(shared, path[1]) {
		path = path[1:]
	}
	for i, key := range path {
		if slices.Contains(whole, key) {
			path = path[:i+1]
			break
		}
	}
	return strings.Join(path, ".")
}

// TestEverySwitchHasAUnitTest: each value is set by at least one of the chart's
// unit tests.
func TestEverySwitchHasAUnitTest(t *testing.T) {
	set := map[string]bool{}
	files, err := filepath.Glob(directory + "/tests/*_test.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var suite struct {
			Tests []struct{ Set map[string]any }
		}
		require.NoError(t, yaml.Unmarshal(text, &suite), file)
		for _, test := range suite.Tests {
			paths(nil, test.Set, func(path []string) { set[value(path)] = true })
		}
	}
	paths(nil, defaults(t), func(path []string) {
		// A unit test may set a part of what is an object by default, such as a label.
		for name := range set {
			if name == value(path) || strings.HasPrefix(name, value(path)+".") {
				return
			}
		}
		if len(path) > 1 && path[len(path)-2] == "labels" || slices.Contains(path, "nodeSelector") {
			return // keys of the user's own
		}
		assert.Fail(t, "no unit test sets "+strings.Join(path, "."))
	})
}

// paths calls with the path of each leaf. A key of helm-unittest's may be a path.
func paths(path []string, values map[string]any, call func([]string)) {
	for key, value := range values {
		here := append(slices.Clone(path), strings.Split(key, ".")...)
		if section, ok := value.(map[string]any); ok && len(section) > 0 {
			paths(here, section, call)
		} else {
			call(here)
		}
	}
}

// TestNullIsNamed: a section or list that is null is empty, or the error has its path; with
// all that the chart has switched on, so that each template reads what it reads.
func TestNullIsNamed(t *testing.T) {
	var walk func(path []string, values map[string]any)
	walk = func(path []string, values map[string]any) {
		for _, key := range slices.Sorted(maps.Keys(values)) {
			here := append(slices.Clone(path), strings.ReplaceAll(key, ".", `\.`))
			section, isSection := values[key].(map[string]any)
			walk(here, section)
			if _, isList := values[key].([]any); !isSection && !isList {
				continue
			}
			name := strings.Join(here, ".")
			text, err := template(t, "--values", directory+"/ci/everything-values.yaml", "--set", name+"=null")
			assert.NotContains(t, text, "<nil>", name)
			missing := "at '" + strings.TrimSuffix("/"+strings.Join(path, "/"), "/") + "': missing propert"
			if err != nil && !strings.Contains(text, missing) {
				assert.Contains(t, text, name+" is empty, must")
			}
		}
	}
	walk(nil, defaults(t))
}
