// SPDX-License-Identifier: Apache-2.0

package fleetpush

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/reading/metricreading"
	"github.com/gpu-collector/gpu-collector/sim/fleetsim"
)

// seriesOf are the series of a report of GPUs, without what is a GPU's own.
func seriesOf(md pmetric.Metrics) map[string]int64 {
	found := map[string]int64{}
	for _, m := range md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().All() {
		for _, p := range metricreading.Points(m).All() {
			labels := p.Attributes().AsRaw()
			for _, own := range []string{"hw.id", "hw.serial_number", "gpu.pci.bus_id", "gpu.index"} {
				delete(labels, own)
			}
			found[fmt.Sprint(m.Name(), labels)] = p.IntValue()
		}
	}
	return found
}

// A node has the series that the nvml receiver reports of such a node.
func TestSeriesAreTheReceivers(t *testing.T) {
	text, err := os.ReadFile("../../receiver/nvmlreceiver/testdata/h100.yaml")
	require.NoError(t, err)
	var tree any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	want, err := (&pmetric.JSONUnmarshaler{}).UnmarshalMetrics(text)
	require.NoError(t, err)

	f := newFleet(t, Config{Nodes: 2, GPUs: 1, Load: fleetsim.Idle, Raw: true, Faults: []Fault{
		{Target: fleetsim.Target{Node: 1}, Fault: fleetsim.Fault{Kind: fleetsim.LostGPU}},
	}})
	well, err := f.Next(0, 1, start, nil)
	require.NoError(t, err)
	names := func(series map[string]int64) (list []string) {
		for name := range series {
			list = append(list, name)
		}
		return list
	}
	assert.ElementsMatch(t, names(seriesOf(want)), names(seriesOf(decode(t, well))))

	lost, err := f.Next(1, 1, start, nil)
	require.NoError(t, err)
	for name, value := range map[string]int64{
		"hw.gpu.devicesmap[state:found]": 0, "hw.gpu.devicesmap[state:lost]": 1, "hw.gpu.upmap[reason:lost]": 0,
		"hw.gpu.health.reasonmap[action:reboot reason:xid_79]": 1,
	} {
		got, there := seriesOf(decode(t, lost))[name]
		assert.True(t, there, name)
		assert.Equal(t, value, got, name)
	}
}
