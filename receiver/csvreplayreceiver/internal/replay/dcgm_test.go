// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/gpuhealth"
)

const dcgmHeader = "timestamp,metric_name,gpu_id,device,uuid,modelName,Hostname,container,pod,namespace,value,labels_raw\n"

func dcgmRow(second int, host, gpu, name, value string) string {
	return fmt.Sprintf("%d,%s,0,nvidia0,%s,NVIDIA A100,%s,,,,%s,\"{a=\"\"b\"\",c=\"\"d\"\"}\"\n", second, name, gpu, host, value)
}

// dcgmSteps renders the points but hw.gpu.info as "host/gpu metric[attributes]=value".
func dcgmSteps(t *testing.T, in string, opts Options) (steps [][]string, stats *Stats) {
	t.Helper()
	r, err := NewDCGM(strings.NewReader(in), opts)
	require.NoError(t, err)
	for {
		step, err := r.Next()
		if errors.Is(err, io.EOF) {
			return steps, r.Stats()
		}
		require.NoError(t, err)
		var points []string
		for _, n := range step.Nodes {
			assertAdjacent(t, n.Points)
			for _, p := range n.Points {
				if p.Metric == metricInfo {
					continue
				}
				var attrs []string
				for _, a := range p.Attributes {
					switch {
					case a.Key == "hw.type":
					case a.Text == "":
						attrs = append(attrs, strconv.FormatInt(a.Number, 10))
					default:
						attrs = append(attrs, a.Text)
					}
				}
				points = append(points, fmt.Sprintf("%s/%s %s%v=%v", n.Attributes[0].Text, p.Identity[0].Text, p.Metric.Name, attrs, p.Value))
			}
		}
		steps = append(steps, points)
	}
}

func assertAdjacent(t *testing.T, points []Point) {
	t.Helper()
	seen := map[string]bool{}
	var last *Metric
	for _, p := range points {
		if p.Metric == last {
			continue
		}
		assert.False(t, seen[p.Metric.Name], "points of %s are apart", p.Metric.Name)
		seen[p.Metric.Name], last = true, p.Metric
	}
}

func TestDCGMUnits(t *testing.T) {
	for _, tt := range []struct{ field, raw, want string }{
		{"DCGM_FI_DEV_GPU_TEMP", "41", "hw.temperature[gpu]=41"},
		{"DCGM_FI_DEV_MEMORY_TEMP", "39.5", "hw.temperature[memory]=39.5"},
		{"DCGM_FI_DEV_POWER_USAGE", "312.25", "hw.power[]=312.25"},
		{"DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "700", "hw.gpu.power.limit[enforced]=700"},
		{"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "5000", "hw.energy[]=5"},
		{"DCGM_FI_DEV_GPU_UTIL", "50", "hw.gpu.utilization[general]=0.5"},
		{"DCGM_FI_DEV_ENC_UTIL", "25", "hw.gpu.utilization[encoder]=0.25"},
		{"DCGM_FI_DEV_DEC_UTIL ", "75", "hw.gpu.utilization[decoder]=0.75"},
		{"DCGM_FI_DEV_SM_CLOCK", "1980", "hw.gpu.clock.frequency[sm]=1.98e+09"},
		{"DCGM_FI_DEV_MEM_CLOCK", "2619", "hw.gpu.clock.frequency[memory]=2.619e+09"},
		{"DCGM_FI_DEV_FB_USED", "1024", "hw.gpu.memory.usage[]=1.073741824e+09"},
		{"DCGM_FI_DEV_FB_TOTAL", "2", "hw.gpu.memory.limit[]=2.097152e+06"},
		{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "3", "hw.errors[corrected volatile all]=3"},
		{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "1", "hw.errors[uncorrected volatile all]=1"},
		{"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "9", "hw.errors[corrected aggregate all]=9"},
		{"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "2", "hw.errors[uncorrected aggregate all]=2"},
		{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "7", "hw.gpu.pcie.replays[replay]=7"},
		{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", "0.5", "hw.gpu.activity[graphics_engine]=0.5"},
		{"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "0.25", "hw.gpu.activity[tensor]=0.25"},
		{"DCGM_FI_PROF_SM_ACTIVE", "0.75", "hw.gpu.activity[sm]=0.75"},
		{"DCGM_FI_PROF_DRAM_ACTIVE", "0.125", "hw.gpu.activity[dram]=0.125"},
		{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "2", "hw.gpu.memory.remapped_rows[uncorrected]=2"},
		{"DCGM_FI_DEV_ROW_REMAP_FAILURE", "1", "hw.gpu.memory.remap.failed[]=1"},
	} {
		steps, _ := dcgmSteps(t, dcgmHeader+dcgmRow(1, "n", "GPU-1", tt.field, tt.raw), Options{})
		assert.Equal(t, [][]string{{"n/GPU-1 " + tt.want}}, steps, tt.field)
	}
}

func TestDCGMMemoryIsDerived(t *testing.T) {
	row := func(name, value string) string { return dcgmRow(1, "n", "g", "DCGM_FI_DEV_FB_"+name, value) }
	for _, tt := range []struct {
		name, rows string
		want       []string
	}{
		{"used and free", row("USED", "30") + row("FREE", "70"), []string{
			"n/g hw.gpu.memory.usage[]=3.145728e+07", "n/g hw.gpu.memory.limit[]=1.048576e+08", "n/g hw.gpu.memory.utilization[]=0.3",
		}},
		{"with reserved", row("USED", "30") + row("FREE", "65") + row("RESERVED", "25"), []string{
			"n/g hw.gpu.memory.usage[]=3.145728e+07", "n/g hw.gpu.memory.limit[]=1.2582912e+08", "n/g hw.gpu.memory.utilization[]=0.25",
		}},
		{"a total goes before the sum", row("USED", "30") + row("FREE", "1") + row("TOTAL", "60"), []string{
			"n/g hw.gpu.memory.usage[]=3.145728e+07", "n/g hw.gpu.memory.limit[]=6.291456e+07", "n/g hw.gpu.memory.utilization[]=0.5",
		}},
		{"free alone says nothing", row("FREE", "1"), nil},
		{"more used than there is", row("USED", "61") + row("TOTAL", "60"), []string{
			"n/g hw.gpu.memory.usage[]=6.3963136e+07", "n/g hw.gpu.memory.limit[]=6.291456e+07",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			steps, _ := dcgmSteps(t, dcgmHeader+tt.rows, Options{})
			assert.Equal(t, [][]string{tt.want}, steps)
		})
	}
}

func TestDCGMThrottleReasons(t *testing.T) {
	// 0x41: idle, which is no throttling, and hardware thermal slowdown.
	for _, name := range []string{"DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"} {
		steps, _ := dcgmSteps(t, dcgmHeader+dcgmRow(1, "n", "g", name, "65"), Options{})
		assert.Equal(t, [][]string{{
			"n/g hw.gpu.throttle.active[power_cap]=0",
			"n/g hw.gpu.throttle.active[hw_slowdown]=0",
			"n/g hw.gpu.throttle.active[sync_boost]=0",
			"n/g hw.gpu.throttle.active[sw_thermal]=0",
			"n/g hw.gpu.throttle.active[hw_thermal]=1",
			"n/g hw.gpu.throttle.active[power_brake]=0",
		}}, steps)
	}
}

func TestDCGMXIDChangesAreEvents(t *testing.T) {
	var in strings.Builder
	in.WriteString(dcgmHeader)
	for i, v := range []string{"31", "31", "79", "79", "0", "79", "43"} {
		in.WriteString(dcgmRow(i, "n", "g", "DCGM_FI_DEV_XID_ERRORS", v))
	}
	in.WriteString(dcgmRow(8, "n", "g", "DCGM_FI_DEV_GPU_TEMP", "40"))
	steps, _ := dcgmSteps(t, in.String(), Options{})
	assert.Equal(t, [][]string{
		nil, // 31 was there before the recording
		nil,
		{"n/g hw.gpu.xid.events[79 node]=1"},
		{"n/g hw.gpu.xid.events[79 node]=1"},
		{"n/g hw.gpu.xid.events[79 node]=1"},
		{"n/g hw.gpu.xid.events[79 node]=2"},
		{"n/g hw.gpu.xid.events[79 node]=2", "n/g hw.gpu.xid.events[43 informational]=1"},
		{"n/g hw.temperature[gpu]=40"}, // nothing read, nothing said
	}, steps)
}

// A recording names the class of a code as the rubric does.
func TestDCGMXIDClasses(t *testing.T) {
	rubric := gpuhealth.DefaultRubric()
	for code := range 200 {
		in := dcgmHeader + dcgmRow(0, "n", "g", "DCGM_FI_DEV_XID_ERRORS", "0") + dcgmRow(1, "n", "g", "DCGM_FI_DEV_XID_ERRORS", strconv.Itoa(code+1))
		steps, _ := dcgmSteps(t, in, Options{})
		assert.Equal(t, []string{fmt.Sprintf("n/g hw.gpu.xid.events[%d %s]=1", code+1, rubric.Xid(uint64(code+1)).Class)}, steps[1])
	}
}

func TestDCGMInfoIsOncePerGPUAndStep(t *testing.T) {
	in := dcgmHeader + dcgmRow(1, "n", "g1", "DCGM_FI_DEV_GPU_TEMP", "40") + dcgmRow(1, "n", "g1", "DCGM_FI_DEV_POWER_USAGE", "90") +
		dcgmRow(1, "n", "g2", "DCGM_FI_DEV_GPU_TEMP", "41")
	r, err := NewDCGM(strings.NewReader(in), Options{})
	require.NoError(t, err)
	step, err := r.Next()
	require.NoError(t, err)
	require.Len(t, step.Nodes, 1)
	var info []Point
	for _, p := range step.Nodes[0].Points {
		if p.Metric == metricInfo {
			info = append(info, p)
		}
	}
	require.Len(t, info, 2)
	assert.Equal(t, []Attribute{
		{Key: "hw.type", Text: "gpu"},
		{Key: "hw.vendor", Text: "NVIDIA"},
		{Key: "hw.model", Text: "NVIDIA A100"},
		{Key: "hw.name", Text: "nvidia0"},
		{Key: "gpu.index", Text: "0"},
	}, info[0].Attributes)
	assert.Equal(t, []Attribute{{Key: "hw.id", Text: "g2"}}, info[1].Identity)
}

func TestDCGMSkips(t *testing.T) {
	const temp = "DCGM_FI_DEV_GPU_TEMP"
	in := dcgmHeader +
		dcgmRow(1, "n", "g", temp, "40") +
		dcgmRow(1, "n", "g", "DCGM_FI_DEV_MEMORY_TEMP", "0") + // no sensor
		dcgmRow(1, "n", "g", "DCGM_FI_DEV_POWER_USAGE", "140737488355330") + // FP64 not supported
		dcgmRow(1, "n", "g", "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "9223372036854775794") + // INT64 not supported
		dcgmRow(1, "n", "g", temp, "255") +
		dcgmRow(1, "n", "g", temp, "") +
		dcgmRow(1, "n", "g", temp, "cold") +
		dcgmRow(1, "n", "g", temp, "nan") +
		dcgmRow(1, "", "g", temp, "40") +
		dcgmRow(1, "n", "", temp, "40") +
		dcgmRow(1, "n", "g", "DCGM_FI_NEW", "40") +
		dcgmRow(1, "n", "g", "DCGM_FI_NEW", "41") +
		dcgmRow(1, "n", "g2", temp, "40") +
		dcgmRow(1, "n", "g3", temp, "40")
	var named int
	steps, stats := dcgmSteps(t, in, Options{MaxGPUs: 2, OnSkip: func(int64, Reason, string) { named++ }})
	assert.Equal(t, [][]string{{"n/g hw.temperature[gpu]=40", "n/g2 hw.temperature[gpu]=40"}}, steps)
	got := map[Reason]int64{}
	for _, r := range Reasons() {
		if n := stats.Skipped[r]; n > 0 {
			got[r] = n
		}
	}
	assert.Equal(t, map[Reason]int64{
		Blank: 3, OutOfRange: 1, Empty: 1, BadNumber: 1, NotFinite: 1, NoNode: 1, NoGPU: 1, UnknownMetric: 2, TooManyGPUs: 1,
	}, got)
	assert.Equal(t, map[string]int64{"DCGM_FI_NEW": 2}, stats.Unknown)
	assert.Equal(t, 7, named, "unknown metrics and blanks are ordinary and not named by line")
	assert.EqualValues(t, 2, stats.Rows)
}

func TestUnknownNamesAreBounded(t *testing.T) {
	var in strings.Builder
	in.WriteString(dcgmHeader)
	for i := range 500 {
		in.WriteString(dcgmRow(1, "n", "g", fmt.Sprintf("X_%d", i), "1"))
	}
	_, stats := dcgmSteps(t, in.String(), Options{})
	assert.EqualValues(t, 500, stats.Skipped[UnknownMetric])
	assert.Len(t, stats.Unknown, maxUnknownNames)
}

func TestDCGMFieldTable(t *testing.T) {
	require.LessOrEqual(t, len(dcgmFields), 64, "dcgmGPU.have has a bit per field")
	assert.Len(t, dcgmIndex, len(dcgmFields)+1, "a name twice")
	for _, f := range dcgmFields {
		assert.Less(t, f.min, f.max, f.name)
		assert.NotZero(t, f.factor, f.name)
	}
}
