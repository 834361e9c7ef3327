// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
	"golang.org/x/mod/modfile"
)

const (
	root    = "../../.."
	self    = "github.com/gpu-collector/gpu-collector"
	core    = "go.opentelemetry.io/collector"
	contrib = "github.com/open-telemetry/opentelemetry-collector-contrib/"
)

func goMod(t *testing.T, file string) *modfile.File {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	f, err := modfile.Parse(file, data, nil)
	require.NoError(t, err)
	return f
}

// TestOneCollectorVersion guards against a mixed set, which resolves,
// compiles, starts, and silently ignores configuration.
func TestOneCollectorVersion(t *testing.T) {
	for _, file := range []string{root + "/go.mod", root + "/tools/pinned/go.mod"} {
		for _, r := range goMod(t, file).Require {
			switch {
			case r.Mod.Path == core || strings.HasPrefix(r.Mod.Path, core+"/"):
				assert.Contains(t, []string{"v0.155.0", "v1.61.0"}, r.Mod.Version, r.Mod.Path)
			case strings.HasPrefix(r.Mod.Path, contrib):
				assert.Equal(t, "v0.155.0", r.Mod.Version, r.Mod.Path)
			case r.Mod.Path == "github.com/NVIDIA/go-nvml":
				assert.Equal(t, "v0.13.3-0", r.Mod.Version)
			}
		}
	}
}

// TestReplacedModulesDoNotShip covers the one exception from the version set:
// contrib's pkg/golden serves the tests of contrib's modules only.
func TestReplacedModulesDoNotShip(t *testing.T) {
	f := goMod(t, root+"/go.mod")
	require.Len(t, f.Replace, 1)
	assert.Equal(t, contrib+"pkg/golden", f.Replace[0].Old.Path)

	cmd := exec.Command("go", "list", "-deps", "./cmd/...")
	cmd.Dir = root
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.Contains(t, string(out), self+"/processor/stragglerprocessor")
	assert.NotContains(t, string(out), contrib+"pkg/golden")
}

type manifest struct {
	Dist      struct{ Name, Version string }
	Providers []module
	Receivers, Processors, Exporters,
	Connectors, Extensions []module
}

type module struct{ Gomod, Import, Path string }

func load(t *testing.T, file string) manifest {
	data, err := os.ReadFile(path.Join(root, file))
	require.NoError(t, err)
	var m manifest
	require.NoError(t, yaml.Unmarshal(data, &m))
	return m
}

// TestManifestsAgreeWithTheModule: the manifests, go.mod and the mains, which
// list the providers by hand, name the same modules and versions.
func TestManifestsAgreeWithTheModule(t *testing.T) {
	required := map[string]string{self: "v0.0.0"}
	for _, r := range goMod(t, root+"/go.mod").Require {
		required[r.Mod.Path] = r.Mod.Version
	}
	for file, main := range map[string]string{
		"builder-config.yaml":       "cmd/gpu-collector/main.go",
		"builder-config-agent.yaml": "cmd/gpu-collector-agent/main.go",
		"builder-config-demo.yaml":  "cmd/gpu-collector-demo/main.go",
	} {
		m := load(t, file)
		src, err := os.ReadFile(path.Join(root, main))
		require.NoError(t, err)
		assert.Contains(t, string(src), `"`+m.Dist.Name+`"`)
		assert.Equal(t, Version, m.Dist.Version)
		for _, list := range [][]module{m.Receivers, m.Processors, m.Exporters, m.Extensions, m.Providers} {
			require.NotEmpty(t, list)
		}
		for _, list := range [][]module{m.Receivers, m.Processors, m.Exporters, m.Connectors, m.Extensions, m.Providers} {
			for _, c := range list {
				name, version, ok := strings.Cut(c.Gomod, " ")
				require.True(t, ok, c.Gomod)
				assert.Equal(t, required[name], version, "%s in %s", name, file)
			}
		}
		for _, p := range m.Providers {
			name, _, _ := strings.Cut(p.Gomod, " ")
			assert.Contains(t, string(src), `"`+name+`"`)
		}
		assert.Equal(t, len(m.Providers), strings.Count(string(src), ".NewFactory()"), "providers in %s", main)
	}
}

// TestTheDemoIsNoProduct: it shows what the full distribution has, and nothing ships it.
func TestTheDemoIsNoProduct(t *testing.T) {
	full, demo := load(t, "builder-config.yaml"), load(t, "builder-config-demo.yaml")
	assert.Subset(t, full.Receivers, demo.Receivers)
	assert.Subset(t, full.Processors, demo.Processors)
	assert.Subset(t, full.Exporters, demo.Exporters)
	assert.Subset(t, full.Extensions, demo.Extensions)
	for _, file := range []string{".goreleaser.yaml", "Dockerfile", "scripts/images.sh"} {
		text, err := os.ReadFile(path.Join(root, file))
		require.NoError(t, err)
		assert.NotContains(t, string(text), demo.Dist.Name, file)
	}
}
