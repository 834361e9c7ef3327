// SPDX-License-Identifier: Apache-2.0

package readers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/internal/reading"
)

// mayMean are the files that may name a metric in another way than to write it, and
// why. All others ask the catalogue what a metric means.
var mayMean = map[string]string{
	"internal/gpusemconv/action.go":             "has the names",
	"internal/gpusemconv/board.go":              "has the names",
	"internal/gpusemconv/fabric.go":             "has the names",
	"internal/gpusemconv/semconv.go":            "has the names",
	"internal/reading/catalogue.go":             "is the catalogue",
	"internal/delta/buffernode.go":              "keeps room for the heartbeats that this room writes",
	"internal/delta/delivery.go":                "counts the heartbeats that this room writes",
	"internal/delta/judge.go":                   "knows the heartbeats of another tier's diff, as bytes too",
	"internal/delta/wire.go":                    "knows the heartbeats of another tier's diff, as bytes too",
	"internal/delta/wirefilter.go":              "names a metric that stands for a resource, and leaves with none",
	"internal/fleethistory/promql/names.go":     "lists attributes, for labels that have lost their dots",
	"receiver/nvmlreceiver/config.go":           "names resources of Kubernetes",
	"receiver/nvmlreceiver/record_states.go":    "ends series of its own",
	"receiver/nvmlreceiver/scraper.go":          "leaves the start time of a counter of its own",
	"sim/fleetpush/layout.go":                   "names the metrics that its template lacks, which it writes",
	"internal/dcgmnames/dcgmnames.go":           "translates names into those of another exporter",
	"processor/dcgmnamesprocessor/translate.go": "joins hw.gpu.info, and adds up the memory, under those names",
}

// metricName is text that may be the name of a metric. Those of other namespaces are
// told by the catalogue.
var metricName = regexp.MustCompile(`^(hw|gpu)\.[a-z]`)

// TestOneRoomKnowsWhatMetricsMean: the catalogue alone maps names of metrics to
// meanings, or two readers would read one point as two things.
func TestOneRoomKnowsWhatMetricsMean(t *testing.T) {
	used := map[string]bool{}
	eachFile(t, []string{"cmd", "exporter", "extension", "internal", "pkg", "processor", "receiver", "sim", "tools"}, func(path string, file *ast.File) {
		for _, name := range meanings(file) {
			used[path] = true
			assert.NotEmpty(t, mayMean[path], "%s gives a meaning to %s: take it from internal/reading", path, name)
		}
	})
	for path := range mayMean {
		assert.True(t, used[path], "%s names none: take it off the list", path)
	}
}

// writers are the calls that make a metric of the name that they are given. Names
// of attributes that are written are nobody's business here either.
var writers = regexp.MustCompile(`^(SetName|Metric|MetricName|Put[A-Z].*|put[A-Z].*)$`)

// meanings are the metrics that a file names and does not write.
func meanings(file *ast.File) (found []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec, *ast.Field: // paths, and the tags of structs
			return false
		case *ast.CallExpr:
			if writers.MatchString(called(n)) {
				return false
			}
		case *ast.SelectorExpr:
			if of, ok := n.X.(*ast.Ident); ok && (of.Name == "gpusemconv" || of.Name == "semconv") && isMetric(n.Sel.Name) {
				found = append(found, n.Sel.Name)
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && (metricName.MatchString(text) || reading.ByName(text) != nil) {
				found = append(found, text)
			}
		}
		return true
	})
	return found
}

var metricConstant = regexp.MustCompile(`^Metric[A-Z]`)

func isMetric(name string) bool { return metricConstant.MatchString(name) }

func TestMeanings(t *testing.T) {
	for source, want := range map[string][]string{
		`m.SetName(gpusemconv.MetricPower)`:                                     nil,
		`p := g.Metric(semconv.MetricPower)`:                                    nil,
		`attrs.PutStr("hw.id", id)`:                                             nil,
		`m, _ := reading.Of(reading.Power)`:                                     nil,
		`log.Info("hw.")`:                                                       nil,
		`v, _ := attrs.Get(gpusemconv.AttrHWID)`:                                nil,
		`if m.Name() == gpusemconv.MetricPower { w = v }`:                       {"MetricPower"},
		`switch name { case "hw.power": w = v }`:                                {"hw.power"},
		`switch name { case "system.memory.utilization": w = v }`:               {"system.memory.utilization"},
		"read := map[string]int{`gpu.node.state`: 1}":                           {"gpu.node.state"},
		`list := []string{semconv.MetricPower, "ingero.node.throughput_ratio"}`: {"MetricPower", "ingero.node.throughput_ratio"},
		`const score = "ingero.node.health_score"`:                              {"ingero.node.health_score"},
		`ok := strings.HasPrefix(name, "hw.gpu.throttle.")`:                     {"hw.gpu.throttle."},
		`score := reading.ByName(gpusemconv.MetricNodeHealthScore)`:             {"MetricNodeHealthScore"},
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "a.go", "package a\nfunc f() {\n"+source+"\n}", 0)
		require.NoError(t, err)
		assert.Equal(t, want, meanings(file), source)
	}
}
