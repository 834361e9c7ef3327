// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sassoftware/go-rpmutils"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// built are the packages of binaries that are none, by file name.
func built(t *testing.T) map[string]string {
	t.Helper()
	t.Chdir("../..")
	b := builder{binaries: t.TempDir(), out: t.TempDir(), version: "v1.2.3-rc.1", arch: "arm64"}
	for _, name := range []string{"gpu-collector", "gpu-collector-agent"} {
		require.NoError(t, os.WriteFile(filepath.Join(b.binaries, name), []byte("\x7fELF"), 0o755))
	}
	require.NoError(t, b.setDate("2026-11-21T12:00:00+01:00"))
	require.NoError(t, b.run(".goreleaser.yaml"))
	files, err := filepath.Glob(b.out + "/*")
	require.NoError(t, err)
	byName := map[string]string{}
	for _, file := range files {
		byName[filepath.Base(file)] = file
	}
	return byName
}

// TestRPM reads the packages as rpm does; test/packages/run.sh installs the
// deb ones.
func TestRPM(t *testing.T) {
	packages := built(t)
	require.Len(t, packages, 4)
	overlays, err := filepath.Glob("configs/overlays/*.yaml")
	require.NoError(t, err)
	for i, overlay := range overlays {
		overlays[i] = "/etc/gpu-collector/overlays/" + filepath.Base(overlay)
	}
	for _, tt := range []struct {
		file, name, unit string
		configs          []string
	}{
		{
			"gpu-collector-1.2.3~rc.1-1.aarch64.rpm", "gpu-collector", "gpu-collector-gateway",
			slices.Concat([]string{"/etc/default/gpu-collector-gateway", "/etc/gpu-collector/gateway.yaml"}, overlays, []string{"/etc/gpu-collector/shard.yaml"}),
		},
		{
			"gpu-collector-agent-1.2.3~rc.1-1.aarch64.rpm", "gpu-collector-agent", "gpu-collector-agent",
			[]string{"/etc/default/gpu-collector-agent", "/etc/gpu-collector/agent.yaml", "/etc/gpu-collector/dcgm-names.yaml", "/etc/gpu-collector/mtls-agent.yaml", "/etc/gpu-collector/nccl.yaml", "/etc/gpu-collector/second-agent.yaml", "/etc/gpu-collector/tenant-agent.yaml"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Contains(t, packages, tt.file)
			f, err := os.Open(packages[tt.file])
			require.NoError(t, err)
			defer func() { _ = f.Close() }()
			rpm, err := rpmutils.ReadRpm(f)
			require.NoError(t, err)

			name, err := rpm.Header.GetString(rpmutils.NAME)
			require.NoError(t, err)
			assert.Equal(t, tt.name, name)
			files, err := rpm.Header.GetFiles()
			require.NoError(t, err)
			var paths, configs []string
			for _, file := range files {
				paths = append(paths, file.Name())
				if file.Flags()&rpmutils.RPMFILE_NOREPLACE != 0 {
					configs = append(configs, file.Name())
				}
			}
			slices.Sort(configs)
			assert.Equal(t, tt.configs, configs, "files that an upgrade keeps")
			assert.Contains(t, paths, "/usr/bin/"+tt.name)
			assert.Contains(t, paths, "/usr/lib/systemd/system/"+tt.unit+".service")
			for _, tag := range []int{rpmutils.POSTIN, rpmutils.PREUN, rpmutils.POSTUN} {
				script, err := rpm.Header.GetString(tag)
				require.NoError(t, err)
				assert.Contains(t, script, "systemctl")
			}
			// The gateway's binary is static, and requires nothing.
			requires, _ := rpm.Header.GetStrings(rpmutils.REQUIRENAME)
			assert.Equal(t, tt.name == "gpu-collector-agent", slices.Contains(requires, "glibc"))
		})
	}
}

// TestConfigurationIsStrict: what goreleaser would refuse on the day of the
// release is refused now.
func TestConfigurationIsStrict(t *testing.T) {
	t.Chdir("../..")
	text, err := os.ReadFile(".goreleaser.yaml")
	require.NoError(t, err)
	for name, tt := range map[string]struct{ old, new, want string }{
		"unknown key":    {"bindir: /usr/bin", "bin_dir: /usr/bin", "bin_dir"},
		"unknown build":  {"ids: [gateway]\n    package_name", "ids: [gateways]\n    package_name", "gateways"},
		"missing source": {"main: ./cmd/gpu-collector\n", "main: ./cmd/collector\n", "cmd/collector"},
		"missing file":   {"src: LICENSE", "src: LICENCE", "LICENCE"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, string(text), tt.old)
			file := filepath.Join(t.TempDir(), "goreleaser.yaml")
			require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), tt.old, tt.new, 1)), 0o600))
			b := builder{binaries: "/dev/null", out: t.TempDir(), version: "v1.0.0", arch: "amd64"}
			assert.ErrorContains(t, b.run(file), tt.want)
		})
	}
}
