// SPDX-License-Identifier: Apache-2.0

// Command metricdoc writes what follows from the catalogue of metrics, the rubric and the
// rules of reasons: the tables of docs/metrics.md and docs/reasons.md, and the nvml
// receiver's code that records readings. `make generate` runs it.
package main // import "github.com/gpu-collector/gpu-collector/tools/metricdoc"

import (
	"cmp"
	"fmt"
	"log"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/otlptranslator"
	"go.yaml.in/yaml/v3"

	"github.com/gpu-collector/gpu-collector/internal/gpu/gpuhealth"
	"github.com/gpu-collector/gpu-collector/internal/reading"
	"github.com/gpu-collector/gpu-collector/internal/verdict/reason"
	"github.com/gpu-collector/gpu-collector/tools/page"
)

const (
	receiver = "receiver/nvmlreceiver/"
	metadata = receiver + "metadata.yaml"
)

func main() {
	log.SetFlags(0)
	written, err := metricTable()
	if err == nil {
		err = replace("docs/metrics.md", map[string]string{"metrics": written, "other metrics": otherTable(), "rubric": ruleTable(), "xids": xidTable()})
	}
	if err == nil {
		err = replace("docs/reasons.md", reason.Tables())
	}
	if err == nil {
		err = writeRecord()
	}
	if err != nil {
		log.Fatal("metricdoc: ", err)
	}
}

func replace(file string, tables map[string]string) error {
	for name, table := range tables {
		if err := page.Insert(file, "<!-- begin "+name+" -->\n", table, "<!-- end "+name+" -->"); err != nil {
			return err
		}
	}
	return nil
}

// metricTable lists what the nvml receiver writes.
func metricTable() (string, error) {
	text, err := os.ReadFile(metadata)
	if err != nil {
		return "", err
	}
	var written struct{ Metrics map[string]any }
	if err := yaml.Unmarshal(text, &written); err != nil {
		return "", fmt.Errorf("%s: %w", metadata, err)
	}
	var b strings.Builder
	b.WriteString("| Metric | In Prometheus | Range | Read by |\n|---|---|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(written.Metrics)) {
		m := reading.ByName(name)
		if m == nil {
			return "", fmt.Errorf("%s has %s, internal/reading/catalogue.go has not: add a row there, sorted by name", metadata, name)
		}
		named, err := prometheusName(m)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %s | %s |\n", name, named, span(m), readBy(m))
	}
	return b.String(), nil
}

// prometheusName is what the Prometheus exporter with its defaults makes of a metric.
func prometheusName(m *reading.Metric) (string, error) {
	kind := map[reading.Kind]otlptranslator.MetricType{
		reading.Gauge: otlptranslator.MetricTypeGauge, reading.Counter: otlptranslator.MetricTypeMonotonicCounter,
		reading.UpDownCounter: otlptranslator.MetricTypeNonMonotonicCounter,
	}[m.Kind]
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	return namer.Build(otlptranslator.Metric{Name: m.Name, Unit: m.Unit, Type: kind})
}

// readBy is the readers of a metric, or why it has none.
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

func clears(c gpuhealth.Clears) string {
	var after string
	if c.After > 0 {
		after = fmt.Sprintf("%.0f min", c.After.Minutes())
	}
	switch c.By {
	case gpuhealth.ClearsCondition, gpuhealth.ClearsQuiet:
		return after
	case gpuhealth.ClearsGeneration:
		return "a reset"
	case gpuhealth.ClearsService:
		return "never by itself"
	case gpuhealth.ClearsFirstAnswer:
		return "the first answer"
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
		codes := cmp.Or(ranges(r.codes), "all others")
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
		part := strconv.FormatUint(codes[i], 10)
		if j > i {
			part = fmt.Sprintf("%d–%d", codes[i], codes[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ", ")
}
