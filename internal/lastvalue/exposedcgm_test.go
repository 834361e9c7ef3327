// SPDX-License-Identifier: Apache-2.0

package lastvalue

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpusemconv"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

// say is a point of the catalogue's metric, of a GPU; attrs are keys and values in turn.
func say(metric, id string, value float64, attrs ...string) told {
	m := reading.ByName(metric)
	p := told{metric: Metric{Name: m.Name, Unit: m.Unit}, value: value, kind: KindDouble, attrs: []Attr{{Key: gpusemconv.AttrHWID, Text: id}}}
	if m.Kind != reading.Gauge {
		p.metric.Type, p.metric.Monotonic = TypeSum, m.Kind == reading.Counter
	}
	for i := 0; i+1 < len(attrs); i += 2 {
		p.attrs = append(p.attrs, Attr{Key: attrs[i], Text: attrs[i+1]})
	}
	return p
}

// dcgmOf are the lines of dcgm-exporter's names, without `Hostname` and what the test's
// GPUs have in common.
func dcgmOf(t *testing.T, x *Exposition, tb *Table, now time.Duration) []string {
	t.Helper()
	var out bytes.Buffer
	x.Expiration = time.Hour
	_, err := x.Write(&out, tb, now)
	require.NoError(t, err)
	format := promparse.Text
	if x.OpenMetrics {
		format = promparse.OpenMetrics
		out.WriteString("# EOF\n")
	}
	_, err = promparse.Parse(out.Bytes(), format)
	require.NoError(t, err, "%s", out.Bytes())
	var lines []string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "DCGM_") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestGPUsUnderDCGMsNames(t *testing.T) {
	tb := newTable(roomy)
	info := func(id, index string, more ...string) told {
		return say("hw.gpu.info", id, 1, append([]string{"gpu.index", index, "hw.driver_version", "570"}, more...)...)
	}
	holder := func(id string, attrs ...string) told { return say("hw.gpu.allocation", id, 1, attrs...) }
	pod := []string{"k8s.pod.name", "train-0", "k8s.namespace.name", "lab", "k8s.container.name", "main"}
	tell(tb, 0, host("c", "a"),
		info("GPU-0", "0", "hw.model", "H100", "gpu.pci.bus_id", "00:1B"), info("GPU-1", "1"), info("GPU-2", "2"),
		info("MIG-0", "0", "hw.parent", "GPU-0", "hw.model", "H100 MIG 1g.10gb", gpusemconv.AttrGPUInstance, "9"),
		info("MIG-1", "0", "hw.parent", "GPU-0", "hw.model", "H100 MIG 1g.10gb"),
		holder("GPU-1", "gpu.job.id", "42"), holder("GPU-2", "gpu.job.id", "42"), holder("GPU-2", "gpu.job.id", "43"), holder("GPU-2", "gpu.job.id", "44"),
		holder("MIG-0", pod...), holder("MIG-0", "gpu.job.id", "7"),
		say("hw.gpu.utilization", "GPU-0", 0.29, "hw.gpu.task", "general"), say("hw.gpu.utilization", "GPU-0", 0.5, "hw.gpu.task", "encoder"),
		say("hw.gpu.utilization", "GPU-9", 0.5, "hw.gpu.task", "general"), // nobody says what it is
		say("hw.gpu.memory.limit", "GPU-1", 80<<30), say("hw.gpu.memory.usage", "GPU-1", 60<<30), say("hw.gpu.memory.reserved", "GPU-1", 512<<20),
		say("hw.gpu.memory.usage", "GPU-0", 11<<20), // its slices say it
		say("hw.gpu.memory.usage", "MIG-0", 5<<20), say("hw.gpu.memory.usage", "MIG-1", 6<<20),
		say("hw.gpu.io.rate", "GPU-2", 3e6, "gpu.link", "nvlink", "network.io.direction", "transmit"),
		say("hw.gpu.io.rate", "GPU-2", 4e6, "gpu.link", "nvlink", "network.io.direction", "receive"),
		say("hw.energy", "GPU-2", 2), gauge("DCGM_FI_DEV_GPU_UTIL", 1, Attr{Key: "a", Text: "b"}),
	)
	const (
		node  = `Hostname="a",hostname="a",DCGM_FI_DRIVER_VERSION="570",k8s_cluster_name="c"`
		gpu0  = `{gpu="0",UUID="GPU-0",pci_bus_id="00:1B",device="nvidia0",modelName="H100",` + node + `} `
		gpu1  = `{gpu="1",UUID="GPU-1",device="nvidia1",` + node + `,hpc_job="42"} `
		gpu2  = `{gpu="2",UUID="GPU-2",device="nvidia2",` + node + `} ` // shared
		slice = `{gpu="0",UUID="GPU-0",pci_bus_id="00:1B",device="nvidia0",modelName="H100",GPU_I_PROFILE="1g.10gb",GPU_I_ID="9",` + node +
			`,pod="train-0",namespace="lab",container="main",hpc_job="7"} `
	)
	want := []string{
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION" + gpu2 + "2000",
		"DCGM_FI_DEV_GPU_UTIL" + gpu0 + "29", "DCGM_FI_DEV_ENC_UTIL" + gpu0 + "50",
		"DCGM_FI_DEV_FB_FREE" + gpu1 + "19968",
		"DCGM_FI_DEV_FB_USED" + gpu1 + "61440", "DCGM_FI_DEV_FB_USED" + slice + "5", "DCGM_FI_DEV_FB_RESERVED" + gpu1 + "512",
		"DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL" + gpu2 + "7",
		"DCGM_FI_PROF_NVLINK_TX_BYTES" + gpu2 + "3000000", "DCGM_FI_PROF_NVLINK_RX_BYTES" + gpu2 + "4000000", "DCGM_FI_DEV_FB_TOTAL" + gpu1 + "81920",
	}
	assert.Equal(t, want, dcgmOf(t, &Exposition{DCGM: true}, tb, time.Second))
	assert.ElementsMatch(t, want, dcgmOf(t, &Exposition{DCGM: true, OpenMetrics: true}, tb, time.Second))
	assert.Equal(t, []string{`DCGM_FI_DEV_GPU_UTIL{k8s_cluster_name="c",host_name="a",a="b"} 1`}, dcgmOf(t, &Exposition{}, tb, time.Second), "off")
	other := "d"
	assert.Empty(t, dcgmOf(t, &Exposition{DCGM: true, Cluster: &other}, tb, time.Second))
}

// TestAGPUIsThereOnceUnderDCGMsNames: an agent that was started anew may have another
// resource, and the node of before is remembered for a while.
func TestAGPUIsThereOnceUnderDCGMsNames(t *testing.T) {
	for _, order := range [][]string{{"old", "new"}, {"new", "old"}} { // by name it comes first or last
		tb := newTable(roomy)
		for i, id := range order {
			tell(tb, time.Duration(i)*time.Minute, host("c", "a", Attr{Key: "host.id", Text: id}),
				say("hw.gpu.info", "GPU-0", 1, "gpu.index", "0"), say("hw.power", "GPU-0", float64(100*(i+1))))
		}
		lines := dcgmOf(t, &Exposition{DCGM: true}, tb, 2*time.Minute)
		require.Len(t, lines, 1)
		assert.True(t, slices.ContainsFunc(lines, func(line string) bool { return strings.HasSuffix(line, "} 200") }), lines)
	}
}

// TestLabelsOfGPUsAreBounded: a GPU whose labels have no room is not there under
// dcgm-exporter's names, and is counted.
func TestLabelsOfGPUsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	tb := newTable(roomy)
	tell(tb, 0, host("c", "a"),
		say("hw.gpu.info", "GPU-0", 1, "gpu.index", "0"), say("hw.power", "GPU-0", 100),
		say("hw.gpu.info", "GPU-1"+long, 1, "gpu.index", long, "hw.driver_version", long), say("hw.power", "GPU-1"+long, 100))
	require.Len(t, dcgmOf(t, &Exposition{DCGM: true}, tb, 0), 1)
	_, done := written(t, forever(Exposition{DCGM: true}), tb, 0)
	assert.Equal(t, 1, done.Hidden["c"][HiddenLong])

	d := &dcgmText{scrape: &scrape{Exposed: Exposed{Hidden: map[string]*[hiddenReasons]int{}}}, room: 300}
	assert.True(t, d.takes(&shown{cluster: "c"}, 200))
	assert.False(t, d.takes(&shown{cluster: "c"}, 200), "all GPUs have a bound together")
	assert.Equal(t, 1, d.Hidden["c"][HiddenLong])
}
