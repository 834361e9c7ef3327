// SPDX-License-Identifier: Apache-2.0

// Package rooms checks who imports whom.
package rooms

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

const module = "github.com/gpu-collector/gpu-collector/"

type listed struct {
	ImportPath    string
	Imports, Deps []string
}

// list returns the module's packages by their path in it.
func list(t *testing.T) map[string]*listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir, cmd.Stderr = "../..", os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	all := map[string]*listed{}
	for d := json.NewDecoder(out); ; {
		p := new(listed)
		err := d.Decode(p)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		all[strings.TrimPrefix(p.ImportPath, module)] = p
	}
	require.NoError(t, cmd.Wait())
	return all
}

// guarded are the files that rules of depguard name.
func guarded(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../.golangci.yml")
	require.NoError(t, err)
	var cfg struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]struct{ Files []string }
				}
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &cfg))
	files := map[string][]string{}
	for name, rule := range cfg.Linters.Settings.Depguard.Rules {
		files[name] = rule.Files
	}
	return files
}

// adapters are the packages of internal/ that the linter does not take for pure.
func adapters(t *testing.T, files []string) (found []string) {
	t.Helper()
	require.Contains(t, files, "**/internal/**/*.go", "the linter guards all of internal/")
	for _, file := range files {
		if path, ok := strings.CutPrefix(file, "!**/internal/"); ok && !strings.HasSuffix(path, "_test.go") {
			dir, ok := strings.CutSuffix(path, "/*.go")
			require.True(t, ok, "%s: must be !**/internal/PACKAGE/*.go", file)
			found = append(found, "internal/"+dir)
		}
	}
	return found
}

// elsewhere are the packages outside of internal/ that the linter takes for pure.
func elsewhere(t *testing.T, files []string) (found []string) {
	t.Helper()
	for _, file := range files {
		path, ok := strings.CutPrefix(file, "**/")
		dir, pkg := strings.CutSuffix(path, "/*.go")
		require.True(t, ok && pkg, "%s: must be **/PACKAGE/*.go", file)
		found = append(found, dir)
	}
	return found
}

func foreign(path string) bool {
	return strings.HasPrefix(path, "go.opentelemetry.io/") || strings.HasPrefix(path, "github.com/NVIDIA/go-nvml")
}

// A package of internal/ is pure, with all that it imports, or it is listed as an
// adapter in .golangci.yml. A new package is pure until somebody lists it.
func TestPureRooms(t *testing.T) {
	all, files := list(t), guarded(t)
	adapters := adapters(t, files["pure"])
	pure := 0
	for path, p := range all {
		if !strings.HasPrefix(path, "internal/") {
			continue
		}
		at := slices.IndexFunc(p.Deps, foreign)
		if slices.Contains(adapters, path) {
			assert.True(t, slices.ContainsFunc(p.Imports, foreign), "%s is listed as an adapter, and is pure", path)
			continue
		}
		pure++
		if at >= 0 {
			assert.Fail(t, "not pure", "%s imports %s: give that to an adapter, or list it as one in .golangci.yml", path, p.Deps[at])
		}
	}
	assert.Greater(t, pure, 20)
	for _, path := range adapters {
		assert.Contains(t, all, path, "an adapter that is listed is there")
	}
}

// A package of a component, of pkg/ or of sim/ that is pure is listed, and stays so.
func TestPureRoomsElsewhere(t *testing.T) {
	all, listed := list(t), elsewhere(t, guarded(t)["pure-elsewhere"])
	for path, p := range all {
		room, _, _ := strings.Cut(path, "/")
		if !slices.Contains([]string{"exporter", "extension", "pkg", "processor", "receiver", "sim"}, room) {
			continue
		}
		at := slices.IndexFunc(p.Deps, foreign)
		switch {
		case slices.Contains(listed, path) && at >= 0:
			assert.Fail(t, "not pure", "%s imports %s: it is listed as pure in .golangci.yml", path, p.Deps[at])
		case !slices.Contains(listed, path):
			assert.GreaterOrEqual(t, at, 0, "%s is pure: list it under pure-elsewhere in .golangci.yml", path)
		}
	}
	for _, path := range listed {
		assert.Contains(t, all, path, "a room that is listed is there")
	}
}

// product says whether a package is part of what is installed.
func product(path string) bool {
	for _, room := range []string{"cmd/gpu-collector", "receiver/", "processor/", "exporter/", "extension/", "connector/", "internal/", "pkg/"} {
		if strings.HasPrefix(path, room) {
			return true
		}
	}
	return false
}

func TestDirections(t *testing.T) {
	for path, p := range list(t) {
		for _, dep := range p.Imports {
			assert.NotContains(t, dep+"/", "/testdata/", "%s imports it", path)
			if strings.HasPrefix(dep, "github.com/NVIDIA/go-nvml") && !strings.HasPrefix(path, "test/fakenvml") {
				assert.Equal(t, "receiver/nvmlreceiver/internal/nvml", path, "imports %s", dep)
			}
		}
		for _, dep := range p.Deps {
			if in, ok := strings.CutPrefix(dep, module); ok && product(path) {
				assert.False(t, strings.HasPrefix(in, "sim/") || strings.HasPrefix(in, "test/") || strings.HasPrefix(in, "tools/"),
					"%s is part of the product, and links %s", path, in)
			}
		}
	}
}
