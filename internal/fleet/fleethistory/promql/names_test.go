// SPDX-License-Identifier: Apache-2.0

package promql

import (
	"cmp"
	"os"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/gpu-collector/gpu-collector/internal/fleet/fleethistory"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/reading/gpusemconv"
)

// TestNames holds the names to what the nvml receiver sends.
func TestNames(t *testing.T) {
	text, err := os.ReadFile("../../../../receiver/nvmlreceiver/metadata.yaml")
	require.NoError(t, err)
	var metadata struct {
		Attributes map[string]struct {
			Name string `yaml:"name_override"`
		} `yaml:"attributes"`
		Metrics map[string]any `yaml:"metrics"`
	}
	require.NoError(t, yaml.Unmarshal(text, &metadata))
	require.NotEmpty(t, metadata.Metrics)
	assert.Len(t, translate().toProm, len(reading.All()), "all can be translated")
	for name := range metadata.Metrics {
		assert.Equal(t, name, translate().fromMetric(translate().metric(name)))
	}
	written := []string{gpusemconv.AttrUnjudged, gpusemconv.AttrJobRank, gpusemconv.AttrJobLocalRank, "system.memory.state"}
	for key, a := range metadata.Attributes {
		written = append(written, cmp.Or(a.Name, key))
	}
	for _, name := range written {
		if !noise(underscores(name)) && name != "hw.id" {
			assert.Equal(t, name, translate().fromLabel(underscores(name)))
		}
	}
	assert.Len(t, translate().fromProm, len(translate().toProm), "no two have one name")
	assert.Equal(t, "hw_temperature_celsius", translate().metric("hw.temperature"))
	assert.Equal(t, "hw_errors_total", translate().metric("hw.errors"))
	assert.Equal(t, "foo_bar", translate().metric("foo.bar"), "not one of ours")
	assert.Equal(t, "_", translate().metric(""))
	assert.Equal(t, "foo_bar_bytes", translate().fromMetric("foo_bar_bytes"))
}

// Nothing that comes with a question may be read as PromQL.
func TestSelectorQuotes(t *testing.T) {
	h := &History{cfg: Config{ClusterLabel: "cluster", HostLabel: "host", GPULabel: "gpu", DefaultCluster: "default"}}
	got := h.selector(&fleethistory.Query{Hosts: []string{`a"} or up{x="`, `b\`, "c.*"}, Clusters: []string{"default"}, Metrics: []string{`up{x="1"}`}, PeerGroup: `j"`})
	assert.Equal(t, `{__name__=~"up_x__1__",cluster=~"|default",host=~"a\"\\} or up\\{x=\"|b\\\\|c\\.\\*",gpu_peer_group=~"j\""}`, got)
}

func TestLabelsOfAScrapeAreNoAttributes(t *testing.T) {
	h := &History{cfg: Config{ClusterLabel: "k8s_cluster_name", HostLabel: "host_name", GPULabel: "hw_id", DefaultCluster: "default"}}
	assert.Equal(t, fleethistory.Sample{Cluster: "default", Node: "n", GPU: "g", Metric: "hw.temperature", Attributes: `{"hw.sensor_location":"gpu","zone":"a,b"}`},
		h.sample(model.Metric{
			"__name__": "hw_temperature_celsius", "host_name": "n", "hw_id": "g", "hw_sensor_location": "gpu", "zone": "a,b", "job": "x", "instance": "y",
			"host_id": "z", "otel_scope_name": "s", "service_name": "q", "gpu_job_id": "j",
		}))
}
