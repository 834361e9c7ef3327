// SPDX-License-Identifier: Apache-2.0

// Package chart tests the Helm chart with helm, kubeconform, promtool and the
// real binaries. `make test-chart` finds or builds them. Tests of the single values
// are beside the chart, in helm/gpu-collector/tests.
package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/test/process"
)

const directory = process.Root + "/helm/gpu-collector"

// run returns what a tool wrote to both of its outputs.
func run(t *testing.T, input, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	require.NoError(t, err, "`make test-chart` has the tools on its PATH")
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(input)
	// Nothing of the user's own: no plugins, no repositories, no cluster.
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG=/nonexistent")
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// template returns what the chart makes of the values, as a user of namespace mon.
func template(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return run(t, "", "helm", append([]string{"template", "gpuc", directory, "--namespace", "mon"}, args...)...)
}

// manifest is what the tests read of an object.
type manifest struct {
	Kind     string
	Metadata struct {
		Name   string
		Labels map[string]string
	}
	Data map[string]string
	Spec yaml.Node
}

func manifests(t *testing.T, text string) []manifest {
	t.Helper()
	var all []manifest
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var m manifest
		err := d.Decode(&m)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		if m.Kind != "" {
			all = append(all, m)
		}
	}
}

// cases are the values with which chart-testing tries the chart as well.
func cases(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(directory + "/ci/*-values.yaml")
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(files), 8)
	return files
}

func TestLint(t *testing.T) {
	for _, file := range cases(t) {
		text, err := run(t, "", "helm", "lint", "--strict", directory, "--values", file)
		require.NoError(t, err, text)
	}
}

// TestObjectsAreValid: the API server would take every object of every case, and the
// example beside the chart, a pod with an init container that checks GPUs.
func TestObjectsAreValid(t *testing.T) {
	for _, file := range cases(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := template(t, "--values", file)
			require.NoError(t, err, text)
			text, err = kubeconform(t, text)
			require.NoError(t, err, text)
		})
	}
	pod, err := os.ReadFile(process.Root + "/packaging/kubernetes/gate.yaml")
	require.NoError(t, err)
	text, err := kubeconform(t, string(pod))
	require.NoError(t, err, text)
}

func kubeconform(t *testing.T, objects string) (string, error) {
	t.Helper()
	return run(t, objects, "kubeconform", "-strict", "-schema-location", "schemas/{{.ResourceKind}}{{.KindSuffix}}.json")
}

// TestSchemasAreStrict: what an API server refuses is refused, in Kubernetes'
// own objects and in those of others.
func TestSchemasAreStrict(t *testing.T) {
	objects, err := template(t, "--values", directory+"/ci/everything-values.yaml")
	require.NoError(t, err)
	for _, tt := range []struct{ name, old, new, want string }{
		{"a wrong key", "hostPID: true", "hostPid: true", "hostPid"},
		{"a wrong type", "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: soon", "terminationGracePeriodSeconds"},
		{"a wrong key of KEDA's", "pollingInterval: 15", "pollInterval: 15", "pollInterval"},
		{"a value that KEDA does not have", "behavior: currentReplicasIfHigher", "behavior: asBefore", "behavior"},
		{"a wrong key of the Prometheus operator's", "honorLabels: true", "honourLabels: true", "honourLabels"},
		{"a wrong key of cert-manager's", "renewBefore: 720h", "renewedBefore: 720h", "renewedBefore"},
		{"a wrong key of the Gateway API's", "backendRefs:", "backends:", "backends"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Contains(t, objects, tt.old)
			text, err := kubeconform(t, strings.Replace(objects, tt.old, tt.new, 1))
			require.Error(t, err)
			assert.Contains(t, text, tt.want)
		})
	}
}

// TestConfigsAreValid: the binaries take every configuration of every case.
func TestConfigsAreValid(t *testing.T) {
	for _, file := range cases(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := template(t, "--values", file)
			require.NoError(t, err, text)
			found := 0
			for _, m := range manifests(t, text) {
				config, ok := m.Data["config.yaml"]
				if m.Kind != "ConfigMap" || !ok {
					continue
				}
				found++
				t.Run(m.Metadata.Labels["app.kubernetes.io/component"], func(t *testing.T) {
					text, err := validate(t, m.Metadata.Labels["app.kubernetes.io/component"], config)
					require.NoError(t, err, text)
					for line := range strings.Lines(text) { // of a gateway, whose API is open to all pods
						assert.Contains(t, line, "`extensions::fleet_view::http::endpoint` is 0.0.0.0:8086 without `auth`")
					}
				})
			}
			assert.Positive(t, found)
		})
	}
}

// validate has the tier's binary check a configuration.
func validate(t *testing.T, tier, config string) (string, error) {
	t.Helper()
	binary := "gpu-collector"
	switch tier {
	case "agent":
		binary = "gpu-collector-agent"
	case "cluster":
		// Its image is the Collector project's. Our distribution does not have its
		// receiver and extension: both are replaced here, the receiver without its settings.
		config = regexp.MustCompile(`(?m)^(  k8s_cluster:).*\n(    .*\n)*`).ReplaceAllString(config, "$1\n")
		config = strings.NewReplacer("k8s_cluster", "nop", "health_check:", "healthcheckv2:", "- health_check", "- healthcheckv2").Replace(config)
	}
	// A volume in the pod, which this machine need not have.
	config = strings.ReplaceAll(config, "/var/lib/gpu-collector", t.TempDir())
	cmd := exec.CommandContext(t.Context(), process.Binary(t, binary), append([]string{"validate"}, process.ConfigArgs(t, config)...)...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "GPU_COLLECTOR_LISTEN=0.0.0.0", "K8S_NODE_NAME=node-1", "KAFKA_USERNAME=user", "KAFKA_PASSWORD=secret"}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

// TestRules: promtool takes the rules as the chart has them.
func TestRules(t *testing.T) {
	if testing.Short() {
		t.Skip("needs promtool: make proof")
	}
	text, err := template(t, "--values", directory+"/ci/everything-values.yaml", "--show-only", "templates/monitoring/prometheusrule.yaml")
	require.NoError(t, err, text)
	all := manifests(t, text)
	require.Len(t, all, 1)
	rules, err := yaml.Marshal(&all[0].Spec)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	require.NoError(t, os.WriteFile(file, rules, 0o600))
	text, err = run(t, "", "promtool", "check", "rules", file)
	require.NoError(t, err, text)
	assert.Contains(t, text, "rules found")
}

// TestVersion: the chart deploys the images of the version it comes with.
func TestVersion(t *testing.T) {
	var chart struct {
		AppVersion string `yaml:"appVersion"`
	}
	var builder struct{ Dist struct{ Version string } }
	for file, into := range map[string]any{directory + "/Chart.yaml": &chart, process.Root + "/builder-config.yaml": &builder} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, yaml.Unmarshal(text, into))
	}
	assert.Equal(t, builder.Dist.Version, chart.AppVersion)
}

// TestFilesAreCopies: the chart has the repository's configurations,
// dashboards and rules, as they are.
func TestFilesAreCopies(t *testing.T) {
	found := 0
	for folder, originals := range map[string][]string{
		"grafana": {"dashboards/grafana"}, "prometheus": {"dashboards/prometheus"}, "configs": {"configs", "configs/kubernetes", "configs/overlays"},
	} {
		files, err := filepath.Glob(directory + "/files/" + folder + "/*")
		require.NoError(t, err)
		for _, file := range files {
			found++
			have, err := os.ReadFile(file)
			require.NoError(t, err)
			assert.True(t, slices.ContainsFunc(originals, func(dir string) bool {
				want, err := os.ReadFile(filepath.Join(process.Root, dir, filepath.Base(file)))
				return err == nil && bytes.Equal(want, have)
			}), "%s is no copy of a file in %v: run make generate", file, originals)
		}
	}
	assert.GreaterOrEqual(t, found, 11)
}
