// SPDX-License-Identifier: Apache-2.0

// Package ocb tests the packages that other people's Collectors take over with
// each component of ours: README.md and run.sh build them.
package ocb

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const (
	root = "../.."
	self = "github.com/gpu-collector/gpu-collector"
)

// heavy are modules that cost much, with the components that need them.
var heavy = map[string][]string{
	"github.com/NVIDIA/go-nvml":           {"receiver/nvmlreceiver"},
	"k8s.io/kubelet":                      {"receiver/nvmlreceiver"},
	"github.com/prometheus/procfs":        {"extension/expositionextension", "receiver/ncclreceiver", "receiver/nvmlreceiver"},
	"modernc.org/sqlite":                  {"extension/fleetviewextension"},
	"github.com/danielgtaylor/huma/v2":    {"extension/fleetviewextension"},
	"github.com/prometheus/client_golang": {"extension/expositionextension", "extension/fleetviewextension"},
	"github.com/prometheus/prometheus":    nil,
	"charm.land/bubbletea/v2":             nil,
	"github.com/spf13/cobra":              nil,
}

// rooms are the internal packages that a component takes along; those that all
// may use are left out.
var rooms = map[string][]string{
	"receiver/ncclreceiver":         {"gpu/gpuholders", "node/ownnode"},
	"receiver/nvmlreceiver":         {"gpu/gpuhealth", "gpu/gpuholders", "gpu/podresources", "node/ownnode", "platform/logsink", "platform/statefile", "reading/identity"},
	"receiver/csvreplayreceiver":    {},
	"receiver/fleetotlpreceiver":    {"detect/threshold", "lastvalue", "lastvalue/otlp", "node/nodescore/nodesignal", "platform/admission", "platform/clientidentity", "platform/hostextension", "platform/memorybudget", "platform/serverguard", "platform/webguard", "reading/identity", "reading/metricreading"},
	"processor/diffprocessor":       {"lastvalue", "lastvalue/otlp", "lastvalue/resync", "platform/hostextension", "platform/memorybudget", "reading/identity", "reading/metricreading"},
	"processor/stragglerprocessor":  {"detect/collective", "detect/peergroup", "detect/robust", "detect/straggler", "detect/threshold", "detect/threshold/rule", "fleet/fleetstate", "gpu/gpuhealth", "node/nodescore", "node/nodescore/nodereport", "node/nodescore/nodesignal", "node/nodescore/rankattr", "node/ownnode", "platform/hostextension", "platform/logsink", "platform/memorybudget", "platform/statefile", "reading/identity", "reading/metricreading", "verdict/episode", "verdict/episode/otlp", "verdict/episode/words", "verdict/reason"},
	"exporter/fleetviewexporter":    {"detect/peergroup", "fleet/fleetstate", "node/nodescore/nodesignal", "node/nodescore/rankattr", "platform/hostextension", "reading/identity", "reading/metricreading", "verdict/episode", "verdict/episode/otlp"},
	"extension/expositionextension": {"lastvalue", "lastvalue/dcgmnames", "lastvalue/otlp", "platform/memorybudget", "platform/serverguard", "platform/webguard", "reading/identity", "reading/metricreading"},
	"extension/fleetviewextension":  {"detect/peergroup", "fleet/fleetapi", "fleet/fleethistory", "fleet/fleethistory/promql", "fleet/fleethistory/sqlite", "fleet/fleetstate", "gpu/gpuhealth", "node/nodescore/nodesignal", "platform/memorybudget", "platform/serverguard", "platform/webguard", "verdict/attention", "verdict/episode", "verdict/episode/words", "verdict/reason"},
	"extension/thresholdextension":  {"detect/threshold", "lastvalue/resync", "node/nodescore/nodesignal", "platform/clientidentity", "platform/memorybudget", "platform/serverguard", "platform/webguard", "reading/identity", "reading/metricreading"},
}

// shared are small: names on the wire, texts of numbers, the catalogue of
// readings, time, one instance for several users, and the tenants' rule to share a bound.
// The straggler engine is not among them.
var shared = []string{"detect/unjudged", "lastvalue/promtext", "platform/fairshare", "platform/gauge", "platform/mistake", "platform/pushheaders", "platform/sharedinstance", "reading", "reading/gpusemconv"}

// components are the directories of this module's components.
func components(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "*", "*", "metadata.yaml"))
	require.NoError(t, err)
	var dirs []string
	for _, f := range files {
		rel, err := filepath.Rel(root, filepath.Dir(f))
		require.NoError(t, err)
		dirs = append(dirs, filepath.ToSlash(rel))
	}
	require.Len(t, dirs, len(rooms))
	return dirs
}

// TestNoComponentDragsAnother lists what a Collector that takes one component
// compiles for it.
func TestNoComponentDragsAnother(t *testing.T) {
	for _, dir := range components(t) {
		t.Run(dir, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "go", "list", "-deps",
				"-f", "{{.ImportPath}}\t{{with .Module}}{{.Path}}{{end}}\t{{.Standard}}\t{{len .CgoFiles}}", "./"+dir)
			cmd.Dir = root
			cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
			out, err := cmd.Output()
			require.NoError(t, err)
			var own []string
			for line := range strings.Lines(string(out)) {
				f := strings.Split(strings.TrimSpace(line), "\t")
				pkg, module, standard, cgo := f[0], f[1], f[2] == "true", f[3] != "0"
				if room, ok := strings.CutPrefix(pkg, self+"/internal/"); ok {
					if !slices.Contains(shared, room) {
						own = append(own, room)
					}
				} else if module == self {
					assert.True(t, pkg == self+"/"+dir || strings.HasPrefix(pkg, self+"/"+dir+"/"), "%s comes with it", pkg)
				}
				if users, known := heavy[module]; known {
					assert.Contains(t, users, dir, "%s comes with it", pkg)
				}
				assert.False(t, strings.HasPrefix(module, "github.com/open-telemetry/opentelemetry-collector-contrib/"), "%s comes with it", pkg)
				assert.True(t, standard || !cgo || dir == "receiver/nvmlreceiver", "%s needs cgo", pkg)
			}
			slices.Sort(own)
			assert.Equal(t, rooms[dir], append([]string{}, own...), "the internal packages that come with it")
		})
	}
}

// TestReadmeSaysHowToAddIt reads the manifest lines that each README shows, and
// the line that run.sh builds the component with.
func TestReadmeSaysHowToAddIt(t *testing.T) {
	for _, dir := range components(t) {
		t.Run(dir, func(t *testing.T) {
			readme, err := os.ReadFile(filepath.Join(root, dir, "README.md"))
			require.NoError(t, err)
			_, section, found := strings.Cut(string(readme), "\n## In a Collector of your own\n")
			require.True(t, found, "the section")
			_, block, found := strings.Cut(section, "```yaml\n")
			require.True(t, found, "the lines of the manifest")
			block, _, _ = strings.Cut(block, "```")
			var manifest map[string][]struct{ Gomod, Import string }
			require.NoError(t, yaml.Unmarshal([]byte(block), &manifest))
			kind := path.Dir(dir) + "s"
			require.NotEmpty(t, manifest[kind])
			assert.Equal(t, self+"/"+dir, manifest[kind][0].Import)
			for kind, list := range manifest {
				for _, c := range list {
					assert.Equal(t, self+" v0.1.0", c.Gomod)
					assert.True(t, strings.HasPrefix(c.Import, self+"/"+strings.TrimSuffix(kind, "s")+"/"), c.Import)
					assert.FileExists(t, filepath.Join(root, strings.TrimPrefix(c.Import, self), "metadata.yaml"))
				}
			}
			// The same lines name another component only if this one needs it.
			want := 1
			if dir == "exporter/fleetviewexporter" {
				want = 2
			}
			n := 0
			for _, list := range manifest {
				n += len(list)
			}
			assert.Equal(t, want, n, fmt.Sprint(manifest))
		})
	}
}
