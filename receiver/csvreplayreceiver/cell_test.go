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
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
)

// nvidiaSMI is the shipped mapping of nvidia-smi's columns.
func nvidiaSMI(t *testing.T) *Config {
	t.Helper()
	cfg := loadConfigOf(t, "../../configs/replay/nvidia-smi.yaml", "receivers::csv_replay/nvidia-smi")
	cfg.Table.Resource["host.name"] = "n1"
	cfg.Path = "testdata/nvidia-smi/driver-580.csv"
	require.NoError(t, cfg.Validate())
	return cfg
}

// replayed are the points of all steps, each as text, and what was left out.
func replayed(t *testing.T, cfg *Config, in []byte) (points, left []string) {
	t.Helper()
	r, err := newReader(bytes.NewReader(in), cfg, "", time.Now(), func(line int, why reason, _ error) {
		left = append(left, fmt.Sprint(line, " ", why))
	})
	require.NoError(t, err)
	for {
		s, err := r.step(t.Context())
		if err != nil {
			return points, left
		}
		points = append(points, pointsOf(s.md)...)
	}
}

// The recordings of two drivers, one with units in its cells: as any shell copies them.
func TestNvidiaSMI(t *testing.T) {
	for driver, want := range map[string][]string{
		"470": {
			"hw.gpu.infomap.gpu.index:0 hw.id:GPU-0a1b2c3d-0000-4000-8000-000000000000 hw.model:Tesla V100-SXM2-32GB.=1",
			"hw.gpu.utilization.*:general.*=0.99", "hw.gpu.memory.usage.*=3.2499564544e.10", "hw.gpu.memory.limit.*=3.408920576e.10",
			"hw.temperature.*:gpu.=61", "hw.temperature.*:memory.=58", "hw.power.*:gpu.=287.45", "hw.gpu.power.limit.*:enforced.=300",
			"hw.gpu.clock.frequency.*:sm.*=1.455e.09", "hw.gpu.clock.frequency.*:memory.*=8.77e.08", "hw.gpu.clock.frequency.limit.*:sm.*=1.53e.09",
			"hw.errors.*:uncorrected.*=0", "hw.gpu.pcie.link.generation.*:current.=3", "hw.gpu.throttle.active.*:power_cap.=1", "hw.gpu.throttle.active.*:hw_thermal.=0",
		},
		"580": {
			"hw.gpu.infomap.gpu.index:0 hw.id:GPU-5d0c3a1e-0000-4000-8000-000000000000 hw.model:NVIDIA H100 80GB HBM3.=1",
			"hw.gpu.utilization.*:general.*=1", "hw.gpu.memory.usage.*=4.71334912e.09", "hw.power.*:gpu.=708.32", "hw.power.*:gpu.=703.1",
			"hw.gpu.clock.frequency.*:sm.*=1.98e.09", "hw.errors.*:corrected.*=0", "hw.gpu.pcie.link.generation.*:current.=5", "hw.gpu.pcie.link.width.*:max.=16",
			"hw.gpu.throttle.active.*:power_cap.=1", "hw.gpu.throttle.active.*:hw_slowdown.=0",
		},
	} {
		in, err := os.ReadFile("testdata/nvidia-smi/driver-" + driver + ".csv")
		require.NoError(t, err)
		points, left := replayed(t, nvidiaSMI(t), in)
		assert.Empty(t, left, "[N/A] and its kin are empty cells")
		text := strings.Join(points, "\n")
		for _, w := range want {
			assert.Regexp(t, "(?m)^n1 "+w+"$", text)
		}
		assert.NotRegexp(t, `(hw\.power|power\.limit|errors)map\[[^]]*-000000000001|-000000000001 (reason:hw_thermal|hw\.sensor_location:memory)`, text, "what this GPU does not have")
		for name, as := range map[string]encoding.Encoding{
			"UTF-8": unicode.UTF8BOM, "LE": unicode.UTF16(unicode.LittleEndian, unicode.UseBOM), "BE": unicode.UTF16(unicode.BigEndian, unicode.UseBOM),
		} {
			copied, err := as.NewEncoder().Bytes(bytes.ReplaceAll(in, []byte("\n"), []byte("\r\n")))
			require.NoError(t, err)
			again, _ := replayed(t, nvidiaSMI(t), copied)
			assert.Equal(t, points, again, name)
		}
	}
}

// A unit gives a cell's number its meaning, DCGM's and NVML's blanks are none, and a bad cell
// loses itself and not its row. A number is judged in the catalogue's unit.
func TestCells(t *testing.T) {
	power, other := MetricConfig{Name: "hw.power"}, MetricConfig{Name: "other"}
	for _, tt := range []struct {
		header, cells string // with a ; between them
		metric        MetricConfig
		want          string // a value, a reason, or nothing
	}{
		{"w [W]", "69.62 W;69.62", power, "69.62"},
		{"w [mW]", "69620;0.06962 kW", power, "69.62"},
		{"w", "69620;69.62 W", MetricConfig{Name: "hw.power", Scale: 1e-3}, "69.62"},
		{"w", "0.06962", MetricConfig{Name: "hw.power", Unit: "kW"}, "69.62"},
		{"w [W]", "1980 MHz;70 furlongs;x;NaN;-1", power, "bad_value"},
		{"w", "99 %", MetricConfig{Name: "hw.gpu.utilization"}, "0.99"},
		{"w [MiB]", "1 GiB", MetricConfig{Name: "hw.gpu.memory.usage", Scale: 1 << 20}, "1.073741824e+09"},
		{"w", "30 GB", MetricConfig{Name: "hw.gpu.memory.usage"}, "bad_value"},
		{"w", "41 C", MetricConfig{Name: "hw.temperature"}, "41"},
		{"w [MiB]", "1024 MiB;1 GiB", other, "1024"},
		{"w", "Active", MetricConfig{Name: "hw.gpu.throttle.active"}, "1"},
		{"w", "Not Active", MetricConfig{Name: "hw.gpu.throttle.active"}, "0"},
		{"w", "[GPU requires reset];ERR!;-;N/A;<<<NULL>>>;4294967295", power, ""},
		{"w", "140737488355328.0", other, ""},
		{"w", "9223372036854775794", MetricConfig{Name: "hw.energy", Scale: 1e-3}, ""},
	} {
		tt.metric.Column = "w"
		cfg := onePoint()
		cfg.Table.Metrics = []MetricConfig{tt.metric, {Column: "good", Name: "good"}}
		for cell := range strings.SplitSeq(tt.cells, ";") {
			points, left := replayed(t, cfg, []byte("t,host,"+tt.header+",good\n1,a,"+cell+",5\n"))
			got := strings.Join(left, ";")
			assert.Equal(t, "a goodmap[]=5", points[len(points)-1], "%v: the row stays", tt)
			if len(points) == 2 {
				got = points[0][strings.LastIndex(points[0], "=")+1:]
			}
			assert.Equal(t, tt.want, strings.TrimPrefix(got, "2 "), "%s: %s of %v", tt.header, cell, tt.metric)
		}
	}
}

// A metric is left out whose columns the file does not have.
func TestColumnsThatAreNotThere(t *testing.T) {
	cfg := onePoint()
	cfg.Table.Metrics = []MetricConfig{
		{Column: "gone|v", Name: "a"},
		{Column: "gone", Name: "b"},
		{Column: "v", Name: "c", When: map[string]string{"kind": "x"}},
		{Column: "v", Name: "d", Attributes: map[string]string{"id": "{uuid}"}},
		{Column: "v", Name: "e", Attributes: map[string]string{"id": "{uuid|}"}},
		{Column: "w", Name: "hw.power"},
	}
	table, err := newTable(&cfg.Table, []string{"t", "host", "v", "w [W]", "w [mW]"}, "", time.Now())
	require.NoError(t, err)
	require.Len(t, table.measures, 3)
	assert.Equal(t, 3, table.measures[2].sources[0].at, "the first of a name")
	assert.Equal(t, []string{"gone", "kind", "uuid"}, table.missing)
}
