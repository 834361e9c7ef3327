// SPDX-License-Identifier: Apache-2.0

package csvreplayreceiver

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/collector/confmap/confmaptest"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/metric/metricdata/metricdatatest"
	"golang.org/x/text/encoding/unicode"

	"github.com/gpu-collector/gpu-collector/receiver/csvreplayreceiver/internal/metadatatest"
)

// nvidiaSMI is the shipped mapping of nvidia-smi's columns.
func nvidiaSMI(t *testing.T) *Config {
	t.Helper()
	overlay, err := confmaptest.LoadConf("../../configs/replay/nvidia-smi.yaml")
	require.NoError(t, err)
	sub, err := overlay.Sub("receivers::csv_replay/nvidia-smi")
	require.NoError(t, err)
	cfg := createDefaultConfig().(*Config)
	require.NoError(t, sub.Unmarshal(cfg))
	cfg.Table.Resource["host.name"] = "n1"
	require.NoError(t, cfg.Validate())
	return cfg
}

// replayed are the points of all steps, each as text, and what was left out.
func replayed(t *testing.T, cfg *Config, in []byte) (points, left []string) {
	t.Helper()
	r, err := newReader(bytes.NewReader(in), cfg, func(line int64, column string, why reason, _ string) {
		left = append(left, fmt.Sprintf("%d %s %s", line, column, why))
	})
	require.NoError(t, err)
	for {
		s, err := r.step(t.Context())
		if err != nil {
			return points, left
		}
		md, _ := r.table.report(s.rows, "", "", time.Now(), time.Now())
		points = append(points, pointsOf(md)...)
	}
}

// The recordings of two drivers: one with units in its cells, one without.
func TestNvidiaSMI(t *testing.T) {
	for driver, want := range map[string][]string{
		"470": {
			"hw.gpu.info:map[gpu.index:0 hw.id:GPU-0a1b2c3d-0000-4000-8000-000000000000 hw.model:Tesla V100-SXM2-32GB]=1",
			"hw.gpu.utilization:general=0.99", "hw.gpu.memory.usage:=3.2499564544e+10", "hw.gpu.memory.limit:=3.408920576e+10",
			"hw.temperature:gpu=61", "hw.temperature:memory=58", "hw.power:gpu=287.45", "hw.gpu.power.limit:enforced=300",
			"hw.gpu.clock.frequency:sm=1.455e+09", "hw.gpu.clock.frequency:memory=8.77e+08", "hw.gpu.clock.frequency.limit:sm=1.53e+09",
			"hw.errors:uncorrected=0", "hw.gpu.pcie.link.generation:current=3", "hw.gpu.throttle.active:power_cap=1", "hw.gpu.throttle.active:hw_thermal=0",
		},
		"580": {
			"hw.gpu.info:map[gpu.index:0 hw.id:GPU-5d0c3a1e-0000-4000-8000-000000000000 hw.model:NVIDIA H100 80GB HBM3]=1",
			"hw.gpu.utilization:general=1", "hw.gpu.memory.usage:=4.71334912e+09", "hw.power:gpu=708.32", "hw.power:gpu=703.1",
			"hw.gpu.clock.frequency:sm=1.98e+09", "hw.errors:corrected=0", "hw.gpu.pcie.link.generation:current=5", "hw.gpu.pcie.link.width:max=16",
			"hw.gpu.throttle.active:power_cap=1", "hw.gpu.throttle.active:hw_slowdown=0",
		},
	} {
		t.Run(driver, func(t *testing.T) {
			in, err := os.ReadFile("testdata/nvidia-smi/driver-" + driver + ".csv")
			require.NoError(t, err)
			points, left := replayed(t, nvidiaSMI(t), in)
			assert.Empty(t, left, "[N/A] and its kin are empty cells")
			for _, w := range want {
				metric, value, _ := strings.Cut(w, ":")
				found := false
				for _, p := range points {
					attr, number, _ := strings.Cut(value, "=")
					found = found || strings.HasPrefix(p, "n1 "+metric+"map[") && strings.Contains(p, attr) && strings.HasSuffix(p, "="+number)
				}
				assert.True(t, found, "no %s in\n%s", w, strings.Join(points, "\n"))
			}
			for _, p := range points {
				if strings.Contains(p, "-000000000001") {
					assert.NotRegexp(t, `hw\.power|power\.limit|errors|hw_thermal|location:memory`, p, "what this GPU does not have")
				}
			}
			// Any shell's copy of it is the same.
			crlf := strings.ReplaceAll(string(in), "\n", "\r\n")
			for name, text := range map[string]string{
				"UTF-8": "\xef\xbb\xbf" + crlf, "LE": utf16(t, unicode.LittleEndian, unicode.UseBOM, crlf),
				"BE": utf16(t, unicode.BigEndian, unicode.UseBOM, crlf), "no mark": utf16(t, unicode.LittleEndian, unicode.IgnoreBOM, crlf),
				"BE, no mark": utf16(t, unicode.BigEndian, unicode.IgnoreBOM, crlf),
			} {
				again, _ := replayed(t, nvidiaSMI(t), []byte(text))
				assert.Equal(t, points, again, name)
			}
		})
	}
}

func utf16(t *testing.T, order unicode.Endianness, mark unicode.BOMPolicy, text string) string {
	t.Helper()
	out, err := unicode.UTF16(order, mark).NewEncoder().String(text)
	require.NoError(t, err)
	return out
}

func TestCells(t *testing.T) {
	for _, tt := range []struct {
		header, cell string
		metric       MetricConfig
		want         string // a value, a reason, or nothing
	}{
		{"w [W]", "69.62 W", MetricConfig{Name: "hw.power"}, "69.62"},
		{"w [W]", "69.62W", MetricConfig{Name: "hw.power"}, "69.62"},
		{"w [W]", "69.62", MetricConfig{Name: "hw.power"}, "69.62"},
		{"w [mW]", "69620", MetricConfig{Name: "hw.power"}, "69.62"},
		{"w [mW]", "0.06962 kW", MetricConfig{Name: "hw.power"}, "69.62"},
		{"w", "69620 mW", MetricConfig{Name: "hw.power"}, "69.62"},
		{"w [mW]", "69620 mW", MetricConfig{Name: "hw.power", Scale: 1e-3}, "69.62"},
		{"w", "69.62 W", MetricConfig{Name: "hw.power", Scale: 1e-3}, "wrong_unit"},
		{"w [W]", "1980 MHz", MetricConfig{Name: "hw.power"}, "wrong_unit"},
		{"w", "70 furlongs", MetricConfig{Name: "hw.power"}, "wrong_unit"},
		{"w", "99 %", MetricConfig{Name: "hw.gpu.utilization", Unit: "%"}, "99"},
		{"w", "99 %", MetricConfig{Name: "hw.gpu.utilization"}, "0.99"},
		{"w [%]", "101", MetricConfig{Name: "hw.gpu.utilization"}, "value_range"},
		{"w [MiB]", "30000 MiB", MetricConfig{Name: "hw.gpu.memory.usage", Unit: "MiBy"}, "30000"},
		{"w [MiB]", "1 GiB", MetricConfig{Name: "hw.gpu.memory.usage", Scale: 1 << 20}, "1.073741824e+09"},
		{"w", "30 GB", MetricConfig{Name: "hw.gpu.memory.usage"}, "wrong_unit"},
		{"w", "41 C", MetricConfig{Name: "hw.temperature"}, "41"},
		{"w", "106 F", MetricConfig{Name: "hw.temperature"}, "wrong_unit"},
		{"w [GHz]", "1.98", MetricConfig{Name: "hw.gpu.clock.frequency"}, "1.98e+09"},
		{"w [MiB]", "7 MiB", MetricConfig{Name: "other"}, "7"},
		{"w [MiB]", "1 GiB", MetricConfig{Name: "other"}, "1024"},
		{"w", "7 MiB", MetricConfig{Name: "other"}, "wrong_unit"},
		{"w", "x", MetricConfig{Name: "hw.power"}, "bad_number"},
		{"w", "NaN", MetricConfig{Name: "hw.power"}, "not_finite"},
		{"w", "Active", MetricConfig{Name: "hw.gpu.throttle.active"}, "1"},
		{"w", "Not Active", MetricConfig{Name: "hw.gpu.throttle.active"}, "0"},
		{"w", "[GPU requires reset]", MetricConfig{Name: "hw.power"}, ""},
		{"w", "[Insufficient Permissions]", MetricConfig{Name: "hw.power"}, ""},
		{"w", "ERR!", MetricConfig{Name: "hw.power"}, ""},
		{"w", "-", MetricConfig{Name: "hw.power"}, ""},
		{"w", "n/a", MetricConfig{Name: "hw.power"}, ""},
		{"w", "<<<NULL>>>", MetricConfig{Name: "hw.power"}, ""},
		{"w [MiB]", "2147483632", MetricConfig{Name: "hw.gpu.memory.usage"}, ""},
		{"w", "140737488355328.0", MetricConfig{Name: "other"}, ""},
		{"w", "-1", MetricConfig{Name: "hw.errors"}, "value_range"},
	} {
		tt.metric.Column = "w"
		tt.metric.Attributes = map[string]string{"hw.id": "g", "hw.type": "gpu", "error.type": "corrected", "hw.sensor_location": "gpu", "reason": "power_cap"}
		cfg := &Config{Table: TableConfig{
			Time: TimeConfig{Column: "t", Unit: "s"}, Resource: map[string]string{"host.name": "a"},
			Metrics: []MetricConfig{tt.metric, {Column: "good", Name: "good"}},
		}}
		points, left := replayed(t, cfg, []byte("t, "+tt.header+", good\n1, "+tt.cell+", 5\n"))
		got := strings.Join(left, ";")
		assert.Equal(t, "a goodmap[]=5", points[len(points)-1], "%v: the row stays", tt)
		if len(points) == 2 {
			got = points[0][strings.LastIndex(points[0], "=")+1:]
		}
		assert.Equal(t, tt.want, strings.TrimPrefix(got, "2 "+tt.header+" "), "%s: %s of %v", tt.header, tt.cell, tt.metric)
	}
}

// A unit that is surely wrong, or that a scale contradicts, ends the start.
func TestUnitsOfTheHeader(t *testing.T) {
	for header, want := range map[string]string{
		"v [MHz]": `column "v [MHz]" is in MHz, which cannot be converted to W of metric hw.power`,
		"v [mW]":  `column "v [mW]" needs a ` + "`scale` of 0.001 by its unit, and has 2: leave `scale` out",
	} {
		cfg := onePoint()
		cfg.Table.Metrics[0] = MetricConfig{Column: "v", Name: "hw.power", Scale: 2}
		_, err := newReader(strings.NewReader("t,host,"+header+"\n"), cfg, nil)
		assert.EqualError(t, err, want)
	}
}

// Of the metrics those are left out whose columns a file lacks, or may not mean.
func TestColumnsThatAreNotThere(t *testing.T) {
	cfg := onePoint()
	cfg.Table.Metrics = []MetricConfig{
		{Column: "gone|v", Name: "a"},
		{Column: "gone", Name: "b"},
		{Column: "v", Name: "c", When: map[string]string{"kind": "x"}},
		{Column: "v", Name: "d", Attributes: map[string]string{"id": "{uuid}"}},
		{Column: "v", Name: "e", Attributes: map[string]string{"id": "{uuid|}"}},
		{Column: "w", Name: "f"},
	}
	r, err := newReader(strings.NewReader("t,host,v,w [W],w [mW]\n"), cfg, nil)
	require.NoError(t, err)
	require.Len(t, r.table.measures, 2)
	assert.Equal(t, []string{"v"}, r.table.used)
	assert.Equal(t, []string{"gone", "kind", "uuid", "w"}, r.table.lacking)
	_, err = newReader(strings.NewReader("t,host,x\n"), cfg, nil)
	assert.ErrorContains(t, err, `no column "gone|v"; the file has: t, host, x`)
}

// DCGM's and NVML's blanks cost their cells and nothing else: testdata/blanks.csv.
func TestBlanks(t *testing.T) {
	cfg := loadConfig(t, "blanks")
	in, err := os.ReadFile(cfg.Path)
	require.NoError(t, err)
	points, left := replayed(t, cfg, in)
	assert.Empty(t, left)
	assert.Len(t, points, 11*8-10)
	for _, p := range points {
		assert.NotRegexp(t, `=(4\.29|2\.14|9\.22|2\.25)`, p)
	}
}

func TestCellsAreCountedAndNamedOncePerColumn(t *testing.T) {
	r := run{cfg: tableConfig(t, "t,host,v,n\n0,a,1,x\n1,a,2,y\n2,a,3,-1\n3,a,4,5\n"), lasts: time.Minute}
	r.do(t)
	require.Len(t, r.samples, 4)
	cells := func(name string, n int64) metricdata.DataPoint[int64] {
		return metricdata.DataPoint[int64]{Value: n, Attributes: attribute.NewSet(attribute.String("reason", name))}
	}
	metadatatest.AssertEqualReceiverCsvReplaySkippedCells(t, r.metrics,
		[]metricdata.DataPoint[int64]{cells("bad_number", 2), cells("value_range", 1)}, metricdatatest.IgnoreTimestamp())
	var details []any
	for _, e := range r.logs.FilterMessageSnippet("cell skipped").All() {
		details = append(details, e.ContextMap()["line"], e.ContextMap()["detail"])
	}
	assert.Equal(t, []any{int64(2), `column "n" is "x"`, int64(4), `column "n" is "-1"`}, details)
	begins := r.logs.FilterMessage("replay begins").All()
	require.Len(t, begins, 1)
	assert.Equal(t, []any{"v", "n"}, begins[0].ContextMap()["columns"])
}
