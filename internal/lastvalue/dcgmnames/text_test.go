// SPDX-License-Identifier: Apache-2.0

package dcgmnames

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/lastvalue"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/test/promparse"
)

// point is a point of a metric of the catalogue, or of a gauge of another name.
type point struct {
	metric string
	value  float64
	attrs  []string // keys and values in turn
}

// pointOf is a point of a GPU.
func pointOf(metric, id string, value float64, attrs ...string) point {
	return point{metric, value, append([]string{"hw.id", id}, attrs...)}
}

// fleet is a table at a time since its beginning.
type fleet struct {
	*lastvalue.Table
	now time.Duration
}

func newFleet() *fleet {
	return &fleet{Table: lastvalue.New(lastvalue.Settings{MaxNodes: 2000, MaxSeries: 1e6, TTL: time.Hour})}
}

// report has a node of cluster c report the points. An id distinguishes resources of a name.
func (f *fleet) report(name, id string, points ...point) {
	r := f.Begin(f.now)
	r.Open(lastvalue.KeyOf([]byte(name+id)), func() ([]lastvalue.Attr, bool) {
		return attrsOf("k8s.cluster.name", "c", "host.name", name, "host.id", id), true
	})
	for i, p := range points {
		point := lastvalue.Point{Key: lastvalue.Mix(uint64(i), 1), Value: math.Float64bits(p.value), Kind: lastvalue.KindDouble}
		m := lastvalue.Metric{Name: p.metric}
		if of := reading.ByName(p.metric); of != nil {
			if m.Unit = of.Unit; of.Kind != reading.Gauge {
				m.Type, m.Monotonic = lastvalue.TypeSum, of.Kind == reading.Counter
			}
		}
		if r.Observe(&point) == lastvalue.Unknown {
			r.Add(&point, &m, attrsOf(p.attrs...))
		}
	}
	at := uint64(1_800_000_000*time.Second + f.now)
	r.Close(lastvalue.Facts{Time: at, Heartbeat: at, Alive: true})
	r.Done()
	r.Accepted()
}

func attrsOf(pairs ...string) (attrs []lastvalue.Attr) {
	for i := 0; i+1 < len(pairs); i += 2 {
		attrs = append(attrs, lastvalue.Attr{Key: pairs[i], Text: pairs[i+1]})
	}
	return attrs
}

// names are the lines of dcgm-exporter's names.
func (f *fleet) names(t *testing.T, x lastvalue.Exposition) (lines []string, done lastvalue.Exposed) {
	var out bytes.Buffer
	x.Expiration = time.Hour
	done, err := x.Write(&out, f.Table, f.now)
	require.NoError(t, err)
	format := promparse.Text
	if x.OpenMetrics {
		format = promparse.OpenMetrics
		out.WriteString("# EOF\n")
	}
	_, err = promparse.Parse(out.Bytes(), format)
	require.NoError(t, err, "%s", out.Bytes())
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, Prefix) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines, done
}

// on is the exposition with the names.
var on = lastvalue.Exposition{More: Write, Reserved: []string{Prefix}}

func TestGPUsUnderDCGMsNames(t *testing.T) {
	f := newFleet()
	info := func(id, index string, more ...string) point {
		return pointOf("hw.gpu.info", id, 1, append([]string{"gpu.index", index, "hw.driver_version", "570"}, more...)...)
	}
	holder := func(id string, attrs ...string) point { return pointOf("hw.gpu.allocation", id, 1, attrs...) }
	pod := []string{"k8s.pod.name", "train-0", "k8s.namespace.name", "lab", "k8s.container.name", "main"}
	f.report("a", "",
		info("MIG-0", "0", "hw.parent", "GPU-0", "hw.model", "H100 MIG 1g.10gb", "gpu.mig.gpu_instance.id", "9"), // before its GPU
		info("GPU-0", "0", "hw.model", "H100", "gpu.pci.bus_id", "00:1B"), info("GPU-1", "1"), info("GPU-2", "2"),
		info("MIG-1", "0", "hw.parent", "GPU-0", "hw.model", "H100 MIG 1g.10gb"),
		holder("GPU-1", "gpu.job.id", "42"), holder("GPU-2", "gpu.job.id", "42"), holder("GPU-2", "gpu.job.id", "43"), holder("GPU-2", "gpu.job.id", "44"),
		holder("MIG-0", pod...), holder("MIG-0", "gpu.job.id", "7"),
		pointOf("hw.gpu.utilization", "GPU-0", 0.29, "hw.gpu.task", "general"), pointOf("hw.gpu.utilization", "GPU-0", 0.5, "hw.gpu.task", "encoder"),
		pointOf("hw.gpu.utilization", "GPU-9", 0.5, "hw.gpu.task", "general"), // of no known kind
		pointOf("hw.gpu.memory.limit", "GPU-1", 80<<30), pointOf("hw.gpu.memory.usage", "GPU-1", 60<<30), pointOf("hw.gpu.memory.reserved", "GPU-1", 512<<20),
		pointOf("hw.gpu.memory.usage", "GPU-0", 11<<20), // its slices report it
		pointOf("hw.gpu.memory.usage", "MIG-0", 5<<20), pointOf("hw.gpu.memory.usage", "MIG-1", 6<<20),
		pointOf("hw.gpu.io.rate", "GPU-2", 3e6, "gpu.link", "nvlink", "network.io.direction", "transmit"),
		pointOf("hw.gpu.io.rate", "GPU-2", 4e6, "gpu.link", "nvlink", "network.io.direction", "receive"),
		pointOf("hw.energy", "GPU-2", 2), point{"DCGM_FI_DEV_GPU_UTIL", 1, []string{"a", "b"}},
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
	lines, _ := f.names(t, on)
	assert.Equal(t, want, lines)
	open := on
	open.OpenMetrics = true
	lines, _ = f.names(t, open)
	assert.ElementsMatch(t, want, lines)
	lines, _ = f.names(t, lastvalue.Exposition{Attributes: []string{"host.name"}})
	assert.Equal(t, []string{`DCGM_FI_DEV_GPU_UTIL{k8s_cluster_name="c",host_name="a",a="b"} 1`}, lines, "off")
	other, elsewhere := "d", on
	elsewhere.Cluster = &other
	lines, _ = f.names(t, elsewhere)
	assert.Empty(t, lines)
}

// TestAGPUIsThereOnceUnderDCGMsNames: an agent that was started anew may have another
// resource, and the node of before is remembered for a while.
func TestAGPUIsThereOnceUnderDCGMsNames(t *testing.T) {
	for _, order := range [][]string{{"old", "new"}, {"new", "old"}} { // by name it comes first or last
		f := newFleet()
		for i, id := range order {
			f.now = time.Duration(i) * time.Minute
			f.report("a", id, pointOf("hw.gpu.info", "GPU-0", 1, "gpu.index", "0"), pointOf("hw.power", "GPU-0", float64(100*(i+1))))
		}
		lines, _ := f.names(t, on)
		require.Len(t, lines, 1)
		assert.True(t, strings.HasSuffix(lines[0], "} 200"), lines)
	}
}

// TestLabelsOfGPUsAreBounded: a GPU whose labels have no room is not there under
// dcgm-exporter's names, and is counted.
func TestLabelsOfGPUsAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1000)
	f := newFleet()
	f.report("a", "",
		pointOf("hw.gpu.info", "GPU-0", 1, "gpu.index", "0"), pointOf("hw.power", "GPU-0", 100),
		pointOf("hw.gpu.info", "GPU-1"+long, 1, "gpu.index", long, "hw.driver_version", long), pointOf("hw.power", "GPU-1"+long, 100))
	lines, done := f.names(t, on)
	require.Len(t, lines, 1)
	assert.Equal(t, 1, done.Hidden["c"][lastvalue.HiddenLong])

	all := &text{Scrape: &lastvalue.Scrape{Exposed: lastvalue.Exposed{Hidden: map[string]*[6]int{}}}, room: 300}
	assert.True(t, all.takes("c", 200))
	assert.False(t, all.takes("c", 200), "all GPUs have a bound together")
	assert.Equal(t, 1, all.Hidden["c"][lastvalue.HiddenLong])
}

// BenchmarkNames has 1,000 nodes of eight GPUs each.
func BenchmarkNames(b *testing.B) {
	f := newFleet()
	for n := range 1000 {
		var points []point
		for _, metric := range []string{"hw.gpu.info", "hw.power", "hw.energy", "hw.gpu.memory.limit", "hw.gpu.memory.usage"} {
			for gpu := range 8 {
				points = append(points, pointOf(metric, fmt.Sprintf("GPU-5d5ba0d6-d33d-2b2c-524d-%08d%04d", n, gpu), 7,
					"gpu.index", strconv.Itoa(gpu), "hw.model", "NVIDIA H100 80GB HBM3", "gpu.pci.bus_id", "00000000:1B:00.0", "hw.driver_version", "570.124.06"))
			}
		}
		f.report(fmt.Sprint("gpu-node-", n), "", points...)
	}
	x := on
	x.Expiration = time.Hour
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Write(io.Discard, f.Table, 0); err != nil {
			b.Fatal(err)
		}
	}
}
