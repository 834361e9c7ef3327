// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpu-collector/gpu-collector/test/fakenvml"
	"github.com/gpu-collector/gpu-collector/test/process"
)

// TestBinariesBindLazily reads what `readelf -d` shows: go-nvml is linked with
// unresolved symbols, so that a binary that binds them at once would not start
// without a driver. Distributions' compilers may default to `-z now`.
func TestBinariesBindLazily(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("ELF is Linux's")
	}
	for _, command := range []string{"gpu-collector", "gpu-collector-agent"} {
		f, err := elf.Open(process.Binary(t, command))
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		symbols, err := f.DynamicSymbols()
		require.NoError(t, err)
		names := map[string]bool{}
		for _, s := range symbols {
			names[s.Name] = s.Section == elf.SHN_UNDEF
		}
		require.True(t, names["nvmlInit_v2"], "the binary calls NVML")

		now, err := f.DynValue(elf.DT_BIND_NOW)
		require.NoError(t, err)
		assert.Empty(t, now)
		flags, err := f.DynValue(elf.DT_FLAGS)
		require.NoError(t, err)
		for _, v := range flags {
			assert.Zero(t, elf.DynFlag(v)&elf.DF_BIND_NOW, "BIND_NOW")
		}
		flags1, err := f.DynValue(elf.DT_FLAGS_1)
		require.NoError(t, err)
		for _, v := range flags1 {
			assert.Zero(t, elf.DynFlag1(v)&elf.DF_1_NOW, "NOW")
		}
	}
}

// TestWithoutCgo builds the collector without cgo: it runs, logs once why it
// has no GPU metrics, and does all the rest.
func TestWithoutCgo(t *testing.T) {
	long(t)
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "gpu-collector")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", binary, process.Root+"/cmd/gpu-collector")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	n := startGPUNode(t, binary, fakenvml.NewState(gpus), oftener)
	n.WaitLog(1, "warn", "no GPU metrics will be emitted", "CGO_ENABLED=1")
	process.Eventually(t, "three seconds of scrapes have passed", func() bool {
		uptime, _ := process.Scrape(t, n.Telemetry).Value("otelcol_process_uptime", nil)
		return uptime >= 3
	})
	assert.Len(t, n.Log.Lines("warn", `"otelcol.component.id": "nvml"`), 1)
	assert.Empty(t, n.Log.Lines("\terror\t"))
	for metric := range process.Scrape(t, n.Prom) {
		assert.NotRegexp(t, "^hw_", metric)
	}

	said, err := validate(t, binary, "configs/all-in-one.yaml")
	assert.NoError(t, err, said)
}
