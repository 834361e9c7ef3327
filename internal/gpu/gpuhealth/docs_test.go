// SPDX-License-Identifier: Apache-2.0

package gpuhealth_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/otlptranslator"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
)

var update = flag.Bool("update", false, "write the tables of docs/metrics.md")

const (
	docsFile     = "../../../docs/metrics.md"
	metadataFile = "../../../receiver/nvmlreceiver/metadata.yaml"
)

type metadata struct {
	Attributes map[string]struct {
		Name string `yaml:"name_override"`
	} `yaml:"attributes"`
	Metrics map[string]struct {
		Attributes []string `yaml:"attributes"`
	} `yaml:"metrics"`
}

func readMetadata(t *testing.T) metadata {
	text, err := os.ReadFile(metadataFile)
	require.NoError(t, err)
	var m metadata
	require.NoError(t, yaml.Unmarshal(text, &m))
	require.NotEmpty(t, m.Metrics)
	return m
}

// prometheusName is what the Prometheus exporter with its defaults makes of a metric.
func prometheusName(t *testing.T, m *reading.Metric) string {
	kind := map[reading.Kind]otlptranslator.MetricType{
		reading.Gauge: otlptranslator.MetricTypeGauge, reading.Counter: otlptranslator.MetricTypeMonotonicCounter,
		reading.UpDownCounter: otlptranslator.MetricTypeNonMonotonicCounter,
	}[m.Kind]
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	built, err := namer.Build(otlptranslator.Metric{Name: m.Name, Unit: m.Unit, Type: kind})
	require.NoError(t, err)
	return built
}

// readBy says who reads a metric, or why nobody does.
func readBy(m *reading.Metric) string { return cmp.Or(m.Unread, m.For.String()) }

// span is a range in one word.
func span(m *reading.Metric) string { return strings.Replace(m.Range.String(), " to ", "…", 1) }

// otherTable lists what the product reads and the nvml receiver does not write.
func otherTable() string {
	var b strings.Builder
	b.WriteString("| Metric | Unit | Kind | Range | Read by |\n|---|---|---|---|---|\n")
	list := reading.All()
	for i := range list {
		m := &list[i]
		if strings.HasPrefix(m.Name, "gpu.app.") || strings.HasPrefix(m.Name, "system.") && m.Unread == "" || m.Subject() == reading.Network || m.For == reading.Ingero {
			fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s | %s |\n", m.Name, m.Unit, m.Kind, span(m), readBy(m))
		}
	}
	return b.String()
}

func (m *metadata) table(t *testing.T) string {
	var b strings.Builder
	b.WriteString("| Metric | In Prometheus | Range | Read by |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(m.Metrics)) {
		known := reading.ByName(name)
		require.NotNil(t, known, name)
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", name, prometheusName(t, known), span(known), readBy(known))
	}
	return b.String()
}

func clears(c gpuhealth.Clears) string {
	var after string
	if c.After > 0 {
		after = fmt.Sprintf("%.0f min", c.After.Minutes())
	}
	switch c.By {
	case gpuhealth.ClearsCondition:
		if after != "" {
			return after
		}
		return ""
	case gpuhealth.ClearsGeneration:
		return "a reset"
	case gpuhealth.ClearsService:
		return "never by itself"
	case gpuhealth.ClearsFirstAnswer:
		return "the first answer"
	case gpuhealth.ClearsQuiet:
		return after
	case gpuhealth.ClearsRemap:
		return "its remapping, else " + after
	case gpuhealth.ClearsAnswer:
		return "a load of the driver, or 2 answers after it was away"
	default:
		return string(c.By)
	}
}

func ruleTable() string {
	var b strings.Builder
	b.WriteString("| Cap | Reason | When | Action | Ends after | Source |\n|---|---|---|---|---|---|\n")
	for _, r := range gpuhealth.DefaultRubric().Rules() {
		limit, when := strconv.Itoa(r.Cap), r.When
		if r.Unknown {
			limit = string(gpuhealth.StateUnknown)
		}
		if r.Predicted {
			limit += ", `predicted_failure`"
		}
		if r.Threshold > 0 {
			when += " (`threshold: " + strconv.FormatFloat(r.Threshold, 'f', -1, 64) + "`)"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | `%s` | %s | %s |\n", limit, r.Name, when, r.Action, clears(r.Clears), r.Source)
	}
	return b.String()
}

func xidTable() string {
	type row struct {
		xid   gpuhealth.Xid
		codes []uint64
	}
	var rows []row
	for _, x := range gpuhealth.DefaultRubric().Xids() {
		code := x.Code
		x.Code = 0
		i := slices.IndexFunc(rows, func(r row) bool { return r.xid == x })
		if i < 0 {
			rows = append(rows, row{xid: x})
			i = len(rows) - 1
		}
		rows[i].codes = append(rows[i].codes, code)
	}
	unknown := gpuhealth.DefaultRubric().Xid(0)
	unknown.Code = 0
	rows = append(rows, row{xid: unknown})
	slices.SortStableFunc(rows, func(a, b row) int { return a.xid.Cap - b.xid.Cap })

	var b strings.Builder
	b.WriteString("| Cap | Class | Xids | NVIDIA's immediate action | Action | Ends after |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		limit, ends := strconv.Itoa(r.xid.Cap), clears(r.xid.Clears)
		if r.xid.Cap == gpuhealth.NoCap {
			limit, ends = "none", ""
		}
		if r.xid.Ends != 0 {
			ends = fmt.Sprintf("it ends the finding of %d", r.xid.Ends)
		}
		codes := "all others"
		if len(r.codes) > 0 {
			codes = ranges(r.codes)
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s | `%s` | %s |\n", limit, r.xid.Class, codes, r.xid.Immediate, r.xid.Action, ends)
	}
	return b.String() + "\nAs NVIDIA's catalogue had it on " + gpuhealth.CatalogueRead + ".\n"
}

func ranges(codes []uint64) string {
	var parts []string
	for i := 0; i < len(codes); {
		j := i
		for j+1 < len(codes) && codes[j+1] == codes[j]+1 {
			j++
		}
		if j > i {
			parts = append(parts, fmt.Sprintf("%d–%d", codes[i], codes[j]))
		} else {
			parts = append(parts, strconv.FormatUint(codes[i], 10))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// The tables of the documentation are what the code does. `go test ./internal/gpu/gpuhealth -run
// TestDocs -update` writes them.
func TestDocsTables(t *testing.T) {
	m := readMetadata(t)
	text, err := os.ReadFile(docsFile)
	require.NoError(t, err)
	docs := string(text)
	for name, table := range map[string]string{"metrics": m.table(t), "other metrics": otherTable(), "rubric": ruleTable(), "xids": xidTable()} {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		i, j := strings.Index(docs, begin), strings.Index(docs, end)
		require.True(t, i >= 0 && j > i, "markers of %s", name)
		if *update {
			docs = docs[:i+len(begin)] + table + docs[j:]
			continue
		}
		assert.Equal(t, table, docs[i+len(begin):j], "the table of %s is old: run go test ./internal/gpu/gpuhealth -run TestDocs -update", name)
	}
	if *update {
		require.NoError(t, os.WriteFile(docsFile, []byte(docs), 0o600))
	}
}
