// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"math"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/promparse"
)

func TestMetricName(t *testing.T) {
	for _, tt := range []struct {
		name, unit string
		kind       Kind
		want       string
	}{
		{"hw.temperature", "Cel", KindGauge, "hw_temperature_celsius"},
		{"hw.gpu.utilization", "1", KindGauge, "hw_gpu_utilization_ratio"},
		{"hw.energy", "J", KindCounter, "hw_energy_joules_total"},
		{"hw.errors", "{error}", KindCounter, "hw_errors_total"},
		{"hw.links", "{link}", KindNonMonotonic, "hw_links"},
		{"8.gpus", "", KindGauge, "_8_gpus"},
		{"process.count", "{process}", KindGauge, "process_count_value"},
		{"pushes.sum", "", KindNonMonotonic, "pushes_sum_value"},
		{"le.bucket", "", KindGauge, "le_bucket_value"},
		{"process.count", "", KindCounter, "process_count_total"},
		{"", "", KindGauge, "metric_ef46db3751d8e999"},
		{"温度", "", KindGauge, "metric_4d7c54eb67ab20b1"},
	} {
		assert.Equal(t, tt.want, MetricName(tt.name, tt.unit, tt.kind), tt.name)
	}
}

func TestLabelName(t *testing.T) {
	for key, want := range map[string]string{
		"hw.id": "hw_id", "k8s.node.name": "k8s_node_name", "a..b": "a__b", "0": "key_0", "_a": "_a",
		"__name__": "key__name__", "__": "key_2d6f1fce734e650c", "": "key_ef46db3751d8e999",
	} {
		assert.Equal(t, want, LabelName(key), key)
	}
	assert.NotEqual(t, LabelName("温"), LabelName("度"), "two labels stay two, and so do their series")
}

func TestAppendFamily(t *testing.T) {
	for _, tt := range []struct {
		name              string
		counter           bool
		openMetrics, free bool
		want              string
	}{
		{"a", false, false, true, "# HELP a say \"\\\\\\n\"\n# TYPE a gauge\n"},
		{"a", false, true, true, "# HELP a say \\\"\\\\\\n\\\"\n# TYPE a gauge\n"},
		{"a_total", true, false, true, "# HELP a_total say \"\\\\\\n\"\n# TYPE a_total counter\n"},
		{"a_total", true, true, true, "# HELP a say \\\"\\\\\\n\\\"\n# TYPE a counter\n"},
		{"a_total", true, true, false, "# HELP a_total say \\\"\\\\\\n\\\"\n# TYPE a_total unknown\n"},
		{"total", true, true, true, "# HELP total say \\\"\\\\\\n\\\"\n# TYPE total unknown\n"},
	} {
		assert.Equal(t, tt.want, string(AppendFamily(nil, tt.name, "say \"\\\n\"", tt.counter, tt.openMetrics, tt.free)))
	}
}

func TestAppendFloat(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", math.Copysign(0, -1): "-0", 1: "1", -17: "-17", 0.1: "0.1", 1 << 53: "9.007199254740992e+15", 1<<53 - 1: "9007199254740991",
		math.Inf(1): "+Inf", math.Inf(-1): "-Inf", math.MaxFloat64: "1.7976931348623157e+308",
	} {
		assert.Equal(t, want, string(AppendFloat(nil, v)))
	}
	assert.Equal(t, "NaN", string(AppendFloat(nil, math.NaN())))
}

// FuzzText holds that no name and no value breaks the text, and that values come back.
func FuzzText(f *testing.F) {
	f.Add("hw.temperature", "Cel", "help", "hw.id", []byte("GPU-1"), 1.0)
	f.Add("", "", "", "", []byte(""), 0.0)
	f.Add("a\nb", "\"", "x\n# EOF", "le=\"", []byte("\xff\\\"\n\x00}"), -1.0)
	f.Add("__name__", "{}", "\\", "__name__", []byte("\x00"), 1e300)
	f.Fuzz(func(t *testing.T, metric, unit, help, key string, value []byte, v float64) {
		for _, kind := range []Kind{KindGauge, KindCounter, KindNonMonotonic} {
			for contentType, openMetrics := range map[string]bool{promparse.Text: false, promparse.OpenMetrics: true} {
				name := MetricName(metric, unit, kind)
				text := AppendFamily(nil, name, help, kind == KindCounter, openMetrics, true)
				text = append(append(text, name...), '{')
				text = AppendLabel(AppendLabel(text, LabelName(key), value), "last", `a"b\c`)
				text = append(AppendFloat(append(text, "} "...), v), '\n')
				text = append([]byte(strings.Replace(string(text), "{,", "{", 1)), "# EOF\n"...)
				got, err := promparse.Parse(text, contentType)
				require.NoError(t, err, "%q", text)
				want := labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, name, "last", `a"b\c`, LabelName(key), promparse.Readable(string(value)))).Labels()
				if LabelName(key) == "last" {
					return
				}
				require.Len(t, got.Series, 1)
				require.Contains(t, got.Series, want.String(), "%q", text)
			}
		}
	})
}
